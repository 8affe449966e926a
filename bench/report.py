"""The table: what was measured, beside what, the ratio, and what we aim for.

The ratio is by the clock and, as other work on the machine does not move that, by CPU: how many times as much the other
uses for a job, client and server together. A mark behind each says whether the target is met. Microseconds of CPU are
shown as those of the client + those of the server.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from bench.meter import Cost
from bench.rounds import Spread, ratios, spread

CPU = "CPU µs"
HEADER = ("what", "per second", CPU, "beside", "per second", CPU, "ratio", "middle half", "by CPU", "", "target", "")
NUMBERS = ("per second", CPU, "ratio", "by CPU", "target")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One line: the entrant *ours* beside the entrant *other*; *target* is the least ratio, None if there is none."""

    ours: str
    other: str
    target: float | None = None


def table(comparisons: Sequence[Comparison], costs: Mapping[str, Sequence[Cost]]) -> str:
    """Write the lines of which both sides were measured, as Markdown."""
    measured = [each for each in comparisons if each.ours in costs and each.other in costs]
    return grid(HEADER, [line(each, costs) for each in measured], NUMBERS)


def grid(header: Sequence[str], lines: Sequence[Sequence[str]], numbers: Collection[str]) -> str:
    """Write *lines* under *header* as Markdown; columns whose heading is among *numbers* stand to the right."""
    widths = [max(len(cells[column]) for cells in (header, *lines)) for column in range(len(header))]
    right = [name in numbers for name in header]
    rule = [
        "-" * (width - 1) + ":" if is_number else "-" * width for width, is_number in zip(widths, right, strict=True)
    ]
    return "\n".join(_row(cells, widths, right) for cells in (header, rule, *lines))


def line(comparison: Comparison, costs: Mapping[str, Sequence[Cost]]) -> tuple[str, ...]:
    """Write the cells of one comparison."""
    ours, other = costs[comparison.ours], costs[comparison.other]
    ratio = spread(ratios([each.seconds for each in ours], [each.seconds for each in other]))
    by_cpu = spread(ratios([each.cpu for each in ours], [each.cpu for each in other]) or [0.0])
    target = "" if comparison.target is None else f"≥ {comparison.target:g}"
    return (
        comparison.ours,
        rate(ours),
        cpu(ours),
        comparison.other,
        rate(other),
        cpu(other),
        f"{ratio.middle:.2f}",
        f"{ratio.low:.2f} to {ratio.high:.2f}",
        f"{by_cpu.middle:.2f}",
        verdict(by_cpu, comparison.target),
        target,
        verdict(ratio, comparison.target),
    )


def verdict(ratio: Spread, target: float | None) -> str:
    """Mark whether the target is met."""
    if target is None:
        return ""
    return "✓" if ratio.middle >= target else "✗"


def rate(costs: Sequence[Cost]) -> str:
    """Write how many are done in a second."""
    return f"{median(1 / each.seconds for each in costs):,.0f}"


def cpu(costs: Sequence[Cost]) -> str:
    """Write the microseconds of CPU, of the client and of the server; a dash for a server that is not or not seen."""
    servers = [each.server for each in costs if each.server is not None]
    return f"{_micro([each.client for each in costs])} + {_micro(servers) if servers else '-'}"


def _micro(seconds: Sequence[float]) -> str:
    middle = median(seconds) * 1e6
    return f"{middle:,.1f}" if middle < 10 else f"{middle:,.0f}"


def _row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = [
        cell.rjust(width) if is_number else cell.ljust(width)
        for cell, width, is_number in zip(cells, widths, right, strict=True)
    ]
    return f"| {' | '.join(padded)} |"
