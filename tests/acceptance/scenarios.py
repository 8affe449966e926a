"""The scenarios in which crash points are walked: what is there before, what a program then does, how that ends.

Each is small and does one thing, so that its points are the same in every run: `walker` plays it once for each of them.
*About* names the operations whose points are walked there; what else a worker does beside has a scenario of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Context, Holdfast, Tasks
from holdfast.client.insight import sampled
from holdfast.database.tx import Blocking, Tx, drive
from holdfast.errors import StatusConflict
from holdfast.figures import Counts, Histogram, Tallied, sum_of
from holdfast.models import INTERNAL_QUEUE
from holdfast.outcomes import Pause, Reschedule, Retry
from holdfast.store.insight import tallies
from holdfast.store.jobs import bulk_pages, claiming
from holdfast.webhooks.answers import Answer
from holdfast.worker.attempts import journal as attempt_journal
from holdfast.worker.attempts.context import BlockingContext
from holdfast.worker.attempts.progress import Progress
from holdfast.worker.builtin import bulk
from holdfast.worker.upkeep.folding import SAMPLE_MS, keep_once
from tests.acceptance.jobs_of_tests import PLACE
from tests.acceptance.jobs_of_tests import TASKS as JOBS
from tests.acceptance.paying.runtime import CREATE
from tests.acceptance.processes import until
from tests.acceptance.produce import early, job_id, late
from tests.acceptance.steer import FIRST, SECOND, VERBS
from tests.support.log_rows import as_events
from tests.support.outbox import empty_outbox

LEASE = 1.0
GLANCE = 0.02
HOOK = "https://example.com/hook"
TASKS = Tasks()
OTHERS = Tasks()
task = TASKS.task(lease=LEASE, retry=Retry(first=0.01, maximum=0.01, jitter=0))
other_task = OTHERS.task(lease=LEASE, retry=Retry(first=0.01, maximum=0.01, jitter=0))


def _nothing() -> None:
    """Do nothing."""


begin: Callable[[], None] = _nothing
"""Is called by a handler as it begins; the walker sets it."""


def place() -> Path:
    """The directory in which handlers leave what the next run is to know."""
    return Path(os.environ[PLACE])


@task(name="ends")
async def ends(ctx: Context, how: str) -> int:
    """End the first run in the way that is asked for; return from any other."""
    begin()
    mark = place() / how
    is_first = not mark.exists()
    mark.touch()
    if how == "cancel" or (how == "wait" and is_first):
        await asyncio.Event().wait()
    if how == "goes on":
        return ctx.continue_with(ends(how="done"))
    if how == "reports":
        await ctx.progress(50, "half", flush=True)
    if how == "reports and fails":
        ctx.progress(50, "half")
    if how == "is slow":
        await asyncio.sleep(LEASE * 0.7)
    if how == "in blocks":
        async with ctx.prepare() as tx:
            await tx.fetch_all("SELECT 1")
        async with ctx.complete() as tx:
            return tx.finish(1)
    if how == "goes on in a block":
        async with ctx.complete() as tx:
            return tx.continue_with(ends(how="done"))
    if how == "journals":
        for turn in range(len(await ctx.journal.read()), 3):
            await ctx.journal.append("turn", turn)
        async with ctx.complete() as tx:
            await tx.journal.append("turn", 3)
            return tx.finish(1)
    if is_first:
        match how:
            case "error":
                raise ValueError(how)
            case "snooze":
                raise Reschedule(after=0.5)
            case "pause":
                raise Pause(how)
            case "reports and fails":
                raise ValueError(how)
    return 1


@other_task(name="in_a_thread")
def in_a_thread(ctx: BlockingContext) -> int:
    """Complete in a block of the blocking colour."""
    begin()
    with ctx.complete() as tx:
        return tx.finish(1)


async def first_half(ctx: Context, how: str) -> str:
    """Be the first phase."""
    begin()
    ctx.progress(10)
    return how


async def second_half(ctx: Context, how: str) -> str:
    """Be the second phase."""
    return how


in_phases = OTHERS.pipeline("in_phases", first_half, second_half, lease=LEASE, retry=Retry(first=0.01, jitter=0))


class Receiver:
    """Somebody who takes every webhook, and writes down its id."""

    async def post(self, address: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Take it."""
        with (place() / "posts").open("a") as posts:
            posts.write(f"{headers['webhook-id']}\n")
        return Answer(200, 0.0, "")


