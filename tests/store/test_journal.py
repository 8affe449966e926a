"""Journals in the store: who may append, what a repeated commit does, where the limits are, what goes with what."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import InvalidInput, JobNotFound, JournalEntry, JournalFull
from holdfast.journals import (
    BEGINNING,
    LOG,
    MOST_BYTES,
    MOST_ENTRIES,
    MOST_LOGS,
    JournalMark,
    NewEntry,
    check_kind,
    encode_body,
)
from holdfast.store import journal
from holdfast.store.jobs import journaling, reaping
from holdfast.store.jobs.claiming import ClaimState, Token
from holdfast.store.jobs.journaling import Told
from tests.support.factories import counted, make_job, seq_of
from tests.support.ways import Way


async def running(way: Way, **columns: Any) -> tuple[UUID, Token]:
    """Have a job that runs, and its token."""
    job = await make_job(way, "running", **columns)
    return job, Token(await seq_of(way, job), 1, "nonce-1")


def entries(*bodies: object, mark: JournalMark = BEGINNING, kind: str = "said") -> list[NewEntry]:
    """Make entries that follow *mark*."""
    made = []
    for body in bodies:
        text = json.dumps(body)
        mark = mark.after_log() if kind == LOG else mark.after_entry(text)
        made.append(NewEntry(mark, kind, text))
    return made


async def said(way: Way, job: UUID, **options: Any) -> list[Any]:
    """Read what the entries of a job say, as outsiders do."""
    return [each.body for each in await way.face.journal(job, limit=500, **options)]


async def told(way: Way, job: UUID) -> list[Any]:
    """Read the facts of the events of a job's journal."""
    sql = "SELECT facts FROM holdfast_event WHERE name = 'job:journal' AND job = :job ORDER BY seq"
    return [json.loads(facts) for (facts,) in await way.rows(sql, job=await seq_of(way, job))]


@pytest.mark.source("TQ-16", "TQ-17")
async def test_entries_are_read_in_order_by_kind_and_in_pages(way: Way) -> None:
    job, token = await running(way)
    first = entries("a", "b", kind="message")
    await way.call(journaling.append, token, first)
    await way.call(journaling.append, token, entries({"c": [1]}, mark=first[-1].mark, kind="http_exchange"))

    page = await way.face.journal(job, limit=2)
    assert [type(each) for each in page] == [JournalEntry, JournalEntry]
    assert [(each.number, each.attempt, each.kind, each.body) for each in page] == [
        (1, 1, "message", "a"),
        (2, 1, "message", "b"),
    ]
    assert page.next_cursor == "2"
    rest = await way.face.journal(job, after=page.next_cursor)
    assert ([each.body for each in rest], rest.next_cursor) == ([{"c": [1]}], None)
    assert await said(way, job, kind="message") == ["a", "b"]
    assert await said(way, job, after=1, kind="message") == ["b"]
    assert await said(way, job, kind="nothing") == []


async def test_the_journal_of_no_job_is_refused_and_so_is_a_wrong_place(way: Way) -> None:
    with pytest.raises(JobNotFound):
        await way.face.journal(uuid4())
    for after in (-1, "x", True, None):
        with pytest.raises(InvalidInput, match="after"):
            await way.face.journal(uuid4(), after=after)
    with pytest.raises(InvalidInput, match="limit"):
        await way.face.journal(uuid4(), limit=0)


async def test_a_repeated_append_writes_nothing_twice_and_tells_nothing_twice(way: Way) -> None:
    """An append whose answer was lost is repeated with the numbers that it had."""
    job, token = await running(way)
    first = entries("a", "b")

    for _ in range(2):
        assert await way.call(journaling.append, token, first, Told("said", 2)) is ClaimState.HELD
    more = entries("c", mark=first[-1].mark)
    assert await way.call(journaling.append, token, [*first, *more]) is ClaimState.HELD

    assert await said(way, job) == ["a", "b", "c"]
    assert await told(way, job) == [{"kind": "said", "number": 2}]


