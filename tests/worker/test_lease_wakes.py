"""The thread that keeps leases is woken when it would come too late by itself, and not otherwise."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.database.sqlite.store import SqliteStore
from holdfast.runtime import Runtime
from holdfast.store.jobs.claiming import Token
from holdfast.worker.leases import HINTED_SECONDS, LOOK_SECONDS, LeaseKeeper

LEASE = 30.0


class CountingShell:
    """A shell that the test steps by hand, and that counts how often it is woken."""

    def __init__(self, step: Callable[[], float | None], name: str) -> None:
        self.wakes = 0

    def wake(self) -> None:
        """Count."""
        self.wakes += 1

    def stop(self) -> None:
        """Do nothing."""


class Bench:
    """Leases whose clock and thread are the test's."""

    def __init__(self, store: SqliteStore) -> None:
        self.now = 1_000.0
        runtime = replace(Runtime(), monotonic=lambda: self.now, stepper=CountingShell)
        self.leases = LeaseKeeper(store, runtime, lambda _: None, lambda _: None)
        self._seq = 0

    def claim(self, lease: float = LEASE) -> None:
        """Claim a job."""
        self._seq += 1
        self.leases.add({lease: [Token(self._seq, 1, "nonce")]}, self.now)

    def take_wakes(self) -> int:
        """Say how often the thread was woken since this was asked last."""
        shell = self.leases._stepper
        assert isinstance(shell, CountingShell)
        wakes, shell.wakes = shell.wakes, 0
        return wakes


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    store = SqliteStore(tmp_path / "jobs.db")
    await store.open()
    yield Bench(store)
    await store.close()


def test_the_first_lease_wakes_it_and_one_more_of_a_busy_worker_does_not(bench: Bench) -> None:
    bench.claim()
    assert bench.take_wakes() == 1
    assert bench.leases.step() == pytest.approx(LOOK_SECONDS)

    bench.now += 0.1
    bench.claim()

    assert bench.take_wakes() == 0


def test_a_lease_that_must_be_renewed_before_the_next_look_wakes_it(bench: Bench) -> None:
    bench.claim()
    bench.leases.step()
    bench.take_wakes()

    bench.claim(lease=LOOK_SECONDS)  # due after a third of that

    assert bench.take_wakes() == 1


def test_what_comes_while_it_looks_wakes_it_for_the_next_look(bench: Bench) -> None:
    bench.claim()
    bench.take_wakes()
    read = bench.leases._store.read_sync

    def meanwhile(*args: object, **kwargs: object) -> object:
        bench.claim()
        return read(*args, **kwargs)  # type: ignore[arg-type]

    bench.leases._store.read_sync = meanwhile  # type: ignore[method-assign, assignment]
    bench.leases.step()

    assert bench.take_wakes() == 1


def test_many_hints_wake_it_once_and_it_looks_a_quarter_of_a_second_after_its_last_look(bench: Bench) -> None:
    bench.claim()
    bench.leases.step()
    bench.take_wakes()

    bench.now += 0.05
    bench.leases.hint()
    assert bench.take_wakes() == 1
    assert bench.leases.step() == pytest.approx(HINTED_SECONDS - 0.05)

    for _ in range(10):
        bench.now += 0.01
        bench.leases.hint()
        bench.claim()

    assert bench.take_wakes() == 0


def test_a_hint_long_after_the_last_look_wakes_it_at_once(bench: Bench) -> None:
    bench.claim()
    bench.leases.step()
    bench.take_wakes()

    bench.now += 1.0
    bench.leases.hint()

    assert bench.take_wakes() == 1
    assert bench.leases.step() == pytest.approx(LOOK_SECONDS)
