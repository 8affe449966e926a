"""The facts of events are those that the reference page names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.store.engine import CANCEL, FAIL, GIVE_BACK, PAUSE, RETRY, claim_one, come_due, run, settle
from tests.store.log_readers import LogReader
from tests.support.factories import greet
from tests.support.tables.event_facts import FACTS
from tests.support.ways import Way


@pytest.mark.source("PQ-36", "PQ-37")
@pytest.mark.parametrize("way", ["sqlite-async", "postgres-async"], indirect=True)
async def test_an_event_says_what_the_reference_page_says_and_nothing_else(way: Way) -> None:
    reader = await LogReader.from_now(way)
    who: dict[str, Any] = {"by": "Ada", "why": "to see"}

    for outcome in (RETRY, GIVE_BACK, FAIL, PAUSE, CANCEL):
        chain = await way.face.start(greet(name="Ada"), lane="a")
        await run(way, outcome)
        await come_due(way)
        await way.face.cancel(chain, **who)
    steered = await way.face.start(greet(name="Bob"), delay=60)
    await way.face.reschedule(steered, after=120, **who)
    await way.face.pause(steered, **who)
    await way.face.resume(steered, **who)
    await way.face.trigger(steered, **who)
    job = await claim_one(way)
    await way.face.pause(steered, **who)
    await way.face.cancel(steered, **who)
    await settle(way, (job.token, CANCEL))
    await way.face.retry(steered, **who)
    await way.face.start_again(steered, **who)
    await way.face.delete(await way.face.start(greet(name="Eve")))
    await way.hf.lane("b").pause(**who)
    await way.hf.lane("b").resume(**who)
    await way.hf.queue("sums").pause(**who)
    await way.hf.queue("sums").resume(**who)

    told = {(event.name, word) for event in await reader.events() for word in event.facts}
    assert {word for _, word in told} >= {"by", "reason", "error", "worker", "again", "lane", "queue", "id"}
    assert not [(name, word) for name, word in told if word not in re.findall(r"`(\w+)`", FACTS[name])]
