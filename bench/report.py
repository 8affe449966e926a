"""The table: what was measured, beside what, the ratio, and what we aim for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bench.rounds import Spread, ratios, spread

HEADER = ("what", "per second", "beside", "per second", "ratio", "middle half", "target", "")
NUMBERS = ("per second", "ratio", "target")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line: the entrant *ours* beside the entrant *other*; *target* is the least ratio, None if there is none."""

    ours: str
    other: str
    target: float | None = None


def table(comparisons: Sequence[Comparison], rates: Mapping[str, Sequence[float]]) -> str:
    """Write the lines of which both sides were measured, as Markdown."""
    measured = [each for each in comparisons if each.ours in rates and each.other in rates]
    return grid(HEADER, [line(each, rates) for each in measured], NUMBERS)


def grid(header: Sequence[str], lines: Sequence[Sequence[str]], numbers: Collection[str]) -> str:
    """Write *lines* under *header* as Markdown; columns whose heading is among *numbers* stand to the right."""
    widths = [max(len(cells[column]) for cells in (header, *lines)) for column in range(len(header))]
    right = [name in numbers for name in header]
    rule = [
        "-" * (width - 1) + ":" if is_number else "-" * width for width, is_number in zip(widths, right, strict=True)
    ]
    return "\n".join(_row(cells, widths, right) for cells in (header, rule, *lines))


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


def _row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if is_number else cell.ljust(width)
        for cell, width, is_number in zip(cells, widths, right, strict=True)
    ]
    return f"| {' | '.join(padded)} |"
