"""Rounds: everything that is measured takes its turn in each of them.

A machine grows slower and faster while it is measured. What ran in the same second suffered the same, so a comparison
is the median of the ratios round by round, not the ratio of two medians.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TypeAlias

Seconds: TypeAlias = float


class Dropout(Exception):
    """An entrant cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Entrant:
    """Something that is measured: *run* does its work *count* times and tells how long that took."""

    name: str
    count: int
    run: Callable[[int], Seconds]


@dataclass(frozen=True, slots=True)
class Spread:
    """The middle of some values, and the quarter that lies on either side of it."""

    low: float
    middle: float
    high: float


def timed(work: Callable[[int], object]) -> Callable[[int], Seconds]:
    """Time a blocking *work*."""

    def run(count: int) -> Seconds:
        started = time.perf_counter()
        work(count)
        return time.perf_counter() - started

    return run


def timed_async(work: Callable[[int], Awaitable[object]], runner: asyncio.Runner) -> Callable[[int], Seconds]:
    """Time an async *work*, always in the event loop of *runner*."""

    async def timed_work(count: int) -> Seconds:
        started = time.perf_counter()
        await work(count)
        return time.perf_counter() - started

    return lambda count: runner.run(timed_work(count))


def take_turns(entrants: Sequence[Entrant], rounds: int) -> dict[str, list[float]]:
    """Give the rates per second of each entrant, round by round; the first round only warms up.

    Who drops out is told of, and has no rates.
    """
    rates: dict[str, list[float]] = {each.name: [] for each in entrants}
    for number in range(rounds + 1):
        for each in entrants:
            if each.name not in rates:
                continue
            try:
                seconds = each.run(each.count)
            except Dropout as error:
                print(f"{each.name} dropped out: {error}", flush=True)
                del rates[each.name]
                continue
            if number > 0:
                rates[each.name].append(each.count / seconds)
    return rates


def ratios(rates: Mapping[str, Sequence[float]], one: str, other: str) -> list[float]:
    """Divide the rates of *one* by those of *other*, round by round."""
    return [ours / theirs for ours, theirs in zip(rates[one], rates[other], strict=True)]


def spread(values: Sequence[float]) -> Spread:
    """Find the middle half of *values*."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Spread(low, median(values), high)
