"""The journal inside an attempt: lost answers, cancels, lost leases, merged events, and log lines that are kept."""

from __future__ import annotations

import asyncio
import logging
import threading
from itertools import count
from random import Random
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput, JournalFull, LeaseLost, Retry, UnknownOutcome, journals
from holdfast.errors import Unavailable
from holdfast.logging import KEPT_LOGS
from holdfast.runtime import Runtime
from holdfast.store import journal
from holdfast.store.jobs import journaling, reaping
from holdfast.tasks.task import Policy
from holdfast.worker.attempts import journal as attempt_journal
from holdfast.worker.attempts import late_entries
from holdfast.worker.attempts.attempt import Attempt
from holdfast.worker.attempts.journal import AttemptJournal
from holdfast.worker.leases import LeaseKeeper
from tests.support.conditions import until
from tests.worker.colours import Colour

ONCE = Retry.never()
ASYNC = ("sqlite-async", "postgres-async")


async def bodies(hf: Holdfast, chain: Any, **options: Any) -> list[Any]:
    """Read what the entries of a job say."""
    return [each.body for each in await hf.journal(chain, limit=500, **options)]


async def told(colour: Colour, chain: Any) -> list[int]:
    """Give the numbers that the events of a journal name, in order."""
    timeline = await colour.hf.timeline(chain, limit=500)
    return [each.facts["number"] for each in timeline if each.name == "job:journal"]


async def test_an_append_whose_answer_is_lost_is_repeated_and_writes_one_entry(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_journal, "TROUBLE_SECONDS", 0.001)
    commit = AttemptJournal._commit
    lost = [UnknownOutcome("the answer was lost"), Unavailable("and then the database was away")]

    async def commit_and_lose(self: AttemptJournal, told_: Any) -> Any:
        answer = await commit(self, told_)
        if lost:
            raise lost.pop(0)
        return answer

    monkeypatch.setattr(AttemptJournal, "_commit", commit_and_lose)

    async def speaks(ctx: Any, n: int) -> int:
        await ctx.journal.append("said", "a")
        await ctx.journal.append("said", "b")
        return n

    task = colour.task(speaks, int, retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        assert await chain.result(timeout=30) == 1

    assert not lost
    assert await bodies(colour.hf, chain) == ["a", "b"]
    assert (await told(colour, chain))[0] == 1


async def test_an_attempt_that_was_reaped_appends_nothing(colour: Colour, monkeypatch: pytest.MonkeyPatch) -> None:
    """I-13: neither by itself nor in a block, also if it has heard nothing of that."""
    monkeypatch.setattr(LeaseKeeper, "step", lambda self: None)
    raised: list[BaseException] = []
    is_reaped, has_begun = threading.Event(), threading.Event()

    async def speaks(ctx: Any, n: int) -> None:
        if ctx.job.attempt > 1:
            return
        await ctx.journal.append("said", "mine")
        has_begun.set()
        await colour.wait(is_reaped)
        try:
            await ctx.journal.append("said", "no longer mine")
        except LeaseLost as error:
            raised.append(error)
            raise

    task = colour.task(speaks, type(None), retry=ONCE)
    async with colour.hf.worker() as worker:
        chain = await colour.hf.start(task(n=1))
        await until(has_begun.is_set, "the handler has appended", 30)
        await colour.hf.store.run(reaping.reap_dead, [worker.id])
        is_reaped.set()
        await until(lambda: bool(raised), "the append was refused", 30)

    assert isinstance(raised[0], LeaseLost)
    assert await bodies(colour.hf, chain) == ["mine"]


@pytest.mark.parametrize("colour", ASYNC, indirect=True)
async def test_an_append_that_was_cancelled_is_there_once_or_not_at_all(colour: Colour) -> None:
    async def speaks(ctx: Any, n: int) -> None:
        await ctx.journal.append("said", 0)
        for number in range(1, 6):
            appending = asyncio.ensure_future(ctx.journal.append("said", number))
            for _ in range(number):
                await asyncio.sleep(0)
            appending.cancel()
            await asyncio.wait([appending])
        await ctx.journal.append("said", 6)

    task = colour.task(speaks, type(None), retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await chain.result(timeout=30)

    found = await bodies(colour.hf, chain)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (0, 6)


async def test_entries_that_come_fast_are_told_together_and_the_last_one_is_told(colour: Colour) -> None:
    """At most four events a second: of a burst the first entry and the last one, while the handler still runs."""
    may_end = threading.Event()

    async def speaks(ctx: Any, n: int) -> None:
        for number in range(n):
            await ctx.journal.append("said", number)
        await colour.wait(may_end)

    task = colour.task(speaks, type(None), retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=20))

        async def is_told() -> bool:
            return (await told(colour, chain))[-1:] == [20]

        await until(is_told, "the last entry is told", 30)
        may_end.set()
        await chain.result(timeout=30)

    timeline = [each for each in await colour.hf.timeline(chain, limit=500) if each.name == "job:journal"]
    numbers = [each.facts["number"] for each in timeline]
    assert (numbers[0], numbers[-1], timeline[0].facts["kind"]) == (1, 20, "said")
    seconds = (timeline[-1].at - timeline[0].at).total_seconds()
    assert len(numbers) <= 2 + seconds / 0.2


async def test_an_entry_that_is_not_told_yet_is_told_before_the_end(colour: Colour) -> None:
    async def speaks(ctx: Any, n: int) -> None:
        for number in range(n):
            await ctx.journal.append("said", number)

    task = colour.task(speaks, type(None), retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=3))
        await chain.result(timeout=30)

    names = await colour.events(chain)
    assert (await told(colour, chain))[-1] == 3
    assert names.index("job:completed") > max(at for at, name in enumerate(names) if name == "job:journal")


