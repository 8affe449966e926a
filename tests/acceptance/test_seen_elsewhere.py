"""What went wrong in comparable projects, and must not here: each test carries the number of its line.

Lines that another test shows have their number in the docstring of that one.
`tests/support/tables/test_fault_table.py` finds them all.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Context, Holdfast, Tasks
from holdfast.database.postgres import pool
from holdfast.errors import Conflict, NotFound, StoreError, UniqueConflict
from holdfast.outcomes import Retry
from holdfast.store.jobs import claiming, reaping
from holdfast.store.jobs.claiming import Want
from holdfast.testing import NotOurServer, PostgresServer
from holdfast.worker.upkeep import reaper as upkeep
from tests.acceptance.hall import (
    GATE_KEY,
    Hall,
    NewHoldfast,
    counts,
    deadlocks,
    reaped,
    rows,
    sit,
    until_counts,
    until_past,
    waiting_for_gate,
)
from tests.acceptance.jobs_of_tests import LEASE, gated, quick
from tests.acceptance.processes import until as wait_until
from tests.acceptance.scene import Scene, scene
from tests.store import engine
from tests.support.conditions import until
from tests.support.factories import greet
from tests.support.ways import Way

FOR_EVER = 2**53

on_sqlite = pytest.mark.parametrize("stage_database", ["sqlite"], indirect=True)


@pytest.fixture(params=["sqlite", "postgres"])
async def hall(request: pytest.FixtureRequest, new_holdfast: NewHoldfast) -> AsyncIterator[tuple[Holdfast, Hall]]:
    """A face on each database, and tasks for it."""
    hall = Hall()
    hf = new_holdfast(request.param, tasks=[hall.tasks])
    await hf.open()
    yield hf, hall
    await hf.close()


async def write(hf: Holdfast, sql: str, **values: object) -> None:
    """Change rows as no operation would."""

    async def execute(tx: Any) -> None:
        await tx.execute(sql, **values)

    await hf.store.run(execute)


async def claim_as_dead(hf: Holdfast, count: int = 1) -> None:
    """Claim jobs for a worker that does not exist, and let their leases be over."""
    claims = await hf.store.run(claiming.admit_and_claim, [Want("default", "waits", 1)], count, "dead", "nonce")
    assert len(claims.jobs) == count
    await write(hf, "UPDATE holdfast_job SET lease_until = $now - 1 WHERE worker = 'dead'")


async def test_ten_thousand_live_leases_do_not_hide_a_dead_one(hall: tuple[Holdfast, Hall]) -> None:
    """P-02, I-25."""
    hf, tasks = hall
    (dead,) = await hf.start_many([tasks.waits()])
    await claim_as_dead(hf)
    for _ in range(10):
        await hf.start_many([tasks.waits() for _ in range(1_000)])
    await write(
        hf,
        "UPDATE holdfast_job SET status = 'running', gate = NULL, attempt = 1, nonce = 'n', worker = 'alive',"
        " lease_until = $now + 60000, lease_ms = 60000, started_at = $now WHERE worker IS NULL",
    )

    taken = await hf.store.run(reaping.reap, FOR_EVER)

    assert taken.count == 1
    assert str((await hf.get_job(dead)).status) == "pending"


@pytest.mark.long
@pytest.mark.parametrize("fails", ["connecting", "what follows it"])
def test_a_thousand_connections_that_fail_leave_no_descriptor_behind(
    fails: str, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-04, I-51."""
    url = empty_url if fails == "what follows it" else f"{empty_url}_nowhere"
    monkeypatch.setattr(pool, "OLDEST_SERVER", 10**9)
    store = Holdfast(url).store
    fail_to_open(store)
    before = descriptors()

    for _ in range(1000):
        fail_to_open(store)

    assert descriptors() <= before
    store.close_sync()


def fail_to_open(store: Any) -> None:
    with pytest.raises(StoreError):
        store.open_sync()


def descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


@pytest.mark.long
def test_a_worker_stopped_in_the_middle_of_a_reap_changes_nothing_when_it_goes_on(stage: Scene) -> None:
    """P-05, I-16: its transaction is cut while it stands still, another takes the jobs, and its own writes are gone."""
    lost = stage.start(gated(), gated())
    victim = stage.worker("--concurrency", "2")
    stage.until_running(lost)
    victim.kill()
    zombie = stage.worker(
        "--concurrency",
        "2",
        waits=False,
        HOLDFAST_CRASH="reaping.reap.before_commit:1:stop=5",
        HOLDFAST_DEADLINE_SECONDS="1",
    )
    wait_until(lambda: "crash_point_reached" in zombie.said, "the reap is under way", LEASE + 15)

    stage.worker("--concurrency", "2")
    stage.open()
    stage.until_all("completed", 40)

    stage.assert_each_completed_once()
    assert zombie.is_alive
    assert stage.rows("SELECT count(*) FROM holdfast_event WHERE name = 'job:reaped'") == [(2,)]