@pytest.mark.parametrize("token", [Token(0, 1, "another"), Token(0, 2, "nonce-1"), Token(0, 0, "nonce-1")])
async def test_a_lost_token_appends_nothing(way: Way, token: Token) -> None:
    """I-13: whoever has lost the job leaves no entry."""
    job, own = await running(way)

    state = await way.call(journaling.append, token._replace(seq=own.seq), entries("a"), Told("said", 1))

    assert state is ClaimState.TAKEN
    assert (await said(way, job), await told(way, job)) == ([], [])


async def test_a_reaped_attempt_appends_nothing(way: Way) -> None:
    """I-13: also while nobody has claimed the job since, and its nonce is still on the row."""
    job, token = await running(way, worker="dead")
    await way.call(journaling.append, token, entries("a"))
    assert len(await way.call(reaping.reap_dead, ["dead"])) == 1

    assert await way.call(journaling.append, token, entries("b", mark=JournalMark(1, 3))) is ClaimState.TAKEN
    await way.call(journaling.append_after_end, token, entries("b", mark=JournalMark(1, 3), kind=LOG))

    assert await said(way, job) == ["a"]


async def test_a_job_that_is_to_be_cancelled_takes_no_entry_and_one_to_be_paused_does(way: Way) -> None:
    cancelled, token = await running(way)
    await way.face.cancel(cancelled)
    assert await way.call(journaling.append, token, entries("a")) is ClaimState.CANCEL
    assert await said(way, cancelled) == []
    await way.call(journaling.append, token, entries("why it stops", kind=LOG))
    assert await said(way, cancelled) == ["why it stops"]

    paused, token = await running(way)
    await way.face.pause(paused)
    assert await way.call(journaling.append, token, entries("a")) is ClaimState.HELD
    assert await said(way, paused) == ["a"]


async def test_a_gap_and_a_stranger_mean_that_the_job_is_lost(way: Way) -> None:
    job, token = await running(way)
    await way.call(journal.write, token.seq, 7, entries("of another attempt"))

    assert await way.call(journaling.append, token, entries("gap", mark=JournalMark(4, 10))) is ClaimState.TAKEN
    assert await way.call(journaling.append, token, entries("stranger")) is ClaimState.TAKEN
    assert await way.call(journaling.append, token, entries("next", mark=JournalMark(1, 20))) is ClaimState.HELD

    assert await said(way, job) == ["of another attempt", "next"]


async def test_an_append_takes_four_statements_however_many_entries_it_has(way: Way) -> None:
    _, token = await running(way)
    mark = BEGINNING
    for count in (1, 10, 100):
        made = entries(*range(count), mark=mark)
        mark = made[-1].mark
        statements = await way.call(counted, journaling.append, token, made, Told("said", mark.number))
        assert len(statements) == 4, statements


async def test_log_lines_beyond_the_newest_thousand_go_and_no_other_entry_does(way: Way) -> None:
    job, token = await running(way)
    first = entries("kept")
    await way.call(journaling.append, token, first)
    mark = first[-1].mark
    for at, count in ((0, MOST_LOGS - 1), (MOST_LOGS - 1, 1), (MOST_LOGS, 3)):
        logs = entries(*range(at, at + count), mark=mark, kind=LOG)
        mark = logs[-1].mark
        for _ in range(2):  # a repeat removes no more
            await way.call(journaling.append, token, logs)
    await way.call(journaling.append, token, entries("last", mark=mark))

    page = [each.body for each in await way.face.journal(job, kind=LOG, limit=500)]
    assert page[0] == 3
    ((count,),) = await way.rows("SELECT count(*) FROM holdfast_journal WHERE kind = 'log'")
    assert count == MOST_LOGS
    assert await said(way, job, kind="said") == ["kept", "last"]
    ((logs_ever, total),) = await way.rows("SELECT logs, total FROM holdfast_journal ORDER BY number DESC LIMIT 1")
    assert (logs_ever, total) == (MOST_LOGS + 3, len('"kept""last"'))


