"""What a specialist raises: it is part of the graph, so what goes wrong with it is not hidden."""

from __future__ import annotations

from langgraph_shadow.errors import ShadowError


class SpecialistError(ShadowError):
    """A specialist could not answer.

    Attributes:
        specialist: Its name.
        problem: What was wrong, one sentence without a full stop.
        remedy: What to do.
    """

    def __init__(self, specialist: str, problem: str, *, remedy: str) -> None:
        super().__init__(f"specialist {specialist!r}: {problem}. {remedy}")
        self.specialist = specialist
        self.problem = problem
        self.remedy = remedy


class ToolNotAllowedError(SpecialistError):
    """A specialist asked for a tool that is not its own; nothing was executed.

    Attributes:
        tool: The tool that it asked for.
        own: The tools that it may call.
    """

    def __init__(self, specialist: str, tool: str, *, own: tuple[str, ...]) -> None:
        may = f"it may call {', '.join(own)}" if own else "it has no tools"
        super().__init__(
            specialist,
            f"it asked for the tool {tool!r}, but {may}",
            remedy=(
                "Give it the tool, or serve the model where `structured_outputs` is obeyed (vLLM), "
                "which leaves it no other call."
            ),
        )
        self.tool = tool
        self.own = own
