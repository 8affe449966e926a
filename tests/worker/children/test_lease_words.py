"""What a worker tells its children of their leases: as long as it keeps them, and a little less than they last."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.database.sqlite.store import SqliteStore
from holdfast.runtime import Runtime
from holdfast.worker.leases import LeaseKeeper
from tests.worker.test_recovery import NoShell, Time, Witness, claim
from tests.worker.test_self_fence import SilentStore

LEASE, LATE, MARGIN = 6.0, 5.0, 1.0


class Keeper:
    """The leases of one job, stepped by hand, and what a child would be told of it at each word."""

    def __init__(self, store: SilentStore, time: Time) -> None:
        self.store = store
        self.time = time
        self.told: list[tuple[float, float]] = []
        world = replace(Runtime(), monotonic=lambda: time.machine, stepper=NoShell)
        heard = Witness()
        self.leases = LeaseKeeper(
            store,  # type: ignore[arg-type]
            world,
            heard.on_claim_states,
            heard.on_fenced,
            on_extended=self._kept,
        )

    async def begin(self) -> None:
        """Claim the job, and keep its lease."""
        (self._job,) = await claim(self.store)
        self._began = self.time.machine
        self.leases.add({LEASE: [self._job.token]}, self._began)
        self.leases.fence()

    def until(self) -> tuple[float, float]:
        """Give what would be told now, in seconds from the claim."""
        until = self.leases.good_until(self._job.token)
        assert until is not None
        return until[0] - self._began, until[1] - self._began

    def _kept(self) -> None:
        self.told.append(self.until())


@pytest.fixture(params=["postgres"])
async def keeper(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Keeper]:
    """The leases of a worker on one database."""
    time = Time()
    real = SqliteStore(tmp_path / "jobs.db", clock=lambda: round(time.database * 1000))
    await real.open()
    made = Keeper(SilentStore(real, request.param), time)
    await made.begin()
    yield made
    await real.close()


async def test_it_may_be_counted_on_until_the_worker_itself_would_not_and_is_given_up_before_it_ends(
    keeper: Keeper,
) -> None:
    late_at, fenced_at = keeper.until()

    assert late_at == LATE
    assert late_at < fenced_at < LEASE


async def test_each_renewal_is_told(keeper: Keeper) -> None:
    keeper.time.passes(2)
    keeper.leases.step()

    assert keeper.told == [(LATE + 2, LATE + 2 + MARGIN / 2)]


async def test_what_cannot_be_renewed_is_not_told_of(keeper: Keeper) -> None:
    keeper.store.error = OSError("the network is down")
    keeper.time.passes(LATE)
    keeper.leases.step()
    keeper.leases.fence()

    assert keeper.told == []


@pytest.mark.parametrize("keeper", ["sqlite"], indirect=True)
async def test_while_sqlites_right_to_write_is_waited_for_children_are_told_to_go_on(keeper: Keeper) -> None:
    """F-31."""

    def wait_for_the_right() -> None:
        keeper.time.passes(LATE - 2)
        seconds = keeper.leases.fence()
        assert seconds is not None
        keeper.time.passes(seconds)
        keeper.leases.fence()

    keeper.store.meanwhile = wait_for_the_right
    keeper.time.passes(2)
    keeper.leases.step()

    first, second, _ = keeper.told
    assert first == (LATE + MARGIN, LATE + MARGIN * 1.5)
    assert LATE + MARGIN < second[0] < first[1]


async def test_a_lease_that_is_not_kept_has_no_end(keeper: Keeper) -> None:
    keeper.leases.drop(keeper._job.token)

    assert keeper.leases.good_until(keeper._job.token) is None
