"""The table: what was measured, beside what, the ratio, and what we aim for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.rounds import Spread, ratios, spread

HEADER = ("what", "per second", "beside", "per second", "ratio", "middle half", "target", "")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line: the entrant *ours* beside the entrant *other*; *target* is the least ratio, None if there is none."""

    ours: str
    other: str
    target: float | None = None


def table(comparisons: Sequence[Comparison], rates: Mapping[str, Sequence[float]]) -> str:
    """Write the lines of which both sides were measured, as Markdown."""
    measured = [each for each in comparisons if each.ours in rates and each.other in rates]
    lines = [HEADER, *(line(each, rates) for each in measured)]
    widths = [max(len(cells[column]) for cells in lines) for column in range(len(HEADER))]
    rule = ["-" * widths[0], *(_rule(name, width) for name, width in zip(HEADER[1:], widths[1:], strict=True))]
    return "\n".join(_row(cells, widths) for cells in (HEADER, rule, *lines[1:]))


def line(comparison: Comparison, rates: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
    """Write the cells of one comparison."""
    ratio = spread(ratios(rates, comparison.ours, comparison.other))
    target = "" if comparison.target is None else f"≥ {comparison.target:g}"
    return (
        comparison.ours,
        whole(spread(rates[comparison.ours])),
        comparison.other,
        whole(spread(rates[comparison.other])),
        f"{ratio.middle:.2f}",
        f"{ratio.low:.2f} to {ratio.high:.2f}",
        target,
        verdict(ratio, comparison.target),
    )


def verdict(ratio: Spread, target: float | None) -> str:
    """Mark whether the target is met."""
    if target is None:
        return ""
    return "✓" if ratio.middle >= target else "✗"


def whole(rate: Spread) -> str:
    """Write a rate."""
    return f"{rate.middle:,.0f}"


def _rule(name: str, width: int) -> str:
    return "-" * (width - 1) + ":" if name in ("per second", "ratio", "target") else "-" * width


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    numbers = {index for index, name in enumerate(HEADER) if name in ("per second", "ratio", "target")}
    padded = [
        cell.rjust(width) if index in numbers else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return f"| {' | '.join(padded)} |"