def make_with(*tasks: Tasks) -> Callable[[Mapping[str, Any]], Holdfast]:
    """Have programs of the walk know these tasks; on SQLite a claim takes a statement for each of them."""
    return lambda settings: Holdfast(tasks=list(tasks), poster=Receiver(), **settings)


def make_paying(program: str) -> Callable[[Mapping[str, Any]], Holdfast]:
    """Have programs of the walk be one that pays by an object mapper, which reads its settings as it is imported."""

    def make(settings: Mapping[str, Any]) -> Holdfast:
        os.environ.update({f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()})
        found: Holdfast = import_module(f"tests.acceptance.paying.{program}").hf
        return found

    return make


def make_telling(settings: Mapping[str, Any]) -> Holdfast:
    """Have programs of the walk tell of every entry of a journal, however soon it comes: their points stay the same."""
    attempt_journal.EVENT_SECONDS = 0.0
    return make_with(TASKS)(settings)


def make_with_small_pages(settings: Mapping[str, Any]) -> Holdfast:
    """Have programs of the walk act on two jobs at a time, where they act on many, and by a short lease.

    How far they are is written by the block that acts, as it mostly is: now and then it is written just before.
    """
    bulk_pages.PAGE, bulk.LEASE_SECONDS = 2, LEASE
    Progress.run = _write_nothing  # type: ignore[method-assign]
    return USUAL(settings)


async def _write_nothing(self: Progress) -> None:
    await asyncio.Event().wait()


USUAL = make_with(TASKS)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What a program does that may be struck by something, and the rest of its world."""

    about: tuple[str, ...]
    prepare: Callable[[Holdfast], object]
    act: Callable[[Holdfast], object]
    is_done: Callable[[Holdfast], bool]
    make: Callable[[Mapping[str, Any]], Holdfast] = USUAL
    databases: tuple[str, ...] = ("sqlite", "postgres")
    from_handler: bool = False
    """Points count from the moment when the handler begins, so that they are those of its end."""
    is_worker: bool = True
    is_empty: bool = False
    """The database has no tables yet."""
    needs_dead: bool = False
    """A worker has died with the jobs that were prepared."""
    holds: Callable[[Holdfast], object] = field(default=lambda hf: None)
    """Raises if something is not so that must be so at any moment."""
    each_pass: bool = False
    """Every pass of a point is walked, not only the first one."""
    needs: tuple[str, ...] = ()
    """What its programs import."""
    table: str = ""
    """A table of the user's own."""
    is_whole: bool = False
    """It writes in one transaction: before its commit nothing may be seen."""


def rows(hf: Holdfast, sql: str, **values: object) -> list[tuple[Any, ...]]:
    """Look into the tables."""
    return hf.store.read_sync(_fetch, sql, values)