def restart(server: PostgresServer) -> None:
    """Crash the server, and start it again."""
    try:
        server.restart("immediate")
    except NotOurServer as error:
        pytest.skip(str(error))


@pytest.mark.long
def test_a_server_that_crashes_in_the_middle_of_a_reap_strands_nothing(
    own_server: PostgresServer, tmp_path: Path
) -> None:
    """P-06."""
    with scene(own_server.url, tmp_path) as stage:
        lost = stage.start(*[gated() for _ in range(60)])
        victim = stage.worker()
        stage.until_running(lost)
        victim.kill()
        reaper = stage.worker(waits=False, HOLDFAST_CRASH="reaping.reap.before_commit:1:delay=2")
        wait_until(lambda: "crash_point_reached" in reaper.said, "the reap is under way", LEASE + 15)

        restart(own_server)
        stage.open()
        stage.until_all("completed", 40)

        stage.assert_each_completed_once()
        assert stage.rows("SELECT min(crashes), max(crashes) FROM holdfast_job") == [(1, 1)]


@pytest.mark.source("DF-41")
@on_sqlite
def test_workers_of_one_name_that_overlap_in_a_restart_strand_nothing(stage: Scene) -> None:
    """P-07, I-23: who drains is another worker than who comes after it, whatever their names are."""
    old = stage.worker("--name", "same", "--concurrency", "2", "--grace", "0.2")
    stage.until_running(stage.start(gated(), gated()))

    old.send(signal.SIGTERM)
    stage.worker("--name", "same", "--concurrency", "2")
    assert old.exit_code(10) == 0
    stage.open()
    stage.until_all("completed")

    stage.assert_each_completed_once()
    assert stage.rows("SELECT max(crashes), max(used) FROM holdfast_job") == [(0, 1)]
    assert len({each["process"] for each in stage.notes("begin")}) == 2


async def test_a_twin_that_asks_for_the_key_strands_nobody(hall: tuple[Holdfast, Hall]) -> None:
    """P-09, I-05: neither by a reap nor by a resume nor by a retry."""
    hf, tasks = hall
    tasks.gate.set()
    lost = await hf.start(tasks.waits(), unique="reaped")
    await claim_as_dead(hf)
    paused = await hf.start(tasks.waits(), unique="resumed", paused=True)
    ended = await hf.start(tasks.waits(), unique="retried", paused=True)
    await hf.cancel(ended)
    taken = await hf.start(tasks.waits(), unique="retried", paused=True)

    met = [await hf.start(tasks.waits(), unique="reaped"), await hf.start(tasks.waits(), unique="resumed")]
    await hf.store.run(reaping.reap, FOR_EVER)
    await hf.resume(paused)
    with pytest.raises(UniqueConflict) as conflict:
        await hf.retry(ended)
    async with hf.worker(poll=0.1):
        await hf.resume(taken)
        await until_counts(hf, completed=3, cancelled=1)
        await hf.retry(ended)
        await until_counts(hf, completed=4)

    assert [each.id for each in met] == [lost.id, paused.id]
    assert conflict.value.twin == taken.id
    assert await rows(hf, "SELECT count(*) FROM holdfast_unique") == [(0,)]


@on_sqlite
def test_the_key_of_a_job_whose_worker_was_killed_is_free_again_when_that_has_ended(stage: Scene) -> None:
    """P-12."""
    (lost,) = stage.start(gated().options(unique="key"))
    victim = stage.worker()
    stage.until_running([lost])

    victim.kill()
    stage.worker()
    during = stage.start(gated().options(unique="key"))
    stage.open()
    stage.until_all("completed")
    after = stage.start(gated().options(unique="key"))
    stage.until_all("completed")

    assert during == [lost]
    assert after != [lost]
    stage.assert_each_completed_once()


