"""`/metrics`: what a Prometheus scrapes, in the text of OpenMetrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import Response

from holdfast import metrics
from holdfast.figures import Figure, Overview, Tallied
from holdfast.http.endpoint import Inquiry, NoBody, NoQuery
from holdfast.metrics import MEDIA_TYPE, Metric, Values, openmetrics
from holdfast.store.insight import tallies
from holdfast.store.insight.tallies import JobKind

OUTCOMES = ("completed", "failed", "retried", "lost", "paused", "cancelled")


async def read(ask: Inquiry[NoQuery, NoBody]) -> Response:
    """Give the metrics of the database and of this process, in the text of OpenMetrics."""
    totals = await ask.hf.store.read(tallies.totals)
    overview = await ask.hf.overview()
    measured: dict[Metric, Values] = {**of_totals(totals), **of_overview(overview)}
    age_ms = ask.hf._runtime.wall_ms() - overview.at.timestamp() * 1000
    measured[metrics.SAMPLED] = {(): max(0.0, age_ms / 1000)}
    measured[metrics.REQUESTS] = {(name, f"{status}xx"): n for (name, status), n in ask.service.answered.items()}
    measured[metrics.STREAMS] = {(): ask.service.streams.total}
    return Response(openmetrics(measured), media_type=MEDIA_TYPE)


def of_totals(totals: Mapping[JobKind, Tallied]) -> dict[Metric, Values]:
    """Give what was counted since the beginning, by queue and task."""
    kinds = totals.items()
    return {
        metrics.STARTED: {kind: each.counts.started for kind, each in kinds},
        metrics.ENDED: {(*kind, name): getattr(each.counts, name) for kind, each in kinds for name in OUTCOMES},
        metrics.WAIT: {kind: each.wait for kind, each in kinds},
        metrics.RUN: {kind: each.run for kind, each in kinds},
    }


def of_overview(overview: Overview) -> dict[Metric, Values]:
    """Give how everything stands, by queue and in all."""
    return {
        metrics.READY: _by_queue((each.name, each.ready) for each in overview.queues),
        metrics.OLDEST: _by_queue((each.name, each.oldest_ready) for each in overview.queues),
        metrics.SCHEDULED: _by_queue((each.name, each.scheduled) for each in overview.queues),
        metrics.RUNNING: _by_queue((each.name, each.running) for each in overview.queues),
        metrics.SLOTS: _by_queue((each.name, each.slots) for each in overview.queues),
        metrics.PAUSED: {(each.name,): int(each.is_paused) for each in overview.queues},
        metrics.IN_LANES: {(): overview.in_lanes.value},
        metrics.STUCK: {(): overview.stuck.value},
        metrics.LANES_HALTED: {(): overview.halted_lanes.value},
        metrics.OPEN_CHAINS: {(): overview.open_chains.value},
        metrics.WORKERS: {(): overview.workers.value},
    }


def _by_queue(figures: Iterable[tuple[str, Figure | None]]) -> dict[Any, float]:
    return {(name,): figure.value for name, figure in figures if figure is not None}
