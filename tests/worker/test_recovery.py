"""Who keeps a lease, who gives it up, and who takes over, on clocks that the test moves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from holdfast import Context, Holdfast, Reschedule, Retry
from holdfast.database.sqlite.file_locks import take_liveness_lock, take_of_the_dead
from holdfast.database.sqlite.store import SqliteStore
from holdfast.errors import Busy, Unavailable
from holdfast.models import Start
from holdfast.runtime import Runtime
from holdfast.store.chains import creation
from holdfast.store.jobs import claiming, reaping
from holdfast.store.jobs.claiming import Claimed, ClaimState, Token, Want
from holdfast.store.workers import LivenessLock, list_locks
from holdfast.worker.leases import LeaseKeeper
from holdfast.worker.upkeep.liveness_lock import LivenessLocks
from holdfast.worker.upkeep.reaper import Upkeep
from tests.conftest import SCHEMA
from tests.support.conditions import until
from tests.support.log_lines import named

LEASE_MS = 30_000


class Time:
    """A clock of the machine and one of the database, in seconds; both move together unless told otherwise."""

    def __init__(self) -> None:
        self.machine = 1_000.0
        self.database = 1_700_000_000.0

    def passes(self, seconds: float) -> None:
        """Move both clocks."""
        self.machine += seconds
        self.database += seconds


class NoShell:
    """A shell that the test steps by hand."""

    def __init__(self, step: Callable[[], float | None], name: str) -> None:
        self.step = step

    def wake(self) -> None:
        """Nothing happens by itself."""

    def stop(self) -> None:
        """Nothing is under way."""


class FaultyStore:
    """A store that fails as long as the test wants."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.error: Exception | None = None
        self.sent: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _check(self, operation: Any) -> None:
        self.sent.append(operation.__name__)
        if self.error is not None:
            raise self.error

    def run_sync(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it, or fail."""
        self._check(operation)
        return self._store.run_sync(operation, *args, **kwargs)

    def read_sync(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it, or fail."""
        self._check(operation)
        return self._store.read_sync(operation, *args, **kwargs)

    async def run(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it, or fail."""
        self._check(operation)
        return await self._store.run(operation, *args, **kwargs)

    async def read(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it, or fail."""
        self._check(operation)
        return await self._store.read(operation, *args, **kwargs)


class Witness:
    """Who is told of the leases."""

    def __init__(self) -> None:
        self.told: dict[Token, ClaimState] = {}
        self.given_up: list[Token] = []

    def on_claim_states(self, states: dict[Token, ClaimState]) -> None:
        """Remember how they stand."""
        self.told = states

    def on_fenced(self, tokens: list[Token]) -> None:
        """Remember what was given up."""
        self.given_up += tokens


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
async def store(tmp_path: Path, time: Time) -> AsyncIterator[FaultyStore]:
    """A store whose clock is the test's."""
    real = SqliteStore(tmp_path / "jobs.db", clock=lambda: round(time.database * 1000))
    await real.open()
    yield FaultyStore(real)
    await real.close()


@pytest.fixture
def world(time: Time) -> Runtime:
    return replace(Runtime(), monotonic=lambda: time.machine, stepper=NoShell)


async def claim(store: Any, count: int = 1, worker: str = "worker-aa", lease_ms: int = LEASE_MS) -> list[Claimed]:
    starts = [Start(id=uuid4(), task="t", input="{}", queue="default") for _ in range(count)]
    await store.run(creation.start, starts)
    return list(await store.run(claiming.claim, [Want("default", "t", lease_ms)], count, worker, f"nonce-{worker}"))


async def status_of(store: Any, job: Claimed) -> str:
    async def read(tx: Any) -> str:
        ((status,),) = await tx.fetch_all("SELECT status FROM holdfast_job WHERE seq = :seq", seq=job.token.seq)
        return str(status)

    return str(await store.read(read))


def keep(store: Any, world: Runtime, job: Claimed) -> tuple[LeaseKeeper, Witness]:
    witness = Witness()
    leases = LeaseKeeper(store, world, witness.on_claim_states, witness.on_fenced)
    leases.add({LEASE_MS / 1000: [job.token]}, world.monotonic())
    return leases, witness


@pytest.mark.source("JC-34", "TQ-13")
async def test_a_lease_is_renewed_every_third_of_it(store: FaultyStore, world: Runtime, time: Time) -> None:
    """I-21."""
    (job,) = await claim(store)
    leases, _ = keep(store, world, job)
    store.sent.clear()

    for _ in range(15):
        time.passes(2)
        leases.step()

    assert store.sent.count("renew") == 3
    assert await status_of(store, job) == "running"


@pytest.mark.parametrize("lease", [1.0, 3.0, 7.0, 9.0, 30.0, 100.0])
async def test_two_renewals_are_never_more_than_half_a_lease_apart(
    store: FaultyStore, world: Runtime, time: Time, lease: float
) -> None:
    """P-16."""
    (job,) = await claim(store, lease_ms=round(lease * 1000))
    witness = Witness()
    leases = LeaseKeeper(store, world, witness.on_claim_states, witness.on_fenced)
    leases.add({lease: [job.token]}, time.machine)
    renewals = [time.machine]

    for _ in range(400):
        store.sent.clear()
        pause = leases.step()
        if "renew" in store.sent:
            renewals.append(time.machine)
        time.passes(pause or 0.0)

    assert len(renewals) > 3
    assert max(after - before for before, after in pairwise(renewals)) <= lease / 2


async def test_leases_that_cannot_be_renewed_are_given_up_before_they_end(
    store: FaultyStore, world: Runtime, time: Time
) -> None:
    """I-20."""
    (job,) = await claim(store)
    leases, witness = keep(store, world, job)
    store.error = Unavailable("gone")

    time.passes(24)
    leases.step()
    leases.step()
    early = list(witness.given_up)
    time.passes(1.5)
    leases.step()
    leases.step()

    assert early == []
    assert witness.given_up == [job.token]
    assert not leases.may_complete(job.token)


async def test_a_renewal_that_succeeds_makes_a_completion_possible_again(
    store: FaultyStore, world: Runtime, time: Time
) -> None:
    (job,) = await claim(store)
    leases, _ = keep(store, world, job)
    store.error = Unavailable("gone")
    time.passes(26)
    leases.step()
    leases.step()

    store.error = None
    leases.step()

    assert leases.may_complete(job.token)


async def test_a_lease_is_too_late_for_a_completion_before_any_timer_says_so(
    store: FaultyStore, world: Runtime, time: Time
) -> None:
    """I-20."""
    (job,) = await claim(store)
    leases, _ = keep(store, world, job)

    time.passes(25.5)

    assert not leases.may_complete(job.token)


async def test_waiting_for_the_right_to_write_is_no_loss(store: FaultyStore, world: Runtime, time: Time) -> None:
    """I-20."""
    (job,) = await claim(store)
    leases, witness = keep(store, world, job)
    store.error = Busy("another program writes")

    for _ in range(30):
        time.passes(2)
        leases.step()

    assert witness.given_up == []
    assert leases.may_complete(job.token)


@pytest.mark.source("DF-30")
async def test_no_error_ends_the_renewal(store: FaultyStore, world: Runtime, time: Time) -> None:
    """I-21."""
    (job,) = await claim(store)
    leases, witness = keep(store, world, job)

    for error in (ValueError("a bug"), MemoryError(), OSError("disk")):
        store.error = error
        time.passes(2)
        leases.step()
    store.error = None
    leases.step()

    assert witness.told == {job.token: ClaimState.HELD}
    assert witness.given_up == []


def upkeep(store: Any, world: Runtime) -> Upkeep:
    return Upkeep(store, world, [Want("default", "t", LEASE_MS)])


async def try_step(reaper: Upkeep) -> None:
    """Go round as `run` does, which survives the store's errors."""
    began = reaper._runtime.monotonic()
    try:
        await reaper.step()
    except Unavailable:
        reaper._note_failure(began)


@pytest.mark.source("DF-9")
async def test_a_dead_workers_job_is_taken_back_when_its_lease_is_over(
    store: FaultyStore, world: Runtime, time: Time
) -> None:
    """I-16, I-25."""
    (job,) = await claim(store)
    reaper = upkeep(store, world)
    await reaper.step()
    before = await status_of(store, job)

    for _ in range(8):
        time.passes(4)
        await reaper.step()

    assert before == "running"
    assert await status_of(store, job) == "pending"


async def test_after_an_outage_nothing_is_reaped_for_one_lease(store: FaultyStore, world: Runtime, time: Time) -> None:
    """I-22."""
    (job,) = await claim(store)
    reaper = upkeep(store, world)
    await reaper.step()
    store.error = Unavailable("gone")
    for _ in range(10):
        time.passes(9)
        await try_step(reaper)

    store.error = None
    await reaper.step()
    for _ in range(7):
        time.passes(4)
        await reaper.step()
    held = await status_of(store, job)
    time.passes(4)
    await reaper.step()

    assert held == "running"
    assert await status_of(store, job) == "pending"


async def test_a_short_failure_costs_no_lease_of_waiting(store: FaultyStore, world: Runtime, time: Time) -> None:
    """I-22."""
    (job,) = await claim(store)
    reaper = upkeep(store, world)
    time.passes(28)
    await reaper.step()
    store.error = Unavailable("a moment")
    await try_step(reaper)
    store.error = None

    time.passes(4)
    await reaper.step()

    assert await status_of(store, job) == "pending"


async def test_a_clock_that_jumps_is_an_outage(store: FaultyStore, world: Runtime, time: Time) -> None:
    """F-28, I-18, I-22."""
    (job,) = await claim(store)
    reaper = upkeep(store, world)
    await reaper.step()

    time.database += 3600
    time.passes(4)
    await reaper.step()
    time.passes(4)
    await reaper.step()

    assert await status_of(store, job) == "running"


@pytest.mark.parametrize(("jump", "said"), [(3600, [3600]), (-3600, [-3600]), (30, []), (-30, [])])
async def test_a_clock_that_jumps_by_more_than_a_minute_is_told_once(
    jump: int, said: list[int], store: FaultyStore, world: Runtime, time: Time, caplog: pytest.LogCaptureFixture
) -> None:
    """F-28."""
    reaper = upkeep(store, world)
    await reaper.step()

    time.passes(4)
    time.database += jump
    await reaper.step()
    time.passes(4)
    await reaper.step()

    told = named(caplog, "database_clock_jumped")
    assert [round(each.__dict__["seconds"]) for each in told] == said


async def test_many_dead_jobs_are_taken_back_in_one_round(store: FaultyStore, world: Runtime, time: Time) -> None:
    """I-25."""
    claimed = await claim(store, 130)
    reaper = upkeep(store, world)
    time.passes(31)

    await reaper.step()

    assert {await status_of(store, job) for job in claimed} == {"pending"}


async def test_a_suspect_that_only_waited_is_not_blamed(store: FaultyStore, time: Time) -> None:
    """I-24."""

    async def suspect(tx: Any) -> None:
        await tx.execute("UPDATE holdfast_job SET crashes = 2")

    starts = [Start(id=uuid4(), task="t", input="{}", queue="default") for _ in range(2)]
    await store.run(creation.start, starts)
    await store.run(suspect)
    waited, ran = await store.run(claiming.claim, [Want("default", "t", LEASE_MS)], 2, "worker-aa", "nonce")
    await store.run(claiming.begin, ran.token)

    time.passes(31)
    await store.run(reaping.reap, 2**53)

    assert (await status_of(store, waited), await status_of(store, ran)) == ("pending", "failed")


async def test_a_row_that_a_stranger_has_locked_is_spared_until_its_worker_could_renew(
    new_holdfast: Callable[..., Holdfast], empty_url: str, time: Time, world: Runtime
) -> None:
    """F-26, I-75."""
    hf = new_holdfast("postgres")
    (job,) = await claim(hf.store, lease_ms=1)
    reaper = upkeep(hf.store, world)
    with psycopg.connect(empty_url) as stranger:
        stranger.execute(f"SELECT 1 FROM {SCHEMA}.holdfast_job FOR UPDATE")
        renewed = await hf.store.run(claiming.renew, [job.token])
        for _ in range(2):
            time.machine += 4
            await reaper.step()
    time.machine += 4
    await reaper.step()
    at_once = await status_of(hf.store, job)
    time.machine += 5
    await reaper.step()

    assert renewed == {job.token: ClaimState.LOCKED}
    assert at_once == "running"
    assert await status_of(hf.store, job) == "pending"
    await hf.close()


@contextmanager
def lock_file(tmp_path: Path) -> Iterator[tuple[str, LivenessLock, Any]]:
    path = str(tmp_path / "life")
    held = take_liveness_lock(path, model=str(tmp_path))
    try:
        yield path, LivenessLock("worker-aa", path, held.device, held.inode), held
    finally:
        held.close()


def test_a_lock_that_is_held_proves_nothing(tmp_path: Path) -> None:
    """I-69."""
    with lock_file(tmp_path) as (path, lock, _):
        assert take_of_the_dead(path, lock.device, lock.inode) is None


def test_a_file_removed_and_made_anew_proves_nothing(tmp_path: Path) -> None:
    """F-36, I-69."""
    with lock_file(tmp_path) as (path, lock, _):
        Path(path).unlink()
        Path(path).touch()

        assert take_of_the_dead(path, lock.device, lock.inode) is None


def test_a_missing_file_proves_nothing(tmp_path: Path) -> None:
    """F-36, I-69."""
    with lock_file(tmp_path) as (path, lock, held):
        held.remove()

        assert take_of_the_dead(path, lock.device, lock.inode) is None


def test_opening_and_closing_the_file_elsewhere_frees_nothing(tmp_path: Path) -> None:
    """I-69."""
    with lock_file(tmp_path) as (path, lock, _):
        Path(path).read_bytes()

        assert take_of_the_dead(path, lock.device, lock.inode) is None


FORKS = """
import os, sys, time
from holdfast.database.sqlite.file_locks import take_liveness_lock
held = take_liveness_lock(sys.argv[1], model=".")
read, write = os.pipe()
if os.fork() == 0:
    os.write(write, b"it has begun, and let go of the lock by now")
    time.sleep(60)
os.read(read, 1)
print(held.device, held.inode, flush=True)
time.sleep(60)
"""


def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    """F-11, I-69."""
    path = str(tmp_path / "life")
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKS, path], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert parent.stdout is not None
    device, inode = map(int, parent.stdout.readline().split())
    parent.kill()
    parent.wait()

    taken = take_of_the_dead(path, device, inode)

    parent.stdout.close()
    os.killpg(parent.pid, 9)
    assert taken is not None
    taken.close()


@pytest.mark.source("PQ-2")
async def test_the_jobs_of_a_worker_proved_dead_are_taken_back_at_once(store: FaultyStore) -> None:
    """I-69, I-25."""
    real = store._store
    dead, heir, alive = (
        LivenessLocks(real, "worker-dd"),
        LivenessLocks(real, "worker-ee"),
        LivenessLocks(real, "worker-ff"),
    )
    for each in (dead, heir, alive):
        await each.begin()
    (lost,), (kept,) = await claim(store, worker="worker-dd"), await claim(store, worker="worker-ff")

    before = await heir.take_over_the_dead()
    assert dead._own is not None
    dead._own.close()
    sees = heir.sees_a_death()
    taken = await heir.take_over_the_dead()

    assert (before, sees, len(taken)) == ([], True, 1)
    assert (await status_of(store, lost), await status_of(store, kept)) == ("pending", "running")
    assert {each.worker for each in await store.read(list_locks)} == {"worker-ee", "worker-ff"}
    for each in (heir, alive):
        each.drop()
    assert not list(Path(real.path).parent.glob("*-holdfast-worker-*"))


async def expire(store: Any) -> None:
    async def write(tx: Any) -> None:
        await tx.execute("UPDATE holdfast_job SET lease_until = $now - 1")

    await store.run(write)


async def test_a_lease_longer_than_the_server_has_been_up_is_not_judged(new_holdfast: Callable[..., Holdfast]) -> None:
    """F-17, I-22."""
    hf = new_holdfast("postgres")
    (long,), (short,) = await claim(hf.store, lease_ms=30 * 86_400_000), await claim(hf.store, lease_ms=1)
    await expire(hf.store)

    await hf.store.run(reaping.reap, 2**53)

    assert (await status_of(hf.store, long), await status_of(hf.store, short)) == ("running", "pending")
    await hf.close()


def uptime_of(url: str) -> float:
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT extract(epoch FROM now() - pg_postmaster_start_time())").fetchall()
    return float(rows[0][0])


async def test_connections_that_are_recycled_all_the_time_are_no_outage(
    new_holdfast: Callable[..., Holdfast], empty_url: str
) -> None:
    """F-54, I-22."""
    hf = new_holdfast("postgres")
    reaper = upkeep(hf.store, Runtime())
    await reaper.step()
    (job,) = await claim(hf.store, lease_ms=3_000)
    await expire(hf.store)
    await until(lambda: uptime_of(empty_url) > 3, "the server has been up for longer than the lease")

    with psycopg.connect(empty_url, autocommit=True) as person:
        for _ in range(3):
            person.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            await reaper.step()

    assert await status_of(hf.store, job) == "pending"
    assert reaper._quiet_since is None
    await hf.close()


@pytest.mark.parametrize(("is_rescheduled", "used"), [(False, 2), (True, 1)], ids=["raised", "rescheduled"])
async def test_a_connection_lost_in_a_block_uses_up_an_attempt_unless_rescheduled(
    new_holdfast: Callable[..., Holdfast], is_rescheduled: bool, used: int
) -> None:
    """A12."""
    hf = new_holdfast("postgres")

    @hf.task(name="charge", retry=Retry(first=0))
    async def charge(ctx: Context) -> None:
        try:
            async with ctx.complete() as tx:
                if ctx.job.attempt == 1:
                    await tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
                return tx.finish()
        except Unavailable as error:
            if is_rescheduled:
                raise Reschedule(after=0) from error
            raise

    async with hf, hf.worker(poll=0.1):
        chain = await hf.start(charge())
        await chain.result(timeout=30)
        job = await hf.get_job(chain)

    assert (job.used, job.crashes) == (used, 0)
