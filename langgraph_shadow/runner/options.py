"""The limits a user can set, validated once at the edge."""

from __future__ import annotations

from typing import Literal, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from langgraph_shadow.guard.report import GuardMode

Launch = Literal["follow", "gap", "lead"]
"""When a branch leaves: after the orchestrator's next first token (`follow`), after the end of
that answer (`gap`), or at once on the predicted trunk (`lead`)."""

Late = Literal["cancel", "deliver"]
"""What becomes of a branch that is overtaken by the final answer."""


class Options(BaseModel):
    """Everything bounded, in plain terms.

    Attributes:
        guard: What to do about a prompt that breaks the prefix.
        launch: When branches leave.
        deadline: Seconds that a branch waits for the orchestrator's next request and first token;
            after it the branch leaves with what is known.
        head_start: Seconds that the orchestrator's request gets when it does not stream.
        timeout: Seconds that one branch may take, from launch to the end of its answer.
        max_in_flight: Branches that may be running at once.
        max_waiting: Branches that may wait for a place; beyond it the oldest is shed.
        max_tokens_per_minute: Tokens that the server may compute for branches in any minute:
            prompt tokens that were not cached, and generated ones. None sets no limit.
        max_queue: Requests waiting at the server above which no branch leaves. None sets no limit.
        max_kv_usage: Share (0 to 1) of the server's KV cache in use by running requests above
            which no branch leaves. None sets no limit.
        max_slowdown: Share by which the orchestrator's median time to the first token may be
            longer beside branches than without them (0.1: a tenth). Needs streamed calls, eight
            of each kind within five minutes. None does not compare.
        max_failures: Failures of the server in a row after which branches stay away from it.
        cool_down: Seconds that they stay away at first; doubled with each failed try, up to 300.
        late: What becomes of a branch that is still running when the final answer has ended and
            the run is over: `cancel` (its request is aborted, unless `drain` was called) or
            `deliver`. A loop that ends right after its tools has no answer, so its last branches
            are delivered either way.
        max_new_tokens: Prompt tokens that a branch may add beyond what the cache holds.
        max_threads: Threads remembered at once; the least recently used falls out.
        splice: Whether prompts may be sent as token ids to `/v1/completions` when no chat request
            keeps the trunk.
        warm_up: In mode `mirror`, have the other model compute each trunk while the orchestrator
            generates (one token), so that the branch finds it cached.
        prefill_ahead: While some tools of a batch still run, have the server compute the longest
            run of finished results in call order (one token), so that the orchestrator's next
            request finds it cached.
        priority: vLLM's request priority for branches (larger is later). `auto` sends one that is
            later than the orchestrator's and stops when the server refuses it; vLLM acts on it
            with `--scheduling-policy priority` and ignores it otherwise. None sends none.
        kv_events: ZMQ endpoint of the server's KV events (`--kv-events-config`), one that vLLM
            binds: `ipc://PATH`, or `tcp://HOST:PORT` where the server has `tcp://*:PORT`. A branch
            whose prefix is gone, so that it would compute more than `max_new_tokens`, is shed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    guard: GuardMode = "warn"
    launch: Launch = "follow"
    deadline: float = Field(default=30.0, gt=0)
    head_start: float = Field(default=0.25, ge=0)
    timeout: float = Field(default=60.0, gt=0)
    max_in_flight: int = Field(default=4, ge=1)
    max_waiting: int = Field(default=32, ge=1)
    max_tokens_per_minute: int | None = Field(default=None, ge=1)
    max_queue: int | None = Field(default=8, ge=0)
    max_kv_usage: float | None = Field(default=0.9, ge=0, le=1)
    max_slowdown: float | None = Field(default=None, ge=0)
    max_failures: int = Field(default=5, ge=1)
    cool_down: float = Field(default=5.0, gt=0)
    late: Late = "cancel"
    max_new_tokens: int = Field(default=512, ge=1)
    max_threads: int = Field(default=1024, ge=1)
    splice: bool = True
    warm_up: bool = False
    prefill_ahead: bool = False
    priority: int | Literal["auto"] | None = "auto"
    kv_events: str | None = None


class Limits(TypedDict, total=False):
    """The keyword arguments of `Shadow` that set a limit; `Options` explains each."""

    deadline: float
    head_start: float
    timeout: float
    max_in_flight: int
    max_waiting: int
    max_tokens_per_minute: int | None
    max_queue: int | None
    max_kv_usage: float | None
    max_slowdown: float | None
    max_failures: int
    cool_down: float
    late: Late
    max_new_tokens: int
    max_threads: int
    splice: bool
    warm_up: bool
    prefill_ahead: bool
    priority: int | Literal["auto"] | None
    kv_events: str | None