@pytest.mark.source("JC-114")
@pytest.mark.long
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_a_handler_that_takes_ten_leases_is_left_alone_while_it_is_renewed(
    database: str, new_holdfast: NewHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-13, I-16."""
    monkeypatch.setattr(upkeep, "PERIOD_SECONDS", 0.2)
    hall = Hall(lease=1.0)
    faces = [new_holdfast(database, tasks=[hall.tasks]) for _ in range(2)]
    async with faces[0], faces[1], faces[0].worker(), faces[1].worker():
        chain = await faces[0].start(hall.waits())
        await until(lambda: hall.begun == [chain.id], "the handler runs")
        await until_past(10)
        hall.gate.set()
        await chain.result(timeout=10)

    assert hall.begun == [chain.id]
    assert await reaped(faces[0]) == 0
    await faces[0].close()


async def test_a_zombie_that_completes_after_its_lane_has_moved_on_changes_nothing(way: Way) -> None:
    """P-14, I-13, I-26."""
    chains = await way.face.start_many([greet(name=str(n)).options(lane="lane") for n in range(3)])
    zombie = await engine.claim_one(way, "zombie")
    await engine.expire(way, zombie.token, lease_ms=1)
    await way.call(reaping.reap, FOR_EVER)
    await engine.run(way)
    second = await engine.claim_one(way, "second")

    settled = await engine.settle(way, (zombie.token, engine.DONE))

    info = await way.hf.lane("lane").info()
    assert list(settled.lost) == [zombie.token]
    assert second.id == str(chains[1].id)
    assert (info.head, str(info.head_status), info.depth) == (chains[1].id, "running", 2)
    assert await engine.claim_all(way) == []


@pytest.mark.long
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_a_thousand_leases_are_renewed_before_half_of_them_is_over(
    database: str, new_holdfast: NewHoldfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P-16: with a loop that has other work as well."""
    lease = 3.0
    hall = Hall(lease)
    sent: list[float] = []
    renew = claiming.renew

    async def renewed(tx: Any, tokens: Any) -> Any:
        if len(tokens) >= 1000:
            sent.append(time.monotonic())
        return await renew(tx, tokens)

    monkeypatch.setattr(claiming, "renew", renewed)

    @hall.tasks.task(name="busy")
    async def busy() -> None:
        sum(range(100_000))

    hf = new_holdfast(database, tasks=[hall.tasks])
    async with hf, hf.worker(concurrency=1100):
        await hf.start_many([hall.waits() for _ in range(1000)])
        await until(lambda: len(hall.begun) == 1000, "all handlers run", 30)
        while len(sent) < 6:
            await hf.start_many([busy() for _ in range(20)])
            await until_past(0.05)
        hall.gate.set()

    assert max(later - earlier for earlier, later in pairwise(sent)) <= lease / 2
    await hf.close()


async def test_a_reaper_at_full_speed_takes_no_fresh_lease(hall: tuple[Holdfast, Hall]) -> None:
    """P-18, I-16."""
    hf, tasks = hall
    await hf.start_many([tasks.waits() for _ in range(200)])
    rounds = 0
    is_over = False

    async def reap() -> None:
        nonlocal rounds
        while not is_over:
            rounds += 1
            assert (await hf.store.run(reaping.reap, FOR_EVER)).count == 0

    reaper = asyncio.create_task(reap())
    for number in range(40):
        await hf.store.run(claiming.admit_and_claim, [Want("default", "waits", 30_000)], 5, "alive", f"nonce-{number}")
    is_over = True
    await reaper

    assert await counts(hf) == {"running": 200}
    assert rounds > 10


@pytest.mark.long
@pytest.mark.timeout(300)
def test_claims_resume_after_each_of_twenty_restarts(own_server: PostgresServer, tmp_path: Path) -> None:
    """P-22, F-17: and the log tells of each, once when it begins and once when it is over."""
    with scene(own_server.url, tmp_path) as stage:
        worker = stage.worker("--poll", "0.2")
        for number in range(20):
            restart(own_server)
            wait_until(lambda: start_one(stage), "the server takes a job", 20)
            stage.until_all("completed", 20)
            assert stage.completions().total() == number + 1

        assert worker.is_alive
        begun, over = (worker.said.count(f"worker_store_{word}") for word in ("trouble", "answers"))
        assert begun == over <= 20


def start_one(stage: Scene) -> bool:
    """Try to start a job under an id that stays the same for this try."""
    try:
        stage.start(quick())
    except StoreError:
        return False
    return True


@pytest.mark.source("JC-31", "JC-84")
async def test_no_more_is_claimed_than_there_are_free_slots(hall: tuple[Holdfast, Hall]) -> None:
    """P-24, F-43."""
    hf, tasks = hall
    await hf.start_many([tasks.waits() for _ in range(10)])
    async with hf.worker(concurrency=2, poll=0.05):
        await until(lambda: len(tasks.begun) == 2, "the slots are taken")
        await until_past(0.3)
        standing = await counts(hf)
        tasks.gate.set()
        await until_counts(hf, completed=10)

    assert standing == {"running": 2, "pending": 8}


async def test_workers_operators_and_producers_never_deadlock(new_holdfast: NewHoldfast, empty_url: str) -> None:
    """P-26, F-21."""
    before = deadlocks(empty_url)
    chance = random.Random(26)
    tasks = Tasks()

    @tasks.task(name="step", retry=Retry(first=0.01, maximum=0.01, jitter=0))
    async def step(ctx: Context, n: int) -> None:
        if n % 5 == 0 and ctx.job.attempt == 1:
            raise ValueError("once")

    faces = [new_holdfast("postgres", tasks=[tasks]) for _ in range(3)]
    known: list[Any] = []

    async def produce(face: Holdfast) -> None:
        for _ in range(15):
            blockers = chance.sample(known, min(2, len(known)))
            calls = [step(n=n).options(lane=f"lane-{n % 3}", unique=f"key-{n % 7}") for n in range(5)]
            with suppress(NotFound, Conflict):  # a blocker may be deleted, or end, in between
                known.extend(await face.start_many([*calls, step(n=1).options(blockers=blockers)]))

    async def operate(face: Holdfast) -> None:
        for _ in range(40):
            verbs = [face.cancel_many, face.pause_many, face.resume_many, face.retry_many, face.trigger_many]
            verb: Callable[[list[Any]], Awaitable[Any]] = chance.choice([*verbs, face.delete_many])
            try:
                await verb(chance.sample(known, min(3, len(known))))
            except (Conflict, NotFound, StoreError):
                await asyncio.sleep(0)

    async with faces[0], faces[1], faces[2], faces[0].worker(poll=0.05), faces[1].worker(poll=0.05):
        await produce(faces[2])
        async with asyncio.timeout(60):
            await asyncio.gather(*(produce(face) for face in faces), *(operate(face) for face in faces * 2))
    for face in faces:
        await face.close()

    assert deadlocks(empty_url) == before


@pytest.mark.parametrize("way_out", ["raise", "return"])
async def test_a_text_that_no_database_keeps_fails_its_job_and_no_other(
    way_out: str, hall: tuple[Holdfast, Hall]
) -> None:
    """P-27, I-07."""
    hf, tasks = hall

    @hf.task(name="odd", retry=Retry.never())
    async def odd() -> str:
        if way_out == "raise":
            raise ValueError("\x00\ud800")
        return "\x00\ud800"

    tasks.gate.set()
    async with hf.worker():
        chain = await hf.start(odd())
        await (await hf.start(tasks.waits())).result(timeout=10)
        await until_counts(hf, completed=1, failed=1)

    error = (await hf.get_job(chain)).error
    assert error is not None
    assert "\x00" not in str(dict(error))
    str(dict(error)).encode()


@pytest.mark.long
async def test_ten_thousand_cancelled_calls_leave_the_pool_complete(new_holdfast: NewHoldfast, empty_url: str) -> None:
    """P-28."""
    chance = random.Random(28)
    hall = Hall()
    hf = new_holdfast("postgres", tasks=[hall.tasks], pool_size=4)
    await hf.open()

    calls: list[Callable[[], Coroutine[Any, Any, object]]] = [
        lambda: hf.start(hall.waits()),
        hf.list_jobs,
        lambda: hf.queue("q").pause(),
    ]

    async def call_and_cancel() -> None:
        task = asyncio.create_task(chance.choice(calls)())
        await asyncio.sleep(chance.random() * 0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    for _ in range(100):
        await asyncio.gather(*(call_and_cancel() for _ in range(100)))

    with psycopg.connect(empty_url, autocommit=True) as person:
        person.execute("SELECT pg_advisory_lock(%s)", [GATE_KEY])
        together = [asyncio.create_task(hf.store.run(sit)) for _ in range(5)]
        await until(lambda: waiting_for_gate(person) == 4, "all four connections are in use at one time")
        person.execute("SELECT pg_advisory_unlock(%s)", [GATE_KEY])
        await asyncio.gather(*together)
    await hf.close()
