"""What a person's screen receives: typed events and their wire form."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

EventType = Literal["shadow.update", "shadow.skip", "shadow.failed", "shadow.shed", "shadow.guard"]


class ShadowEvent(BaseModel):
    """One thing the shadow has to say.

    Attributes:
        type: `shadow.update`, `shadow.skip`, `shadow.failed`, `shadow.shed` (not sent, to do no
            harm) or `shadow.guard` (a break or a repair).
        branch: The branch's name; empty for guard events.
        text: The sentence for the person; empty unless the type is `shadow.update`.
        data: The validated object of a branch with a schema.
        reason: Why it was skipped, shed or failed; for guard events the report's message.
        thread: LangGraph's thread id.
        namespace: Checkpoint namespace of the agent that caused it.
        node: The node that called the model.
        step: LangGraph's step of that call, when known.
        tool_call_ids: The tool batch that caused it, in call order.
        lag_ms: Milliseconds from the end of the tool batch to this event.
        run_id: The branch's own run, when it is traced.
        shadow_of_run: The run of the model call that asked for the tool batch.
    """

    model_config = ConfigDict(frozen=True)

    type: EventType
    branch: str = ""
    text: str = ""
    data: dict[str, Any] | None = None
    reason: str = ""
    thread: str = ""
    namespace: str = ""
    node: str = ""
    step: int | None = None
    tool_call_ids: tuple[str, ...] = ()
    lag_ms: float | None = None
    run_id: str | None = None
    shadow_of_run: str | None = None

    def wire(self) -> dict[str, Any]:
        """The event as a plain JSON-able dict, as it appears on `stream_mode="custom"`."""
        return self.model_dump(mode="json", exclude_none=True)
