"""How figures are written for those outside: how everything stands, and what happened over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import BaseModel

from holdfast.figures import Counts, Figure, Overview, Percentiles, QueueFigures, Series
from holdfast.times import instant_text
from holdfast.wire.objects import Instant, MaybeInstant, writer_of


class FigureObject(BaseModel):
    """A value that was read at some moment; unless it is exact, it is at least so much."""

    value: float
    at: Instant
    is_exact: bool


class QueueFiguresObject(BaseModel):
    """How a queue stands."""

    name: str
    ready: FigureObject
    oldest_ready: FigureObject | None
    scheduled: FigureObject
    running: FigureObject
    slots: FigureObject
    is_paused: bool


class OverviewObject(BaseModel):
    """How everything stands, by the last sample."""

    at: str
    queues: list[QueueFiguresObject]
    in_lanes: FigureObject
    stuck: FigureObject
    halted_lanes: FigureObject
    open_chains: FigureObject
    workers: FigureObject
    slots: FigureObject


class CountsObject(BaseModel):
    """How many attempts began, and how many ended in which way."""

    started: int
    completed: int
    failed: int
    retried: int
    lost: int
    paused: int
    cancelled: int


class PercentilesObject(BaseModel):
    """How long it took, in seconds; null if it never happened."""

    p50: float | None
    p95: float | None
    p99: float | None


class CountsSeries(BaseModel):
    """The numbers of attempts, one for each interval."""

    started: list[int]
    completed: list[int]
    failed: list[int]
    retried: list[int]
    lost: list[int]
    paused: list[int]
    cancelled: list[int]


class PercentilesSeries(BaseModel):
    """Seconds, one for each interval; null where nothing happened."""

    p50: list[float | None]
    p95: list[float | None]
    p99: list[float | None]


class TotalObject(BaseModel):
    """The figures of a whole range."""

    counts: CountsObject
    wait: PercentilesObject
    run: PercentilesObject


class SeriesObject(BaseModel):
    """Figures of attempts over time, by intervals of so many seconds, each beginning at a time; oldest first."""

    width: int
    at: list[str]
    series: CountsSeries
    wait: PercentilesSeries
    run: PercentilesSeries
    open_from: MaybeInstant
    total: TotalObject


figure_object = writer_of(FigureObject)


def queue_figures_object(queue: QueueFigures) -> dict[str, Any]:
    """Write how a queue stands."""
    return {name: figure_object(each) if isinstance(each, Figure) else each for name, each in queue._asdict().items()}


def overview_object(overview: Overview) -> dict[str, Any]:
    """Write how everything stands."""
    in_all = {name: figure_object(each) for name, each in overview._asdict().items() if isinstance(each, Figure)}
    return {"at": instant_text(overview.at), "queues": list(map(queue_figures_object, overview.queues)), **in_all}


def series_object(series: Series) -> dict[str, Any]:
    """Write what happened over time."""
    total = series.total
    return {
        "width": series.width,
        "at": [instant_text(each) for each in series.at],
        "series": _columns(Counts._fields, series.counts),
        "wait": _columns(Percentiles._fields, series.wait),
        "run": _columns(Percentiles._fields, series.run),
        "open_from": instant_text(series.open_from),
        "total": {
            "counts": total.counts._asdict(),
            "wait": total.wait._asdict(),
            "run": total.run._asdict(),
        },
    }


def _columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    several = list(rows)
    return {name: [row[at] for row in several] for at, name in enumerate(names)}
