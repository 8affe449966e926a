"""Metrics: the table of their names, and the text that `GET /metrics` answers, in OpenMetrics 1.0.

What begins with `holdfast_db_` is of the whole database, whoever is asked; all else is of the process that answers.
Counters only grow: of a name, the first `MOST_SERIES` series by their labels are shown, and the rest is added up under
`other`, so that none goes down when another comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from holdfast.figures import BOUNDS, Histogram

MEDIA_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
MOST_SERIES = 500
OTHER = "other"

Labels: TypeAlias = tuple[str, ...]

SHOWN_BINS: Sequence[int] = range(0, len(BOUNDS), 4)
"""Up to which bins of a histogram a bucket goes: four times as long as the one before, from a millisecond on."""


@dataclass(frozen=True, slots=True)
class Metric:
    """What is measured: the name, what it means, and the names of its labels."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    meaning: str
    labels: Labels = ()
    unit: str = ""

    @property
    def most(self) -> int:
        """How many combinations of labels are shown."""
        return MOST_SERIES // (len(SHOWN_BINS) + 1) if self.kind == "histogram" else MOST_SERIES


OF_KIND = ("queue", "task")
STARTED = Metric("holdfast_db_attempts_started", "counter", "Attempts that workers have begun.", OF_KIND)
ENDED = Metric("holdfast_db_attempts", "counter", "Attempts that have ended, by outcome.", (*OF_KIND, "outcome"))
WAIT = Metric(
    "holdfast_db_wait_seconds",
    "histogram",
    "How long jobs were ready before an attempt claimed them.",
    OF_KIND,
    "seconds",
)
RUN = Metric("holdfast_db_run_seconds", "histogram", "How long attempts ran.", OF_KIND, "seconds")
READY = Metric("holdfast_db_ready", "gauge", "Jobs that could be claimed now; counted up to a bound.", ("queue",))
OLDEST = Metric(
    "holdfast_db_oldest_ready_seconds",
    "gauge",
    "How long the next job of a queue has been ready.",
    ("queue",),
    "seconds",
)
SCHEDULED = Metric("holdfast_db_scheduled", "gauge", "Jobs that wait for their time.", ("queue",))
RUNNING = Metric("holdfast_db_running", "gauge", "Jobs that run.", ("queue",))
SLOTS = Metric("holdfast_db_slots", "gauge", "Slots of the living workers that serve a queue.", ("queue",))
PAUSED = Metric("holdfast_db_queue_paused", "gauge", "1 for a paused queue, 0 for others.", ("queue",))
IN_LANES = Metric("holdfast_db_in_lanes", "gauge", "Jobs behind the first of their lanes.")
STUCK = Metric("holdfast_db_stuck", "gauge", "Failed and paused jobs, which wait for a person.")
LANES_HALTED = Metric("holdfast_db_lanes_halted", "gauge", "Lanes whose first job has failed or is paused.")
OPEN_CHAINS = Metric("holdfast_db_open_chains", "gauge", "Chains that have not ended.")
WORKERS = Metric("holdfast_db_workers", "gauge", "Living workers.")
SAMPLED = Metric("holdfast_db_sample_age_seconds", "gauge", "How old the gauges of the queues are.", (), "seconds")
REQUESTS = Metric(
    "holdfast_http_requests",
    "counter",
    "Requests that this process has answered, by operation and class of status.",
    ("operation", "status"),
)
STREAMS = Metric("holdfast_http_streams", "gauge", "Streams that are open in this process.")

METRICS: tuple[Metric, ...] = (
    *(STARTED, ENDED, WAIT, RUN),
    *(READY, OLDEST, SCHEDULED, RUNNING, SLOTS, PAUSED),
    *(IN_LANES, STUCK, LANES_HALTED, OPEN_CHAINS, WORKERS, SAMPLED),
    *(REQUESTS, STREAMS),
)
"""All of them, in the order in which they are answered."""

Values: TypeAlias = Mapping[Any, float | Histogram]
"""What was measured, by the values of the labels."""


def openmetrics(measured: Mapping[Metric, Values]) -> str:
    """Write what was measured, in the order of the table."""
    lines = [line for metric in METRICS if metric in measured for line in _family(metric, measured[metric])]
    return "\n".join([*lines, "# EOF", ""])


def _family(metric: Metric, values: Values) -> Iterator[str]:
    yield f"# TYPE {metric.name} {metric.kind}"
    if metric.unit:
        yield f"# UNIT {metric.name} {metric.unit}"
    yield f"# HELP {metric.name} {metric.meaning}"
    for labels, value in _bounded(metric, values):
        named = list(zip(metric.labels, labels, strict=True))
        if isinstance(value, Histogram):
            yield from _buckets(metric.name, named, value)
        else:
            total = "_total" if metric.kind == "counter" else ""
            yield f"{metric.name}{total}{_labels(named)} {_number(value)}"


def _bounded(metric: Metric, values: Values) -> list[tuple[Labels, float | Histogram]]:
    """Give at most so many series, in their order; the last one has what the others come to."""
    found = sorted(values.items())
    if len(found) <= metric.most:
        return found
    shown = dict(found[: metric.most - 1])
    rest = [value for _, value in found[metric.most - 1 :]]
    other = (OTHER,) * len(metric.labels)
    if other in shown:
        rest.append(shown[other])
    shown[other] = _together(metric)(rest)
    return list(shown.items())


def _together(metric: Metric) -> Callable[[Iterable[Any]], float | Histogram]:
    if metric.kind == "histogram":
        return _sum_of_histograms
    return max if metric in (OLDEST, PAUSED) else sum


def _sum_of_histograms(several: Iterable[Histogram]) -> Histogram:
    found = Histogram()
    for each in several:
        found.update(each)
    return found


def _buckets(name: str, labels: Sequence[tuple[str, str]], histogram: Histogram) -> Iterator[str]:
    count, last = 0, -1
    for upto in SHOWN_BINS:
        count += sum(histogram[each] for each in range(last + 1, upto + 1))
        last = upto
        yield f"{name}_bucket{_labels([*labels, ('le', _number(BOUNDS[upto] / 1000))])} {count}"
    yield f"{name}_bucket{_labels([*labels, ('le', '+Inf')])} {histogram.total()}"


def _labels(labels: Sequence[tuple[str, str]]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"


def _escaped(value: str) -> str:
    r"""Write the value of a label.

    >>> _escaped('a "b"\\c')
    'a \\"b\\"\\\\c'
    """
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
