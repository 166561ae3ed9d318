"""Where a request goes: what a router reads to find the replica that holds a thread's blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Router = Literal["vllm-router", "production-stack", "llm-d", "dynamo", "sglang", "none"]
"""Routers whose session key is known."""

HintStyle = Literal["agentic_context", "nvext"]
"""How a scheduler is told the agent's shape: by vllm-router's fields, or by Dynamo's."""

_HEADERS: Mapping[str, str] = {  # facts/vllm.md "Beyond one server", facts/kv-sharing.md §C
    "vllm-router": "X-Session-ID",
    "production-stack": "x-user-id",
    "llm-d": "x-session-id",
    "dynamo": "x-dynamo-session-id",
    "sglang": "x-smg-routing-key",
}

_HINTS: Mapping[str, HintStyle] = {"vllm-router": "agentic_context", "dynamo": "nvext"}

_PER_REQUEST = frozenset(
    {"x-request-id", "x-correlation-id", "x-trace-id", "traceparent", "tracestate", "baggage"}
) | {"x-vllm-priority"}
"""Headers that name one request; repeated, they would tie a branch to another request's trace. The
priority header would win over the branch's own, later priority."""

_DIGEST_BYTES = 16
_MAX_SECRET_BYTES = 64


@dataclass(frozen=True, slots=True)
class Route:
    """What leads one request to a replica, a tenant's blocks and a session.

    Attributes:
        headers: HTTP headers.
        body: Request fields.
    """

    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, headers: Mapping[str, str], body: Mapping[str, Any]) -> Route:
        """Keep what routes, drop what names a single request."""
        kept = {k: v for k, v in headers.items() if k.lower() not in _PER_REQUEST}
        return cls(headers=kept, body=dict(body))

    def under(self, own: Route) -> Route:
        """This route, below what a request already says for itself."""
        return Route(headers=_headers(self.headers, own.headers), body=merged(self.body, own.body))


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """Which part of a request carries the session, the same for a trunk and its branches.

    The session is a hash of LangGraph's thread id, so that no user's name leaves the process. One
    of `header`, `field` and `cookie` is enough; a router that reads none of them needs none.

    Attributes:
        header: Name of the HTTP header.
        field: Name of the request field; a dot goes one level down (`session_params.session_id`).
        cookie: Name of the cookie, for a load balancer that reads one.
        tenant: Name of the value in LangGraph's `configurable` that tells tenants apart. Its hash
            is sent as `cache_salt`, so that no tenant's prompt hits another tenant's blocks.
        secret: Hashed in with every thread and tenant, so that nobody can find an id by trying;
            all processes of an application need the same one. At most 64 bytes.
        hints: Also tell the router's scheduler the agent's shape: `agentic_context` for
            vllm-router with `--enable-program-scheduling` (nothing is sent until the router says
            that it listens), `nvext` for Dynamo.
        conversation: Also give the orchestrator's requests a `conversation_id`, by which a proxy
            returns a decode server's blocks to the prefill server. Branches never carry it.
    """

    header: str | None = None
    field: str | None = None
    cookie: str | None = None
    tenant: str | None = None
    secret: str = ""
    hints: HintStyle | None = None
    conversation: bool = False

    def __post_init__(self) -> None:
        if self.header is not None and self.header.lower() in _PER_REQUEST:
            msg = (
                f"the header {self.header!r} names one request, so a tracer gives each request "
                "another one and the router would spread a thread over all replicas; choose "
                "another header"
            )
            raise ValueError(msg)
        if len(self.secret.encode()) > _MAX_SECRET_BYTES:
            msg = f"the secret of an Affinity may have at most {_MAX_SECRET_BYTES} bytes"
            raise ValueError(msg)

    @classmethod
    def for_router(
        cls, router: Router, *, header: str | None = None, hints: bool = False, **settings: Any
    ) -> Affinity:
        """The settings for a router.

        Args:
            router: `vllm-router` (policy `consistent_hash`), `production-stack` (`--routing-logic
                session`), `llm-d` (session affinity with `strategy: session_id`), `dynamo`
                (`--router-session-affinity-ttl-secs`), `sglang` (policy `consistent_hashing` or
                `manual`), or `none`.
            header: The header's name, where the router was given another one than its usual
                (`--session-key` of production-stack, `headerName` of llm-d).
            hints: Whether its scheduler is told the agent's shape (`vllm-router`, `dynamo`).
            **settings: Any other field of `Affinity`.

        Raises:
            ValueError: The router is not known, or takes no hints; the message lists those that do.
        """
        if router not in get_args(Router):
            known = ", ".join(get_args(Router))
            msg = f"unknown router {router!r}; use one of {known}, or Affinity(header=…)"
            raise ValueError(msg)
        if hints and router not in _HINTS:
            msg = f"{router} takes no hints; {' and '.join(_HINTS)} do"
            raise ValueError(msg)
        style = _HINTS[router] if hints else None
        return cls(header=header or _HEADERS.get(router), hints=style, **settings)

    @property
    def active(self) -> bool:
        """Whether anything is added to a request."""
        return bool(
            self.header
            or self.field
            or self.cookie
            or self.tenant
            or self.hints
            or self.conversation
        )

    def session(self, thread: str) -> str:
        """The session of a thread: 32 hexadecimal digits."""
        return self.digest("session", thread)

    def route(self, thread: str, configurable: Mapping[str, Any]) -> Route:
        """What a request of this thread carries.

        Args:
            thread: LangGraph's thread id.
            configurable: The run's values, among them the tenant.
        """
        session = self.session(thread)
        headers = {self.header: session} if self.header else {}
        if self.cookie:
            headers["Cookie"] = f"{self.cookie}={session}"
        body: dict[str, Any] = {}
        for name in reversed(self.field.split(".") if self.field else ()):
            body = {name: body or session}
        tenant = configurable.get(self.tenant) if self.tenant else None
        if tenant is not None:
            body["cache_salt"] = self.digest("tenant", str(tenant))
        return Route(headers=headers, body=body)

    def digest(self, *parts: str) -> str:
        """A name that tells nothing about what it is made of."""
        text = "\0".join(parts).encode("utf-8", "surrogatepass")
        key = self.secret.encode()
        return hashlib.blake2b(text, digest_size=_DIGEST_BYTES, key=key).hexdigest()


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Two sets of request fields as one; where both say something, `above` wins."""
    result = {**below, **above}
    for name in below.keys() & above.keys():
        if isinstance(below[name], Mapping) and isinstance(above[name], Mapping):
            result[name] = merged(below[name], above[name])
    return result


def _headers(below: Mapping[str, str], above: Mapping[str, str]) -> dict[str, str]:
    """The same for headers, whose names have no case; cookies add up."""
    taken = {name.lower(): name for name in above}
    result = dict(above)
    for name, value in below.items():
        own = taken.get(name.lower())
        if own is None:
            result[name] = value
        elif name.lower() == "cookie" and value.partition("=")[0] + "=" not in above[own]:
            result[own] = f"{above[own]}; {value}"
    return result