async def test_a_job_that_never_appends_has_no_journal_and_runs_no_statement_of_it(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(Attempt, "make_journal", made.append)

    async def silent(ctx: Any, n: int) -> int:
        logging.getLogger("shop").warning("nobody keeps this")
        return n

    task = colour.task(silent, int, retry=ONCE)
    async with colour.hf.worker():
        assert await (await colour.hf.start(task(n=1))).result(timeout=30) == 1

    assert made == []


logger = logging.getLogger("shop.orders")


@pytest.fixture
def logs_all() -> Any:
    """A logger that lets everything pass."""
    logger.setLevel(logging.DEBUG)
    yield
    logger.setLevel(logging.NOTSET)


@pytest.mark.source("TQ-17")
@pytest.mark.usefixtures("logs_all")
@pytest.mark.parametrize("ends", ["returns", "raises", "completes in a block"])
async def test_log_lines_of_a_handler_are_kept_in_its_journal(colour: Colour, ends: str) -> None:
    async def speaks(ctx: Any, n: int) -> int:
        logger.debug("too low")
        logger.info("order %s", n, extra={"secret": "hidden"})
        await ctx.journal.append("said", "between")
        logger.error("NUL \0 in it")
        if ends == "raises":
            raise ValueError("no")
        if ends == "returns":
            return n
        async with ctx.complete() as tx:
            tx.finish(n)
        logger.warning("afterwards")
        return n

    task = colour.task(speaks, int, retry=ONCE, keep_logs="INFO")
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=7))
        await colour.hf.wait([chain], timeout=30)

        async def has_all() -> bool:
            return len(await bodies(colour.hf, chain)) == 3 + (ends == "completes in a block")

        await until(has_all, "all lines are kept", 30)

    entries = (await colour.hf.journal(chain)).items
    assert [each.kind for each in entries[:3]] == ["log", "said", "log"]
    first = entries[0].body
    assert {name: value for name, value in first.items() if name != "time"} == {
        "level": "INFO",
        "logger": "shop.orders",
        "message": "order 7",
    }
    assert first["time"].endswith("+00:00")
    assert entries[2].body["message"] == "NUL \\u0000 in it"
    assert "hidden" not in repr(entries)


