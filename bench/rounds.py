"""Rounds: everything that is measured takes its turn in each of them.

A machine grows slower and faster while it is measured. What ran in the same second suffered the same, so a comparison
is the median of the ratios round by round, not the ratio of two medians.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median, quantiles
from typing import Any

from bench.meter import Cost, Meter


class Dropout(Exception):
    """An entrant cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """Something that is measured: *run* does its work *count* times, and resets the meter if it has to prepare that."""

    name: str
    count: int
    run: Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some values, and the quarter that lies on either side of it."""

    low: float
    middle: float
    high: float


def awaited(work: Callable[[int], Coroutine[Any, Any, object]], runner: asyncio.Runner) -> Callable[[int], object]:
    """Make a blocking work of an async one, always in the event loop of *runner*."""
    return lambda count: runner.run(work(count))


def take_turns(entrants: Sequence[Entrant], rounds: int, meter: Meter) -> dict[str, list[Cost]]:
    """Give what a job costs each entrant, round by round; the first round only warms up.

    Who drops out is told of, and has no costs.
    """
    costs: dict[str, list[Cost]] = {each.name: [] for each in entrants}
    for number in range(rounds + 1):
        for each in entrants:
            if each.name not in costs:
                continue
            try:
                cost = meter.measure(partial(each.run, each.count))
            except Dropout as error:
                print(f"{each.name} dropped out: {error}", flush=True)
                del costs[each.name]
                continue
            if number > 0:
                costs[each.name].append(cost.of_each(each.count))
    return costs


def ratios(one: Sequence[float], other: Sequence[float]) -> list[float]:
    """Divide what *other* needs by what *one* needs, round by round: so many times as fast is *one*."""
    return [theirs / ours for ours, theirs in zip(one, other, strict=True) if ours]


def spread(values: Sequence[float]) -> Spread:
    """Find the middle half of *values*."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Spread(low, median(values), high)
