"""Handlers are stopped before their lease is over, also while a renewal has no answer (I-20)."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.database.sqlite.store import SqliteStore
from holdfast.runtime import Runtime
from holdfast.store.jobs.claiming import Claimed
from holdfast.worker import leases as keeping
from holdfast.worker.leases import LeaseKeeper
from tests.support.conditions import until
from tests.worker.test_recovery import FaultyStore, NoShell, Time, Witness, claim

LEASE = 6.0
LATE = 5.0  # a sixth before its end
SHORT_LEASE = 0.6


class SilentStore(FaultyStore):
    """A store whose renewals have no answer for as long as the test wants; it says of itself that it is *database*."""

    def __init__(self, store: SqliteStore, database: str) -> None:
        super().__init__(store)
        self.database = database
        self.meanwhile: Callable[[], object] = lambda: None

    def run_sync(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Let something happen first, then run it, or fail."""
        self.meanwhile()
        return super().run_sync(operation, *args, **kwargs)


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def database() -> str:
    return "postgres"


@pytest.fixture
async def store(tmp_path: Path, time: Time, database: str) -> AsyncIterator[SilentStore]:
    """A store whose clock is the test's."""
    real = SqliteStore(tmp_path / "jobs.db", clock=lambda: round(time.database * 1000))
    await real.open()
    yield SilentStore(real, database)
    await real.close()


def keep(store: SilentStore, time: Time, job: Claimed, seconds: float = LEASE) -> tuple[LeaseKeeper, Witness]:
    """Keep the lease of *job*; both threads stand still until the test calls their steps."""
    witness = Witness()
    runtime = replace(Runtime(), monotonic=lambda: time.machine, stepper=NoShell)
    leases = LeaseKeeper(store, runtime, witness.on_claim_states, witness.on_fenced)  # type: ignore[arg-type]
    leases.add({seconds: [job.token]}, time.machine)
    leases.fence()
    return leases, witness


async def test_a_handler_is_stopped_while_a_renewal_has_no_answer(store: SilentStore) -> None:
    (job,) = await claim(store, lease_ms=round(SHORT_LEASE * 1000))
    witness, answered = Witness(), threading.Event()
    store.meanwhile = answered.wait
    leases = LeaseKeeper(store, Runtime(), witness.on_claim_states, witness.on_fenced)  # type: ignore[arg-type]

    leases.add({SHORT_LEASE: [job.token]}, Runtime().monotonic())
    try:
        await until(lambda: witness.given_up == [job.token], "the handler is stopped", timeout=5)
        renewed = list(store.sent)
    finally:
        answered.set()
        leases.stop()

    assert "renew" not in renewed


@pytest.mark.source("DF-30")
async def test_it_is_stopped_when_the_margin_begins_and_not_before(store: SilentStore, time: Time) -> None:
    (job,) = await claim(store)
    leases, witness = keep(store, time, job)

    time.passes(LATE - 0.1)
    left = leases.fence()
    early = list(witness.given_up)
    time.passes(left or 0.0)
    nothing_ahead = leases.fence()

    assert early == []
    assert witness.given_up == [job.token]
    assert nothing_ahead is None


async def test_a_lease_that_was_given_up_and_renewed_is_watched_anew(store: SilentStore, time: Time) -> None:
    (job,) = await claim(store)
    leases, witness = keep(store, time, job)
    time.passes(LATE)
    leases.fence()

    leases.step()
    again = leases.fence()
    time.passes(again or 0.0)
    leases.fence()

    assert again == pytest.approx(LATE)
    assert witness.given_up == [job.token, job.token]


async def test_whoever_stood_still_asks_how_its_leases_stand_before_it_gives_them_up(
    store: SilentStore, time: Time
) -> None:
    (job,) = await claim(store)
    leases, witness = keep(store, time, job)

    time.passes(4 * LEASE)
    first = leases.fence()
    leases.step()
    time.passes(LEASE - LATE)
    leases.fence()

    assert first == pytest.approx(LEASE - LATE)
    assert witness.given_up == []


async def test_whoever_stood_still_and_has_no_answer_gives_them_up(store: SilentStore, time: Time) -> None:
    (job,) = await claim(store)
    leases, witness = keep(store, time, job)

    time.passes(4 * LEASE)
    left = leases.fence()
    time.passes(left or 0.0)
    leases.fence()

    assert witness.given_up == [job.token]


async def test_a_claim_that_has_waited_long_is_renewed_first(store: SilentStore, time: Time) -> None:
    (job,) = await claim(store)
    witness = Witness()
    runtime = replace(Runtime(), monotonic=lambda: time.machine, stepper=NoShell)
    leases = LeaseKeeper(store, runtime, witness.on_claim_states, witness.on_fenced)  # type: ignore[arg-type]

    leases.add({LEASE: [job.token]}, time.machine - LATE)
    left = leases.fence()
    early = list(witness.given_up)
    time.passes(left or 0.0)
    leases.fence()

    assert early == []
    assert witness.given_up == [job.token]


@pytest.mark.parametrize("database", ["sqlite"])
async def test_a_renewal_that_waits_for_sqlites_right_to_write_is_no_loss(store: SilentStore, time: Time) -> None:
    """F-31."""
    (job,) = await claim(store)
    leases, witness = keep(store, time, job)
    may_complete = []

    def wait_for_the_right() -> None:
        time.passes(LATE - 2)
        leases.fence()
        may_complete.append(leases.may_complete(job.token))

    store.meanwhile = wait_for_the_right
    time.passes(2)
    leases.step()

    assert may_complete == [True]
    assert witness.given_up == []


@pytest.mark.parametrize("database", ["sqlite"])
async def test_a_renewal_that_got_the_right_to_write_late_is_followed_by_another(
    store: SilentStore, time: Time
) -> None:
    (job,) = await claim(store)
    leases, witness = keep(store, time, job)
    time.passes(2)
    store.meanwhile = lambda: time.passes(LATE)

    soon = leases.step()
    leases.fence()
    store.meanwhile = lambda: None
    time.passes(soon or 0.0)
    leases.step()
    time.passes(LEASE - LATE)
    leases.fence()

    assert soon is not None
    assert soon < LEASE - LATE
    assert witness.given_up == []


@pytest.mark.parametrize("database", ["sqlite"])
async def test_what_was_claimed_while_a_renewal_waited_to_write_is_renewed_and_not_given_up(
    store: SilentStore, time: Time
) -> None:
    first, second = await claim(store), await claim(store)
    leases, witness = keep(store, time, first[0])

    def claims_meanwhile() -> None:
        store.meanwhile = lambda: None
        leases.add({LEASE: [second[0].token]}, time.machine)
        time.passes(LATE + 0.5)

    time.passes(LEASE / 3)
    store.meanwhile = claims_meanwhile
    leases.step()
    leases.fence()
    leases.step()
    leases.fence()

    assert witness.given_up == []
    assert leases.may_complete(second[0].token)


@pytest.mark.parametrize("database", ["sqlite"])
async def test_what_has_just_been_renewed_is_not_given_up_by_the_other_thread(
    store: SilentStore, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = await claim(store)
    leases, witness = keep(store, time, job)
    monkeypatch.setattr(keeping, "reach", lambda point: leases.fence() if point == "renew.after" else None)

    def waits_to_write() -> None:
        for _ in range(10):
            time.passes(LATE / 10)
            leases.fence()

    time.passes(LEASE / 3)
    store.meanwhile = waits_to_write
    leases.step()

    assert witness.given_up == []