def test_the_limits_of_a_journal_from_both_sides() -> None:
    """An entry more, or a byte more, is refused; log lines count towards neither."""
    assert len(encode_body("x" * 65_534)) == 65_536
    with pytest.raises(JournalFull) as large:
        encode_body("x" * 65_535)
    assert (large.value.limit, large.value.most, large.value.code) == ("entry", 65_536, "journal_full")
    with pytest.raises(JournalFull):
        encode_body("x" * 3_000_000)

    almost = JournalMark(MOST_ENTRIES + 500 - 1, 0, logs=500)
    full = almost.after_entry("1")
    assert full.number - full.logs == MOST_ENTRIES
    assert full.after_log().logs == 501
    with pytest.raises(JournalFull, match="10,000 entries"):
        full.after_entry("1")

    assert JournalMark(1, MOST_BYTES - 3).after_entry('"é"'.replace("é", "x")).total == MOST_BYTES
    with pytest.raises(JournalFull, match="bytes"):
        JournalMark(1, MOST_BYTES - 3).after_entry('"é"')


@pytest.mark.parametrize("kind", ["a", "message", "http_exchange", "a.b.c9", "a" * 64])
def test_a_kind_is_a_short_word(kind: str) -> None:
    assert check_kind(kind) == kind


@pytest.mark.parametrize("kind", ["", "A", "9a", "a-b", "a b", "a" * 65, "é", "a\n", 7, None, "holdfast.input", "log"])
def test_no_kind_is_anything_else_or_one_of_our_own(kind: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_kind(kind)
    assert refused.value.path == "kind"


@pytest.mark.parametrize("body", [float("nan"), "\0", object(), {1: 2}, b"\xff"])
def test_a_body_that_does_not_come_back_equal_is_refused(body: object) -> None:
    with pytest.raises(InvalidInput, match="body"):
        encode_body(body)


async def test_a_journal_goes_with_its_job(way: Way) -> None:
    job, token = await running(way)
    await way.call(journaling.append, token, entries("a"))

    await way.face.delete(job)

    assert await way.rows("SELECT number FROM holdfast_journal") == []


async def make_old(way: Way, job: UUID, hours: int) -> None:
    """Make the entries of a job older."""

    async def change(tx: Any, seq: int) -> None:
        await tx.execute("UPDATE holdfast_journal SET at = at - :ms WHERE job = :job", ms=hours * 3_600_000, job=seq)

    await way.call(change, await seq_of(way, job))


@pytest.mark.source("TQ-17", "TQ-44")
async def test_journals_have_an_age_of_their_own_once_their_chain_has_ended(way: Way) -> None:
    """A journal goes whole, after its last entry, and only of what has ended."""
    open_, token = await running(way)
    await way.call(journaling.append, token, entries("open"))
    ended: list[UUID] = []
    for words in (["old", "old"], ["old", "young"]):
        job, token = await running(way)
        await way.call(journaling.append, token, entries(words[0]))
        await make_old(way, job, 3)
        await way.call(journaling.append, token, entries(words[1], mark=JournalMark(1, 5)))
        if words[1] == "old":
            await make_old(way, job, 3)
        await way.call(finish, token.seq)
        ended.append(job)
    await make_old(way, open_, 9)

    jobs, position = await way.read(journal.find_old, 2 * 3_600_000, journal.JournalPosition())
    assert (len(jobs), position) == (3, None)
    assert await way.call(journal.delete_old, jobs, 2 * 3_600_000) == 1

    assert [await said(way, each) for each in (open_, *ended)] == [["open"], [], ["old", "young"]]


async def finish(tx: Any, seq: int) -> None:
    """End a chain of one job."""
    await tx.execute(
        """UPDATE holdfast_job SET status = 'completed', output = 'null', closed_as = 'completed', closed_at = 1,
        finished_at = 1, worker = NULL, lease_until = NULL WHERE seq = :seq""",
        seq=seq,
    )