@pytest.mark.usefixtures("logs_all")
async def test_a_level_whose_name_cannot_be_stored_spoils_no_journal(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(logging._levelToName, 35, "odd \0")

    async def speaks(ctx: Any, n: int) -> int:
        logger.log(35, "order %s", n)
        await ctx.journal.append("said", n)
        return n

    task = colour.task(speaks, int, retry=ONCE, keep_logs="INFO")
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=7))
        assert await chain.result(timeout=30) == 7

    line, said = (await colour.hf.journal(chain)).items
    assert (line.body["level"], said.body) == ("odd \\u0000", 7)


@pytest.mark.usefixtures("logs_all")
async def test_log_lines_are_written_while_the_handler_runs(colour: Colour, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_journal, "LOG_SECONDS", 0.05)
    may_end = threading.Event()

    async def speaks(ctx: Any, n: int) -> None:
        logger.info("begun")
        await colour.wait(may_end)

    task = colour.task(speaks, type(None), retry=ONCE, keep_logs="INFO")
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))

        async def is_kept() -> bool:
            return [each["message"] for each in await bodies(colour.hf, chain)] == ["begun"]

        await until(is_kept, "the line is kept", 30)
        may_end.set()
        await chain.result(timeout=30)

    assert len(await bodies(colour.hf, chain)) == 1


