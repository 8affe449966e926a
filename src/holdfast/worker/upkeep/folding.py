"""Keeps figures: folds what workers have counted, deletes what is old, takes samples. Every worker does; no leader.

A worker takes samples only while it has something to count: who looks at an idle queue takes one himself, and an idle
process must not issue sixteen statements a minute for nobody.
"""

from __future__ import annotations

import logging

from holdfast.client.insight import sampled
from holdfast.database.tx import Store
from holdfast.logging import level_beside, reason_of, say
from holdfast.runtime import Runtime
from holdfast.store.insight import tallies
from holdfast.worker.tally import Tally

PERIOD_SECONDS = 60.0
SAMPLE_MS = 50_000  # a little less, or the next round would come a moment too soon for one

logger = logging.getLogger(__name__)


async def keep_figures(store: Store, runtime: Runtime, tally: Tally) -> None:
    """Go round until cancelled; take samples while *tally* counts."""
    written = tally.written
    while True:
        await runtime.sleep(PERIOD_SECONDS)
        try:
            await keep_once(store)
            if tally.written != written:
                written = tally.written
                await sampled(store, SAMPLE_MS)
        except Exception as error:  # noqa: BLE001 - no job depends on it, and the next round comes
            say(logger, "figures_not_written", level=level_beside(error), trace=error, reason=reason_of(error))


async def keep_once(store: Store) -> None:
    """Fold and delete what there is, a bounded part in each transaction."""
    for width in await store.read(tallies.due):
        while await (store.run(tallies.fold) if width == tallies.OPEN else store.run(tallies.expire, width)):
            pass