async def _fetch(tx: Tx, sql: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
    return list(await tx.fetch_all(sql, **values))


async def _execute(tx: Tx, sql: str) -> None:
    await tx.execute(sql)


LEFT = """
    SELECT count(*) FROM holdfast_job
    WHERE (status NOT IN ('completed', 'cancelled') OR gate IS NOT NULL OR head = 1)"""


def all_ended(hf: Holdfast) -> bool:
    """Tell whether every job has ended, and left nothing to be done."""
    return rows(hf, LEFT) == [(0,)]


def work(hf: Holdfast) -> None:
    """Run a worker until all has ended, and steer as people would."""
    asyncio.run(_work(hf, all_ended))


def wait_for_a_hint(hf: Holdfast) -> None:
    """Run a worker, and start a job when it has fallen asleep."""
    asyncio.run(_start_while_asleep(hf))


async def _start_while_asleep(hf: Holdfast) -> None:
    async with hf, hf.worker(concurrency=1, grace=0.01):
        async with asyncio.timeout(45):
            while not await hf.store.read(_fetch, "SELECT 1 FROM holdfast_worker WHERE asleep_at IS NOT NULL", {}):
                await asyncio.sleep(GLANCE)
            await hf.start(ends(how="done"), id=FIRST)
            while not await asyncio.to_thread(are_completed(FIRST), hf):
                await asyncio.sleep(GLANCE)


def work_twice(hf: Holdfast) -> None:
    """Run a worker that is stopped while its handler runs, and a second one."""
    if not (place() / "wait").exists():
        asyncio.run(_work(hf, lambda _: (place() / "wait").exists()))
    work(hf)


async def _work(hf: Holdfast, is_done: Callable[[Holdfast], bool]) -> None:
    async with hf, hf.worker(concurrency=1, poll=0.1, grace=0.01) as worker:
        async with asyncio.timeout(90):
            while not worker.ended.done() and not await asyncio.to_thread(is_done, hf):
                await _steer(hf)
                await asyncio.sleep(GLANCE)


async def _steer(hf: Holdfast) -> None:
    """Resume what is paused, and cancel what waits for it."""
    found = await hf.store.read(_fetch, STEERED, {"id": str(job_id("cancel"))})
    for id_, status in found:
        with suppress(StatusConflict):  # who stood still after the look may find that others have done it
            if status == "paused":
                await hf.resume(id_)
            elif (place() / "cancel").exists():
                await hf.cancel(id_)


STEERED = """
    SELECT id, status FROM holdfast_job
    WHERE status = 'paused' OR (id = :id AND status = 'running' AND cancel_requested_at IS NULL)"""


def started(*calls: Callable[[], Any]) -> Callable[[Holdfast], object]:
    """Start these jobs before, one after the other."""
    return lambda hf: [hf.sync.start(each()) for each in calls]


def job(how: str) -> Callable[[], Any]:
    """A job that ends in this way."""
    return lambda: ends(how=how).options(id=job_id(how))


def told(hf: Holdfast) -> None:
    """Have a job whose end somebody is to be told of, later."""
    hf.sync.queue(INTERNAL_QUEUE).pause()
    hf.sync.start(ends(how="done"), webhook=HOOK)


def to_be_made(hf: Holdfast) -> None:
    """Have two events of one job wait for their deliveries to be made, which nobody posts."""
    hf.sync.queue(INTERNAL_QUEUE).pause()
    hf.sync.start(ends(how="done"), id=FIRST, webhook=HOOK)
    hf.sync.cancel(FIRST)
    hf.sync.retry(FIRST)
    hf.sync.cancel(FIRST)


def are_made(hf: Holdfast) -> bool:
    """Tell whether the two deliveries are there, the first at the head of its lane, and nothing waits any more."""
    counts = [rows(hf, f"SELECT count(*) FROM holdfast_{name}") for name in ("outbox", "delivery", "lane")]
    return counts == [[(0,)], [(2,)], [(1,)]]


def is_told(hf: Holdfast) -> bool:
    """Tell whether the delivery is there, and in its lane."""
    return [rows(hf, f"SELECT count(*) FROM holdfast_{name}") for name in ("delivery", "lane")] == [[(1,)], [(1,)]]


def to_be_delivered(hf: Holdfast) -> None:
    """Have a delivery that is due."""
    hf.sync.start(ends(how="done"), id=FIRST, webhook=HOOK)
    hf.sync.cancel(FIRST)
    empty_outbox(hf)


def one_id(hf: Holdfast) -> None:
    """See that a delivery that is posted again has the id that it had."""
    posts = place() / "posts"
    assert not posts.exists() or len(set(posts.read_text().split())) == 1


def each_turn_once(hf: Holdfast) -> None:
    """See that no entry is lost or doubled: they are a beginning of what is said, whole once the job is completed."""
    turns = [int(body) for (body,) in rows(hf, "SELECT body FROM holdfast_journal WHERE kind = 'turn' ORDER BY number")]
    assert turns == list(range(len(turns)))
    assert (len(turns) == 4) is (rows(hf, COMPLETED_JOBS) == [(1,)])


COMPLETED_JOBS = "SELECT count(*) FROM holdfast_job WHERE status = 'completed'"


def held_by_nobody(hf: Holdfast) -> None:
    """Have a job whose worker is gone, and nobody can prove it; its lease is over."""
    hf.sync.start(ends(how="done"))
    hf.store.run_sync(claiming.claim, [claiming.Want("default", "ends", 1000)], 1, "gone", "0" * 16)
    hf.store.run_sync(_execute, "UPDATE holdfast_job SET lease_until = 1")


def elsewhere(hf: Holdfast) -> None:
    """Have jobs arrive in a queue that no worker serves, and one in the usual one."""
    hf.sync.start_many([ends(how="done").options(lane="far", queue="far") for _ in range(2)])


def arrived(hf: Holdfast) -> bool:
    return rows(hf, "SELECT count(*) FROM holdfast_job WHERE gate = 'arrival'") == [(0,)]


def work_elsewhere(hf: Holdfast) -> None:
    asyncio.run(_work(hf, arrived))


def in_hand(hf: Holdfast) -> None:
    """Complete a job without a worker, and the next one of its chain."""
    with hf.sync.completing(ends, FIRST) as held:
        held.continue_with(ends(how="done")).finish(2)


@contextmanager
def own_transaction(hf: Holdfast) -> Iterator[Any]:
    """Open a connection of the caller's own, in a transaction."""
    if hf.store.database == "postgres":
        with psycopg.connect(hf.settings.database) as person, person.transaction():
            yield person
        return
    connection = sqlite3.connect(hf.settings.database, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    finally:
        connection.close()


def start_with_others(hf: Holdfast) -> None:
    """Start a job in the caller's own transaction, and cancel another there."""
    with own_transaction(hf) as connection:
        hf.sync.start(ends(how="done"), id=SECOND, lane="a", unique="key", connection=connection)
        hf.sync.cancel(FIRST, connection=connection)


def complete_with_others(hf: Holdfast) -> None:
    """Complete a job in a block over the caller's own transaction."""
    with own_transaction(hf) as connection, hf.sync.completing(ends, FIRST, connection=connection) as held:
        held.finish(2)


async def _start_async(hf: Holdfast) -> None:
    async with hf:
        await hf.start(ends(how="done"), id=FIRST)


def is_there(*ids: Any) -> Callable[[Holdfast], bool]:
    """Tell whether jobs of these ids are there."""
    named = ", ".join(f"'{each}'" for each in ids)
    return lambda hf: rows(hf, f"SELECT count(*) FROM holdfast_job WHERE id IN ({named})") == [(len(ids),)]


def are_completed(*ids: Any) -> Callable[[Holdfast], bool]:
    """Tell whether jobs of these ids are completed."""
    named = ", ".join(f"'{each}'" for each in ids)
    sql = f"SELECT count(*) FROM holdfast_job WHERE status = 'completed' AND id IN ({named})"
    return lambda hf: rows(hf, sql) == [(len(ids),)]


def many(hf: Holdfast) -> None:
    """Have five jobs that nobody runs, and a job that cancels them; and one that comes later."""
    hf.sync.start_many([ends(how="done").options(queue="nobody") for _ in range(5)])
    hf.sync.start_bulk("cancel", task="ends", by="ada", why="too many")
    hf.sync.start(ends(how="done"), id=FIRST)


def work_on_many(hf: Holdfast) -> None:
    """Run a worker until the five were acted on; and then act on those that somebody who stood still had locked."""
    asyncio.run(_work(hf, is_walked))
    until(lambda: hf.sync.bulk("cancel", queue="nobody", status="pending").matched == 0, "nobody has them locked", 30)


def is_walked(hf: Holdfast) -> bool:
    """Tell whether only those are left that were passed over."""
    return rows(hf, LEFT + " AND queue <> 'nobody'") == [(0,)]


def acts_once(hf: Holdfast) -> None:
    """See that no job was acted on twice, and none that came later (I-87)."""
    cancelled = as_events(rows(hf, "SELECT name, facts, job FROM holdfast_event"), "name, facts, job")
    counts = Counter(job for name, _, job in cancelled if name == "job:cancelled")
    assert max(counts.values(), default=0) <= 1
    assert rows(hf, f"SELECT 1 FROM holdfast_job WHERE id = '{FIRST}' AND status = 'cancelled'") == []


def many_by_somebody(hf: Holdfast) -> None:
    """Have the same jobs, and have somebody ask for the job that cancels them."""
    hf.sync.start_many([ends(how="done").options(queue="nobody") for _ in range(5)])
    hf.sync.acting(by="ada", why="too many").start_bulk("cancel", task="ends")
    hf.sync.start(ends(how="done"), id=FIRST)


def acts_once_and_says_so(hf: Holdfast) -> None:
    """See that the audit has as many jobs as somebody's act has cancelled, and each page once."""
    acts_once(hf)
    told = as_events(rows(hf, "SELECT name, facts FROM holdfast_event"), "name, facts")
    cancelled = sum(name == "job:cancelled" and "too many" in (facts or "") for name, facts in told)
    pages = rows(hf, "SELECT facts FROM holdfast_audit WHERE action = 'bulk.cancel'")
    assert sum(json.loads(facts)["done"] for (facts,) in pages) == cancelled


def act_on_many(hf: Holdfast) -> None:
    """Act on five jobs in somebody's name, two at a time, here and now."""
    hf.sync.acting(by="ada", why="too many").bulk("cancel", task="ends", status="pending")


def is_audited(action: str, sql: str) -> Callable[[Holdfast], None]:
    """See that an act that leaves a row of *sql* is in the audit once, if it was committed, and else not at all."""

    def holds(hf: Holdfast) -> None:
        found = rows(hf, "SELECT count(*) FROM holdfast_audit WHERE action = :action", action=action)
        assert found == [(len(rows(hf, sql)),)], f"{found} in the audit"

    return holds


def is_migrated(hf: Holdfast) -> bool:
    """Tell whether the tables are there."""
    return hf.store.standing_sync().schema > 0 and not hf.sync.migrate()


def steered(name: str) -> Scenario:
    """Make a scenario of a verb."""
    verb = VERBS[name]
    about = {"outside": ("completing.complete_at_once",), "mark": ("retention.mark", "retain.after_hook")}
    about |= {"edit": ("steering.retry",), "edit_paused": ("steering.resume",)}
    about |= {"retain": ("retention.delete", "unique.free"), "trim": ("pruning.prune",)}
    return Scenario(
        about.get(name, (f"{OF_VERBS.get(name, 'steering')}.{name}",)),
        verb.prepare,
        verb.steer,
        lambda hf: rows(hf, verb.sql) == [(verb.value,)],
        make=make_with(JOBS),
        is_worker=False,
        is_whole=name != "retain",
    )


OF_VERBS = {
    "start_again": "creation",
    "delete": "deletes",
    **dict.fromkeys(("skip", "pause_lane", "resume_lane", "pause_queue", "resume_queue"), "lanes"),
    **dict.fromkeys(("subscribe", "unsubscribe", "enable", "disable"), "webhooks"),
    "redeliver": "webhooks",
}


COUNTED = (("worker-1", 3), ("worker-2", 4), ("worker-3", 5))
"""How many attempts each of three workers has counted."""


def counted_long_ago(hf: Holdfast) -> None:
    """Have what workers have counted of two tasks, in intervals that are over, and minutes that are kept no more."""
    kinds = [tallies.JobKind("default", task) for task in ("mail", "bill")]
    ((now,),) = rows(hf, "SELECT $now")
    for source, number in COUNTED:
        each = Tallied(Counts(number, number), Histogram.of([10] * number), Histogram.of([20] * number))
        given = [tallies.OpenTally(now - now % 10_000, kind, each) for kind in kinds]
        hf.store.run_sync(tallies.write, source, given)
    hf.store.run_sync(_execute, "UPDATE holdfast_tally SET at = at - 120000")
    hf.store.run_sync(
        _execute, "INSERT INTO holdfast_tally (width, at, queue, task, source) VALUES (60, 0, '', '', '')"
    )


def keep_figures(hf: Holdfast) -> None:
    """Do what a worker does for figures, once."""
    runner: Any = Blocking(hf.store)
    drive(keep_once(runner))
    drive(sampled(runner, SAMPLE_MS))


def are_kept(hf: Holdfast) -> bool:
    """Tell whether everything is folded, nothing is old, and somebody has begun to sample how things stand.

    Who dies over a sample leaves none; the next one is that of the next 10 s.
    """
    widths = Counter(width for (width,) in rows(hf, "SELECT width FROM holdfast_tally"))
    return widths.pop(-1, 0) > 0 and dict(widths) == dict.fromkeys((0, 10, 60, 3600), 2)


def each_is_counted_once(hf: Holdfast) -> None:
    """See that what was counted is there, in one place or the other."""
    found = sum_of(hf.store.read_sync(tallies.totals).values())
    number = 2 * sum(number for _, number in COUNTED)
    assert (found.counts.completed, found.wait.total(), found.run.total()) == (number, number, number)


def none_is_counted_twice(hf: Holdfast) -> None:
    """See that no more attempts are counted than jobs have completed."""
    found = sum_of(hf.store.read_sync(tallies.totals).values())
    assert found.counts.completed <= 1


def nothing(hf: Holdfast) -> None:
    """Leave it as it is."""


LATE = ("error", "snooze", "pause", "cancel", "wait", "l1", "l2", "l3", "l4", "l5")


PAID = "SELECT number, times_paid, receipts FROM shop_order ORDER BY number"
COMPLETED = "SELECT input, task FROM holdfast_job WHERE status = 'completed'"
TAKE_ORDERS = "INSERT INTO shop_order (number, amount, times_paid, receipts) VALUES (1, 50, 0, 0), (2, 70, 0, 0)"


def take_orders(hf: Holdfast) -> None:
    """Have two orders to be paid, one after the other, each of which leaves its receipt to a second job."""
    for sql in ("DROP TABLE IF EXISTS shop_order", CREATE, TAKE_ORDERS):
        hf.store.run_sync(_execute, sql)
    pay = hf.tasks.get("pay")
    hf.sync.start(pay(number=1), id=FIRST, lane="till")
    hf.sync.start(pay(number=2), lane="till", blockers=[FIRST])


def pays_what_it_completes(hf: Holdfast) -> None:
    """See that what the object mapper wrote and the completion are there both, or neither (Q-07)."""
    done = [(json.loads(given)["number"], task) for given, task in rows(hf, COMPLETED)]
    completed = [(number, done.count((number, "pay")), done.count((number, "write_receipt"))) for number in (1, 2)]
    assert rows(hf, PAID) == completed


def paying(program: str, database: str, *needs: str) -> Scenario:
    """Make a scenario of a program whose handlers write by an object mapper inside `complete()`."""
    about = (
        *EXCHANGE,
        "claim.before_handler",
        "claiming.progress",
        "blocks.",
        "block_ends.",
        "orm_transaction.",
        "migrations.identity",
    )
    return Scenario(
        (*about, "shutdown.after_stop_claim"), take_orders, work, all_ended, make_paying(program), (database,),
        holds=pays_what_it_completes, needs=needs, table="shop_order",
    )  # fmt: skip


YEAR = 365 * 86_400
"""How often the schedules of scenarios come: none does by itself while they are played."""


def scheduled(hf: Holdfast) -> None:
    """Have a schedule that is not due."""
    hf.sync.schedules.put("yearly", ends(how="done").options(unique="yearly"), every=YEAR, missed="all")


def is_paused(hf: Holdfast) -> bool:
    """Tell whether the schedule is paused."""
    return hf.sync.schedules.get("yearly").is_paused


def paused_schedule(hf: Holdfast) -> None:
    """Have a schedule that is paused."""
    scheduled(hf)
    hf.sync.schedules.pause("yearly")


def is_scheduled(hf: Holdfast) -> bool:
    """Tell whether the schedule is there."""
    return [each.name for each in hf.sync.schedules.list()] == ["yearly"]


def due(hf: Holdfast) -> None:
    """Have two schedules that are due, one of which meets the job of the other."""
    for name in ("yearly", "twin"):
        hf.sync.schedules.put(name, ends(how="done").options(unique="yearly"), every=YEAR, missed="all")
    hf.store.run_sync(_execute, f"UPDATE holdfast_schedule SET next_at = ($now / {YEAR}000) * {YEAR}000")


def has_ticked(hf: Holdfast) -> bool:
    """Tell whether both have had their ticks, and the job has ended."""
    return rows(hf, "SELECT count(*) FROM holdfast_tick") == [(2,)] and all_ended(hf)


def each_tick_has_its_job(hf: Holdfast) -> None:
    """See that ticks and jobs are there together, and that each tick names a job (I-83)."""
    found = rows(
        hf,
        """
        SELECT (SELECT count(*) FROM holdfast_tick WHERE outcome = 'started'),
            (SELECT count(*) FROM holdfast_job WHERE scheduled_at IS NOT NULL),
            (SELECT count(*) FROM holdfast_tick LEFT JOIN holdfast_job ON holdfast_job.id = holdfast_tick.chain_id
                WHERE holdfast_job.seq IS NULL),
            (SELECT count(*) FROM holdfast_schedule WHERE next_at < $now) + (SELECT count(*) FROM holdfast_tick)""",
    )
    assert found in ([(0, 0, 0, 2)], [(1, 1, 0, 2)]), found


def too_late(hf: Holdfast) -> None:
    """Have a schedule whose next time is later than its rule says, as after a visit to another year."""
    scheduled(hf)
    hf.store.run_sync(_execute, f"UPDATE holdfast_schedule SET next_at = next_at + 9 * {YEAR}000")


def is_repaired(hf: Holdfast) -> bool:
    """Tell whether its next time is as its rule says."""
    found = hf.sync.schedules.get("yearly")
    return found.next_at == found.next_times[0]


EXCHANGE = ("exchanging.exchange",)
AT_ITS_END = Scenario(EXCHANGE, nothing, work, all_ended, from_handler=True)
BY_HAND = Scenario((), nothing, nothing, all_ended, is_worker=False, is_whole=True)
IN_BLOCKS = ("blocks.", "block_ends.")
IN_PHASES = ("phases.begin", "phases.complete", "claiming.begin")

SCENARIOS: dict[str, Scenario] = {
    **{name: steered(name) for name in VERBS},
    "migrate": replace(
        BY_HAND, about=("migrations.step",), act=lambda hf: hf.sync.migrate(), is_done=is_migrated, is_empty=True,
        is_whole=False, each_pass=True,
    ),
    "start": replace(
        BY_HAND, about=("creation.start", "task_rows.record"), is_whole=False, make=make_with(JOBS),
        prepare=lambda hf: hf.sync.start_many(early()[:2]),
        act=lambda hf: hf.sync.start_many(late()), is_done=is_there(*map(job_id, LATE)),
    ),
    "start, async": replace(
        BY_HAND, about=("creation.start", "task_rows.record"), is_whole=False,
        act=lambda hf: asyncio.run(_start_async(hf)), is_done=is_there(FIRST),
    ),
    "completing": replace(
        BY_HAND, about=("completing.lock_of_task", "completing.finish", "completing.follow", "reads.get_blockers"),
        prepare=lambda hf: hf.sync.start(ends(how="done"), id=FIRST, lane="a"), act=in_hand,
        is_done=all_ended,
    ),
    "start with others": replace(
        BY_HAND, about=("creation.start", "steering.cancel", "migrations.identity"), act=start_with_others,
        is_done=is_there(SECOND),
        prepare=lambda hf: hf.sync.start(ends(how="done"), id=FIRST, lane="a"),
    ),
    "complete with others": replace(
        BY_HAND, about=("completing.lock_of_task", "completing.finish", "reads.get_blockers"), act=complete_with_others,
        prepare=lambda hf: hf.sync.start(ends(how="done"), id=FIRST, lane="a"), is_done=are_completed(FIRST),
    ),
    "claim": Scenario(
        (*EXCHANGE, "workers.record_lock", "workers.give_sign", "claim.before_handler"),
        started(lambda: ends(how="done"), lambda: ends(how="done").options(delay=0.05)), work, all_ended,
    ),
    "claim for a hint": Scenario(
        ("claiming.claim", "workers."), nothing, wait_for_a_hint, are_completed(FIRST), databases=("postgres",),
    ),
    "admit": Scenario(
        EXCHANGE, started(*[lambda: ends(how="done").options(lane="a")] * 2), work, all_ended,
    ),
    "admit blocked": Scenario(
        EXCHANGE, started(job("done"), lambda: ends(how="then").options(lane="b", blockers=[job_id("done")])),
        work, all_ended,
    ),
    "complete": replace(AT_ITS_END, prepare=started(job("done"))),
    "complete in a lane": replace(AT_ITS_END, prepare=started(*[lambda: ends(how="done").options(lane="a")] * 2)),
    "complete a blocker": replace(
        AT_ITS_END, prepare=started(job("done"), lambda: ends(how="then").options(blockers=[job_id("done")])),
    ),
    "go on": replace(AT_ITS_END, prepare=started(job("goes on"))),
    "complete, told": replace(
        AT_ITS_END, prepare=told, is_done=is_told, act=lambda hf: asyncio.run(_work(hf, is_told)),
    ),
    "make deliveries": Scenario(
        ("outbox.deliver",), to_be_made, lambda hf: asyncio.run(_work(hf, are_made)), are_made,
    ),
    "deliver": Scenario(
        (*EXCHANGE, "claiming.admit_and_claim", "deliver.after_post"), to_be_delivered, work, all_ended, holds=one_id,
    ),
    "error": replace(AT_ITS_END, prepare=started(job("error"))),
    "snooze": replace(AT_ITS_END, prepare=started(job("snooze"))),
    "pause, by a handler": replace(AT_ITS_END, prepare=started(job("pause"))),
    "acknowledge": replace(AT_ITS_END, prepare=started(job("cancel"))),
    "give back": replace(
        AT_ITS_END, about=(*EXCHANGE, "shutdown.", "workers.forget", "workers.forget_with_lock"),
        prepare=started(job("wait")), act=work_twice,
    ),
    "report": replace(AT_ITS_END, about=("claiming.progress",), prepare=started(job("reports"))),
    "report and fail": replace(AT_ITS_END, prepare=started(job("reports and fails"))),
    "renew": replace(AT_ITS_END, about=("claiming.renew", "renew."), prepare=started(job("is slow"))),
    "in blocks": replace(
        AT_ITS_END, about=(*IN_BLOCKS, "claiming.claim"), prepare=started(job("in blocks")),
    ),
    "go on in a block": replace(
        AT_ITS_END, about=IN_BLOCKS, prepare=started(lambda: ends(how="goes on in a block").options(lane="a")),
    ),
    "in a thread": replace(AT_ITS_END, about=IN_BLOCKS, prepare=started(in_a_thread), make=make_with(OTHERS)),
    "in phases": replace(
        AT_ITS_END, about=IN_PHASES, prepare=started(lambda: in_phases(how="done")), make=make_with(OTHERS),
    ),
    "journal": replace(
        AT_ITS_END, about=("journaling.", "block_ends.", "blocks."), prepare=started(job("journals")),
        holds=each_turn_once, each_pass=True, make=make_telling,
    ),
    "bulk": Scenario(
        ("bulk_pages.act", "bulk.after_find"), many, work_on_many, all_ended, make_with_small_pages, holds=acts_once,
    ),
    "bulk by somebody": Scenario(
        ("bulk_pages.act_and_tell",), many_by_somebody, work_on_many, all_ended, make_with_small_pages,
        holds=acts_once_and_says_so,
    ),
    "bulk by somebody, here": replace(
        BY_HAND, about=("bulk_pages.act",), prepare=started(*[lambda: ends(how="done")] * 5), act=act_on_many,
        make=make_with_small_pages, holds=acts_once_and_says_so, is_whole=False,
    ),
    "start by somebody": replace(
        BY_HAND, about=("creation.start",), prepare=started(lambda: ends(how="done")), is_done=is_there(FIRST, SECOND),
        act=lambda hf: hf.sync.acting(by="ada").start_many([ends(how="done").options(id=i) for i in (FIRST, SECOND)]),
        holds=is_audited("start", f"SELECT 1 FROM holdfast_job WHERE id = '{FIRST}'"),
    ),
    "cancel by somebody": replace(
        BY_HAND, about=("steering.cancel",), prepare=lambda hf: hf.sync.start(ends(how="done"), id=FIRST, lane="a"),
        act=lambda hf: hf.sync.acting(by="ada").cancel(FIRST),
        holds=is_audited("cancel", "SELECT 1 FROM holdfast_job WHERE status = 'cancelled'"),
    ),
    "bulk, page by page": Scenario(
        IN_BLOCKS, many, work_on_many, all_ended, make_with_small_pages, holds=acts_once, each_pass=True,
    ),
    "reap": Scenario(("reaping.reap",), held_by_nobody, work, all_ended),
    "reap the dead": Scenario(
        ("reaping.reap_dead", "reap.after_proof", "workers.forget_with_lock"), started(job("done")), work, all_ended,
        needs_dead=True, databases=("sqlite",),
    ),
    "put a schedule": replace(
        BY_HAND, about=("schedules.put",), act=scheduled, is_done=is_scheduled, is_whole=False,
    ),
    "pause a schedule": replace(
        BY_HAND, about=("schedules.pause",), prepare=scheduled, act=lambda hf: hf.sync.schedules.pause("yearly"),
        is_done=is_paused,
    ),
    "resume a schedule": replace(
        BY_HAND, about=("schedules.resume",), prepare=paused_schedule,
        act=lambda hf: hf.sync.schedules.resume("yearly"), is_done=lambda hf: not is_paused(hf),
    ),
    "run a schedule": replace(
        BY_HAND, about=("schedules.run",), prepare=scheduled, act=lambda hf: hf.sync.schedules.run("yearly"),
        is_done=lambda hf: rows(hf, "SELECT count(*) FROM holdfast_job") == [(1,)],
    ),
    "delete a schedule": replace(
        BY_HAND, about=("schedules.delete",), prepare=scheduled, act=lambda hf: hf.sync.schedules.delete("yearly"),
        is_done=lambda hf: not is_scheduled(hf),
    ),
    "tick": Scenario(
        ("schedules.tick",), due, lambda hf: asyncio.run(_work(hf, has_ticked)), has_ticked,
        holds=each_tick_has_its_job,
    ),
    "repair a schedule": Scenario(
        ("schedules.repair",), too_late, lambda hf: asyncio.run(_work(hf, is_repaired)), is_repaired,
    ),
    "pay with SQLAlchemy": paying("with_sqlalchemy", "sqlite", "sqlalchemy.orm"),
    "pay with SQLAlchemy, async": paying("with_sqlalchemy_async", "postgres", "sqlalchemy.ext.asyncio", "asyncpg"),
    "pay with Django": paying("with_django", "postgres", "django.db.models"),
    "pay with Django on SQLite": paying("with_django", "sqlite", "django.db.models"),
    "admit for others": Scenario(("admission.admit",), elsewhere, work_elsewhere, arrived),
    "write figures": Scenario(
        ("tallies.write",), started(job("done")), work, all_ended, holds=none_is_counted_twice,
    ),
    "keep figures": replace(
        BY_HAND, about=("tallies.fold", "tallies.expire", "gauges.own", "gauges.keep"), prepare=counted_long_ago,
        act=keep_figures, is_done=are_kept, holds=each_is_counted_once, is_whole=False,
    ),
}  # fmt: skip