@pytest.mark.usefixtures("logs_all")
async def test_log_lines_that_cannot_be_written_fail_no_job(colour: Colour, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> None:
        raise Unavailable("the database is away")

    monkeypatch.setattr(AttemptJournal, "_write_rest", fail)

    async def speaks(ctx: Any, n: int) -> int:
        logger.info("lost")
        return n

    task = colour.task(speaks, int, retry=ONCE, keep_logs="INFO")
    async with colour.hf.worker():
        assert await (await colour.hf.start(task(n=1))).result(timeout=30) == 1


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of which every second answer to a commit is lost."""
    commit, calls = AttemptJournal._commit, count()

    async def lose(self: AttemptJournal, told_: Any) -> Any:
        answer = await commit(self, told_)
        if next(calls) % 2 == 0:
            raise UnknownOutcome("the answer was lost")
        return answer

    monkeypatch.setattr(attempt_journal, "TROUBLE_SECONDS", 0.001)
    monkeypatch.setattr(AttemptJournal, "_commit", lose)


@pytest.mark.usefixtures("forgetful")
@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.long) for each in range(1, 4))])
@pytest.mark.parametrize("colour", ASYNC, indirect=True)
async def test_entries_keep_the_order_of_the_calls_whatever_happens(colour: Colour, seed: int) -> None:
    """Alone or many at once, in a block or not, over several attempts, with answers that are lost."""
    chance, numbers, said = Random(seed), count(), list[int]()

    def some() -> list[int]:
        drawn = [next(numbers) for _ in range(chance.randint(1, 4))]
        said.extend(drawn)
        return drawn

    async def speaks(ctx: Any, n: int) -> None:
        if chance.random() < 0.5:
            async with ctx.prepare() as tx:
                for number in some():
                    await tx.journal.append("said", number)
        for _ in range(chance.randint(1, 4)):
            await asyncio.gather(*(ctx.journal.append("said", number) for number in some()))
        if ctx.job.attempt < 3:
            raise ValueError("once more")
        async with ctx.complete() as tx:
            await asyncio.gather(*(tx.journal.append("said", number) for number in some()))

    task = colour.task(speaks, type(None), retry=Retry(attempts=3, first=0.001, maximum=0.001, jitter=0))
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await chain.result(timeout=30)

    entries = (await colour.hf.journal(chain, limit=500)).items
    assert [each.body for each in entries] == said == list(range(len(said)))
    assert [each.number for each in entries] == list(range(1, len(said) + 1))
    assert [each.attempt for each in entries] == sorted(each.attempt for each in entries)


async def test_a_line_that_cannot_be_said_is_left_out_and_harms_nobody(colour: Colour) -> None:
    class Unspeakable:
        def __str__(self) -> str:
            raise ValueError

    async def speaks(ctx: Any, n: int) -> None:
        kept = KEPT_LOGS.get()
        assert kept is not None
        for said in (Unspeakable(), "plain"):
            kept.keep(logging.LogRecord("shop", logging.INFO, "shop.py", 1, "said %s", (said,), None))

    task = colour.task(speaks, type(None), retry=ONCE, keep_logs="INFO")
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await chain.result(timeout=30)

    assert [each["message"] for each in await bodies(colour.hf, chain)] == ["said plain"]


@pytest.mark.usefixtures("logs_all")
@pytest.mark.parametrize("kind", ["complete", "atomic"])
async def test_a_block_and_what_is_written_later_do_not_wait_for_each_other(
    colour: Colour, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """On SQLite nobody else writes while a block is open: it must not wait for the turn of one who waits for it."""
    monkeypatch.setattr(attempt_journal, "LOG_SECONDS", 0.01)
    monkeypatch.setattr(attempt_journal, "EVENT_SECONDS", 0.01)
    tries, write_late = count(), AttemptJournal.write_late
    seen: list[int] = []

    async def counted(self: AttemptJournal, runner: Any) -> None:
        seen.append(next(tries))
        await write_late(self, runner)

    monkeypatch.setattr(AttemptJournal, "write_late", counted)

    async def speaks(ctx: Any, n: int) -> int:
        await ctx.journal.append("said", "before")
        async with getattr(ctx, kind)() as tx:
            before = len(seen)
            logger.info("inside")
            while len(seen) < before + 3:
                await (asyncio.sleep(0.001) if colour.is_async else pause())
            await tx.journal.append("said", "inside")
            return tx.finish(n)  # type: ignore[no-any-return]

    task = colour.task(speaks, int, retry=ONCE, keep_logs="INFO")
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=7))
        assert await chain.result(timeout=30) == 7

        async def is_kept() -> bool:
            return len(await bodies(colour.hf, chain, kind="log")) == 1

        await until(is_kept, "the line is kept", 30)

    assert await bodies(colour.hf, chain, kind="said") == ["before", "inside"]


async def pause() -> None:
    """Let other threads run."""
    threading.Event().wait(0.001)


@pytest.mark.usefixtures("logs_all")
async def test_the_log_lines_of_a_job_that_was_cancelled_are_kept(colour: Colour) -> None:
    is_waiting = threading.Event()

    async def speaks(ctx: Any, n: int) -> None:
        logger.info("begun")
        is_waiting.set()
        if colour.is_async:
            await ctx.aborted
        else:
            ctx.aborted.wait(30)
        logger.info("asked to stop")
        ctx.raise_if_aborted()

    task = colour.task(speaks, type(None), retry=ONCE, keep_logs="INFO")
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await until(is_waiting.is_set, "the handler runs", 30)
        await colour.hf.cancel(chain)
        await colour.until_status(chain, "cancelled")

    said = [each["message"] for each in await bodies(colour.hf, chain)]
    assert said == (["begun"] if colour.is_async else ["begun", "asked to stop"])


async def test_a_full_journal_says_so_and_keeps_the_lines_that_wait(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journals, "MOST_ENTRIES", 2)
    limits: list[str] = []

    async def speaks(ctx: Any, n: int) -> None:
        for number in range(3):
            kept = KEPT_LOGS.get()
            assert kept is not None
            kept.keep(logging.LogRecord("shop", logging.INFO, "shop.py", 1, "line", (), None))
            try:
                await ctx.journal.append("said", number)
            except JournalFull as error:
                limits.append(error.limit)

    task = colour.task(speaks, type(None), retry=ONCE, keep_logs="INFO")
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await chain.result(timeout=30)

    assert limits == ["entries"]
    assert [each.kind for each in await colour.hf.journal(chain)] == ["log", "said", "log", "said", "log"]


@pytest.mark.parametrize("colour", ASYNC, indirect=True)
async def test_a_pass_of_retention_deletes_journals_of_their_own_age(colour: Colour) -> None:
    async def speaks(ctx: Any, n: int) -> None:
        await ctx.journal.append("said", n)

    task = colour.task(speaks, type(None), retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await chain.result(timeout=30)
    assert (await colour.hf.retain()).journals == 0

    ageing = Holdfast(store=colour.hf.store, settings=colour.hf.settings.model_copy(update=AT_ONCE))
    assert (await ageing.retain(dry_run=True)).journals == 0
    assert (await ageing.retain()).journals == 1

    assert await bodies(colour.hf, chain) == []
    assert (await colour.hf.get_job(chain)).status == "completed"


AT_ONCE = {"delete_journal_after_seconds": 0.0}


async def test_a_job_without_history_has_a_journal_and_no_events(colour: Colour) -> None:
    async def speaks(ctx: Any, n: int) -> None:
        await ctx.journal.append("said", n)

    task = colour.task(speaks, type(None), retry=ONCE, history=False)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await chain.result(timeout=30)

    assert (await bodies(colour.hf, chain), await colour.events(chain)) == ([1], [])


@pytest.mark.parametrize("level", ["info", 20, "", "LOUD"])
def test_a_level_of_log_lines_is_one_of_the_names(level: object) -> None:
    with pytest.raises(InvalidInput, match="keep_logs"):
        Policy(keep_logs=level)  # type: ignore[arg-type]


@pytest.mark.usefixtures("logs_all")
async def test_a_line_is_kept_that_is_said_while_earlier_ones_are_being_written(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_journal, "LOG_SECONDS", 0.01)
    write, end = AttemptJournal._write_rest, AttemptJournal.end
    is_written, has_ended = threading.Event(), threading.Event()

    async def write_and_linger(self: AttemptJournal, runner: Any) -> None:
        await write(self, runner)
        if not is_written.is_set():
            is_written.set()
            await until(has_ended.is_set, "the handler has ended", 30)

    async def note_and_end(self: AttemptJournal) -> None:
        has_ended.set()
        await end(self)

    monkeypatch.setattr(AttemptJournal, "_write_rest", write_and_linger)
    monkeypatch.setattr(AttemptJournal, "end", note_and_end)

    async def speaks(ctx: Any, n: int) -> None:
        logger.info("first")
        await colour.wait(is_written)
        logger.info("last")

    task = colour.task(speaks, type(None), retry=ONCE, keep_logs="INFO")
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await chain.result(timeout=30)

    assert [each["message"] for each in await bodies(colour.hf, chain)] == ["first", "last"]


@pytest.mark.usefixtures("logs_all")
async def test_lines_of_a_handler_that_goes_on_while_the_database_is_away_take_bounded_memory(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (attempt_journal, "LOG_SECONDS", 0.001),
        (attempt_journal, "MOST_LOGS", 10),
        (late_entries, "TROUBLE_SECONDS", 0.001),
    ):
        monkeypatch.setattr(module, name, value)
    append = journaling.append
    sizes: list[int] = []
    is_away = threading.Event()

    async def append_if_there(tx: Any, token: Any, entries: Any, told_: Any = None) -> Any:
        sizes.append(len(entries))
        if is_away.is_set():
            raise Unavailable("the database is away")
        return await append(tx, token, entries, told_)

    monkeypatch.setattr(journaling, "append", append_if_there)

    async def speaks(ctx: Any, n: int) -> None:
        await ctx.journal.append("said", "hello")
        is_away.set()
        for part in range(5):
            seen, tried = len(sizes), threading.Event()
            for line in range(10):
                logger.info("line %s", 10 * part + line)
            if colour.is_async:
                await until(lambda: len(sizes) > seen, "a write was tried", 30)  # noqa: B023
            else:
                while len(sizes) == seen:
                    tried.wait(0.001)
        is_away.clear()

    task = colour.task(speaks, type(None), retry=ONCE, keep_logs="INFO")
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await chain.result(timeout=30)

    assert max(sizes) <= 10
    lines = [each["message"] for each in await bodies(colour.hf, chain, kind="log")]
    assert lines[-10:] == [f"line {number}" for number in range(40, 50)]


@pytest.mark.parametrize("colour", ASYNC, indirect=True)
async def test_a_cancel_is_of_the_append_that_it_came_to_and_of_nobody_who_reads(
    colour: Colour, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_journal, "TROUBLE_SECONDS", 0.001)
    read = journal.read
    is_committing, may_commit, has_failed = asyncio.Event(), asyncio.Event(), asyncio.Event()
    met: list[str] = []

    async def committing(self: Any, writing: Any, on_cancel: Any) -> Any:
        async def slowly() -> Any:
            is_committing.set()
            await may_commit.wait()
            return await writing

        return await wait_for_answer(self, slowly(), on_cancel)

    async def fail_once(*args: Any) -> Any:
        if not has_failed.is_set():
            has_failed.set()
            raise Unavailable("the database is away")
        return await read(*args)

    wait_for_answer = Attempt.committing
    monkeypatch.setattr(Attempt, "committing", committing)
    monkeypatch.setattr(journal, "read", fail_once)

    async def speaks(ctx: Any, n: int) -> None:
        appending = asyncio.create_task(ctx.journal.append("said", "a"))
        await is_committing.wait()
        appending.cancel()
        await asyncio.sleep(0)  # it has come to the append, which waits for its answer
        try:
            await ctx.journal.read()
        except asyncio.CancelledError:
            met.append("the reader is cancelled")
        may_commit.set()
        try:
            await appending
        except asyncio.CancelledError:
            met.append("the append is cancelled")

    task = colour.task(speaks, type(None), retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await chain.result(timeout=30)

    assert met == ["the append is cancelled"]
    assert await bodies(colour.hf, chain) == ["a"]


async def test_a_kind_that_no_entry_can_have_is_refused_by_who_reads(colour: Colour) -> None:
    kinds: list[Any] = ["", "Said", "a\0", "\ud800", 5, b"said", [], {}]
    refused: list[Any] = []

    async def speaks(ctx: Any, n: int) -> None:
        for kind in kinds:
            try:
                await ctx.journal.read(kind=kind)
            except InvalidInput:
                refused.append(kind)

    task = colour.task(speaks, type(None), retry=ONCE)
    async with colour.hf.worker():
        chain = await colour.hf.start(task(n=1))
        await colour.hf.wait([chain], timeout=30)

    assert refused == kinds
    for kind in kinds:
        with pytest.raises(InvalidInput, match="kind must be"):
            await colour.hf.journal(chain, kind=kind)


async def test_who_logs_inside_logging_does_not_wait_for_itself(colour: Colour) -> None:
    """A finalizer or a signal handler may log at any line, also while an earlier line is being handed over."""

    class Journal:
        async def write_late(self, runner: Any) -> None:
            """Write nothing."""

        def __hash__(self) -> int:  # asked for while the list of journals is held
            if not has_logged.is_set():
                has_logged.set()
                late.add(Journal(), 60)
            return 1

    has_logged = threading.Event()
    late = late_entries.LateEntries(colour.hf.store, Runtime())
    adding = threading.Thread(target=late.add, args=(Journal(), 60), daemon=True)
    adding.start()
    await asyncio.to_thread(adding.join, 10)
    assert has_logged.is_set()
    assert not adding.is_alive()
