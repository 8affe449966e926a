"""Where the rule machine found the engine to do otherwise than the law; mended, each goes to the contract of its noun.

While one of these fails, the model follows the engine there (`world.UNMENDED`).
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from holdfast.store import reaping, steering
from holdfast.store.steering import Asked
from holdfast.store.tx import Tx
from tests.factories import greet, row_of
from tests.store.engine import admit, claim, claim_all, come_due
from tests.ways import Way


async def set_policy(tx: Tx, name: str, policy: str) -> None:
    """Write down what a task says of its jobs."""
    await tx.execute("UPDATE holdfast_task SET policy = :policy WHERE name = :name", name=name, policy=policy)


async def waiting(way: Way, *blockers: Any, key: str | None = None) -> UUID:
    """Start a job that waits, and have its blockers counted."""
    chain = await way.face.start(greet(name="Ada"), blockers=list(blockers), unique=key)
    await admit(way)
    return UUID(str(chain.id))


async def is_free(way: Way, key: str) -> bool:
    """Tell whether a start under *key* makes a new chain."""
    return not (await way.face.start(greet(name="Ada"), unique=key)).deduplicated


@pytest.mark.xfail(reason="reading (d): a lost lease is not given back, but settling gives back whatever is paused")
async def test_a_lost_job_that_is_paused_has_used_an_attempt(way: Way) -> None:
    await way.call(set_policy, "greet", '{"on_lost":"pause"}')
    chain = await way.face.start(greet(name="Ada"))
    await claim_all(way)

    await way.call(reaping.reap_dead, ["worker-1"])

    assert await row_of(way, chain.id, "status", "used") == ("paused", 1)


@pytest.mark.xfail(reason="I-28: admission takes every watched chain for one that is open again: it joins last")
async def test_a_blocker_joins_its_lane_before_one_that_was_started_later(way: Way) -> None:
    first = await way.face.start(greet(name="Ada"), lane="vm", delay=60)
    await waiting(way, first)
    await come_due(way)
    await way.face.start(greet(name="Bob"), lane="vm")

    (claimed,) = await claim(way)

    assert UUID(claimed.id) == first.id


@pytest.mark.xfail(reason="I-05: the key of a closed chain is taken, and nobody frees it")
async def test_retry_takes_no_key_for_a_dependent_that_was_cancelled_meanwhile(way: Way) -> None:
    blocker = await way.face.start(greet(name="Ada"))
    dependent = await waiting(way, blocker, key="k")
    await way.face.cancel(blocker)
    await way.face.cancel(dependent)

    await way.face.retry(blocker)

    await admit(way)
    assert await is_free(way, "k")


@pytest.mark.xfail(reason="I-05: the key of a chain that stays failed is taken, and nobody frees it")
async def test_retry_takes_no_key_for_who_failed_by_a_dependent_that_stays_failed(way: Way) -> None:
    blocker = await way.face.start(greet(name="Ada"))
    dependent = await waiting(way, blocker, key="k")
    await waiting(way, dependent, key="behind")
    await way.face.cancel(blocker)
    await admit(way)
    await way.face.start(greet(name="twin"), unique="k")

    await way.face.retry(blocker)

    await admit(way)
    assert await is_free(way, "behind")


@pytest.mark.xfail(reason="I-05: the key was taken for a dependent that is then never put back, and nobody frees it")
async def test_a_retry_that_is_taken_back_before_it_was_admitted_leaves_no_key_taken(way: Way) -> None:
    blocker = await way.face.start(greet(name="Ada"))
    await waiting(way, blocker, key="k")
    await way.face.cancel(blocker)
    await way.call(steering.retry, [blocker.id], Asked())  # as on a caller's connection: admission comes later

    await way.face.cancel(blocker)

    await admit(way)
    assert await is_free(way, "k")
