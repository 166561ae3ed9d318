"""One picture per benchmark; needs matplotlib, the extra `bench`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph_shadow.bench.report import Report, Row

INSTALL = "pip install 'langgraph-shadow[bench]'"


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def save(report: Report, folder: Path) -> Path | None:
    """Draw a report to `NAME.png`; None when there is nothing to draw or nothing to draw with."""
    draw = _DRAWINGS.get(report.bench)
    if draw is None or not report.rows or not available():
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # without pyplot: no window system, no global state, usable in any thread
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure, report.rows)
    server = ", ".join(sorted({str(r["model"]) for r in report.rows if r.get("model")}))
    where = f"{report.machine.get('cores')} cores"
    figure.suptitle(f"{report.bench}: {server or report.server.get('model', 'no server')}, {where}")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.bench}.png"
    figure.savefig(path, dpi=110)
    return path


def _cost(figure: Any, rows: list[Row]) -> None:
    """Computed prompt tokens per arm, one group of bars per input."""
    inputs = list(dict.fromkeys(row["input"] for row in rows))
    for axis, source in zip(figure.subplots(1, len(inputs), squeeze=False)[0], inputs, strict=True):
        mine = [row for row in rows if row["input"] == source]
        bars = axis.barh([row["arm"] for row in mine], [row["computed"] for row in mine])
        axis.bar_label(bars, [f"{row['computed_ratio']:.2f}×" for row in mine], padding=3)
        axis.set(title=source, xlabel="prompt tokens computed")
        axis.invert_yaxis()
        axis.set_xlim(right=1.2 * max(row["computed"] for row in mine))


def _ttft(figure: Any, rows: list[Row]) -> None:
    """Time to the first token over the trunk's length, with the limits of the same run."""
    axis = figure.subplots()
    lengths = [row["trunk_tokens"] for row in rows]
    for name, label, style in (
        ("cold_ms", "nothing cached", "k:"),
        ("unaligned_ms", "unaligned (tools left out)", "C3o-"),
        ("aligned_ms", "aligned", "C0o-"),
        ("full_ms", "everything cached", "k--"),
    ):
        axis.plot(lengths, [row[name] for row in rows], style, label=label)
    axis.set(xlabel="tokens of trunk", ylabel="time to first token, ms", ylim=(0, None))
    axis.legend()


def _harm(figure: Any, rows: list[Row]) -> None:
    """The orchestrator's wall time against no shadow, by load and arm."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    arms = list(dict.fromkeys(row["arm"] for row in rows if row["launch"]))
    axis = figure.subplots()
    for arm in arms:
        found = {row["case"]: row["wall_ratio"] for row in rows if row["arm"] == arm}
        shown = [(place, found[case]) for place, case in enumerate(cases) if case in found]
        axis.plot(*zip(*shown, strict=True), "o", label=arm)
    axis.axhline(1, color="k", linewidth=0.8)
    axis.set_xticks(range(len(cases)), [c.replace(", ", "\n") for c in cases], fontsize=6)
    axis.set(ylabel="wall time / without shadows")
    axis.legend(fontsize=7)


def _prediction(figure: Any, rows: list[Row]) -> None:
    """Every branch that was sent: on the diagonal, predicted is cached."""
    axis = figure.subplots()
    for size in sorted({row["block_size"] for row in rows}):
        sent = [r for r in rows if r["block_size"] == size and r["cached"] is not None]
        predicted, cached = [r["predicted"] for r in sent], [r["cached"] for r in sent]
        axis.plot(predicted, cached, ".", label=f"blocks of {size}: {len(sent)} branches")
    axis.axline((0, 0), slope=1, color="k", linewidth=0.8)
    axis.set(xlabel="tokens predicted", ylabel="tokens cached")
    axis.legend()


def _overhead(figure: Any, rows: list[Row]) -> None:
    """Time in the agent's path and memory, over the history's length."""
    times, memory = figure.subplots(1, 2)
    tokens = [row["history_tokens"] for row in rows]
    times.plot(tokens, [row["path_us"] / 1e3 for row in rows], "o-", label="in the agent's path")
    times.plot(tokens, [row["align_ms"] for row in rows], "o-", label="aligning, beside it")
    times.set(xlabel="tokens of history", ylabel="ms per tool batch", xscale="log", ylim=(0, None))
    times.legend()
    memory.plot(tokens, [row["retained_kib"] for row in rows], "o-")
    memory.set(xlabel="tokens of history", ylabel="KiB held", xscale="log", ylim=(0, None))


def _specialists(figure: Any, rows: list[Row]) -> None:
    """Computed prompt tokens and time per hop over the context, one thread; dashed: role first."""
    tokens, times = figure.subplots(1, 2)
    fewest = min(row["threads"] for row in rows)
    styles = {"role first": "--", "role last": "-"}
    for place, agents in enumerate(sorted({row["agents"] for row in rows})):
        for arm, style in styles.items():
            mine = [
                r for r in rows if (r["agents"], r["threads"], r["arm"]) == (agents, fewest, arm)
            ]
            lengths = [row["context_tokens"] for row in mine]
            look = {"color": f"C{place}", "linestyle": style, "marker": "o"}
            label = f"{agents} agents, {arm}"
            tokens.plot(lengths, [row["computed"] for row in mine], label=label, **look)
            times.plot(lengths, [row["ttft_ms"] for row in mine], **look)
    tokens.set(xlabel="tokens of context", ylabel="prompt tokens computed", ylim=(0, None))
    times.set(xlabel="tokens of context", ylabel="time to first token per hop, ms", ylim=(0, None))
    tokens.legend(fontsize=7)


def _router(figure: Any, rows: list[Row]) -> None:
    """Shares of prompt tokens that were cached, by what the requests say of their session."""
    axis = figure.subplots()
    for shift, name, label in (
        (-0.2, "orchestrator_cached", "orchestrator, later calls"),
        (0.2, "branch_cached", "branches"),
    ):
        places = [place + shift for place in range(len(rows))]
        bars = axis.barh(places, [row[name] or 0 for row in rows], height=0.4, label=label)
        axis.bar_label(bars, [f"{row[name] or 0:.0%}" for row in rows], padding=3, fontsize=7)
    axis.set_yticks(range(len(rows)), [row["arm"] for row in rows])
    axis.set(xlabel="prompt tokens cached / prompt tokens", xlim=(0, 1.1))
    axis.invert_yaxis()
    axis.legend(fontsize=7)


def _pd(figure: Any, rows: list[Row]) -> None:
    """Time to the first token of later turns, and what of it is the prefill server's."""
    axis = figure.subplots()
    arms = [row["arm"].replace(", shadows", "\nshadows") for row in rows]
    bars = axis.barh(arms, [row["ttft_ms"] or 0 for row in rows], label="first token")
    axis.bar_label(bars, [f"{row['ttft_ms'] or 0:.0f} ms" for row in rows], padding=3, fontsize=7)
    axis.barh(arms, [row["prefill_ms"] or 0 for row in rows], height=0.4, label="of it prefill")
    axis.set(xlabel="later turns, ms", xlim=(0, 1.15 * max(row["ttft_ms"] or 1 for row in rows)))
    axis.tick_params(axis="y", labelsize=7)
    axis.invert_yaxis()
    axis.legend(fontsize=7)


_DRAWINGS: dict[str, Callable[[Any, list[Row]], None]] = {
    "cost": _cost,
    "ttft": _ttft,
    "harm": _harm,
    "prediction": _prediction,
    "overhead": _overhead,
    "specialists": _specialists,
    "router": _router,
    "pd": _pd,
}
