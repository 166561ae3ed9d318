"""What a request says of its session: a hash of the thread, one for a trunk and its branches."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langgraph_shadow.runner.affinity import Affinity, Route, Router, merged

WIRE = {
    "vllm-router": "X-Session-ID",
    "production-stack": "x-user-id",
    "llm-d": "x-session-id",
    "dynamo": "x-dynamo-session-id",
    "sglang": "x-smg-routing-key",
    "none": None,
}


@pytest.mark.parametrize("router", get_args(Router))
def test_each_router_reads_its_own_header(router: Router) -> None:
    affinity = Affinity.for_router(router)
    route = affinity.route("thread-1", {})
    expected = {} if WIRE[router] is None else {WIRE[router]: affinity.session("thread-1")}
    assert route == Route(headers=expected)
    assert affinity.active is (router != "none")


def test_a_router_that_was_given_another_header() -> None:
    affinity = Affinity.for_router("production-stack", header="x-chat")
    assert list(affinity.route("t", {}).headers) == ["x-chat"]


def test_an_unknown_router_is_named_with_those_that_are_known() -> None:
    with pytest.raises(ValueError, match=r"unknown router 'nginx'; use one of vllm-router, "):
        Affinity.for_router("nginx")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["X-Request-ID", "traceparent", "x-correlation-id"])
def test_a_header_that_names_one_request_cannot_be_the_session(name: str) -> None:
    with pytest.raises(ValueError, match="names one request"):
        Affinity(header=name)


@given(st.text(min_size=1), st.text(min_size=1))
def test_the_thread_id_never_leaves_and_threads_stay_apart(one: str, other: str) -> None:
    affinity = Affinity(header="x-session-id", field="session_params.session_id", cookie="sticky")
    route = affinity.route(one, {})
    session = route.headers["x-session-id"]
    assert len(session) == 32
    assert set(session) <= set("0123456789abcdef")
    assert route.body == {"session_params": {"session_id": session}}
    assert route.headers["Cookie"] == f"sticky={session}"
    assert (affinity.session(other) == session) is (one == other)


def test_a_secret_makes_another_hash_and_no_thread_equals_a_tenant() -> None:
    plain, keyed = Affinity(tenant="team"), Affinity(tenant="team", secret="s")
    salts = [a.route("t", {"team": "t"}).body["cache_salt"] for a in (plain, keyed)]
    assert len({*salts, plain.session("t"), keyed.session("t")}) == 4
    with pytest.raises(ValueError, match="64 bytes"):
        Affinity(secret="x" * 65)


def test_tenants_are_salted_apart_and_no_tenant_is_not_salted() -> None:
    affinity = Affinity(tenant="team")
    one, two = (affinity.route("t", {"team": team}).body["cache_salt"] for team in (1, 2))
    assert one != two
    assert affinity.route("t", {}).body == {}


def test_what_a_request_says_for_itself_wins() -> None:
    route = Route(headers={"X-Session-ID": "ours", "Cookie": "a=1"}, body={"x": {"a": 1, "b": 1}})
    own = Route(headers={"x-session-id": "theirs", "cookie": "b=2"}, body={"x": {"b": 2}})
    sent = route.under(own)
    assert sent.headers == {"x-session-id": "theirs", "cookie": "b=2; a=1"}
    assert sent.body == {"x": {"a": 1, "b": 2}}


def test_a_branch_repeats_no_header_of_one_request() -> None:
    headers = {"X-Request-ID": "1", "TraceParent": "2", "X-Vllm-Priority": "3", "X-User": "ada"}
    assert Route.of(headers, {"user": "ada"}) == Route({"X-User": "ada"}, {"user": "ada"})


@given(
    st.dictionaries(st.text(max_size=2), st.integers()),
    st.dictionaries(st.text(max_size=2), st.integers()),
)
def test_merging_keeps_every_field(below: dict[str, int], above: dict[str, int]) -> None:
    assert merged(below, above) == {**below, **above}
