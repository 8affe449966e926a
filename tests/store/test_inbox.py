"""The inbox: every kind of thing that waits for a person, page by page, whatever else is in the tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from holdfast import (
    Ask,
    DeadLetter,
    Failure,
    Halt,
    InvalidInput,
    InvalidOutput,
    PausedJob,
    Question,
    StatusConflict,
    UsageError,
)
from holdfast.database.tx import Tx
from holdfast.models import DELIVER, INTERNAL_QUEUE
from holdfast.questions import KINDS, InboxEntry
from holdfast.store import task_rows
from holdfast.store.insight import inbox
from holdfast.store.rows import instant
from holdfast.tasks.task import Task
from tests.store.engine import admit
from tests.support.factories import change_job, counted, greet, make_job, now_ms, seq_of
from tests.support.ways import Way

MINUTE_MS = 60_000


@dataclass
class Refund:
    order: int


@dataclass
class Decision:
    is_approved: bool
    note: str = ""


async def ask_for(way: Way, name: str = "approve", **options: Any) -> Task[..., Decision]:
    """Declare a task that asks, and write it down as a program that opens does."""
    asks = options.pop("asks", Question("Approve the refund?", help="Compare it with the invoice."))
    task = way.hf.declare(name, Refund, Decision, asks=asks, **options)
    await way.face.open()
    return task


async def fail(way: Way, message: str = "no answer", kind: str = "TimeoutError", **columns: Any) -> UUID:
    error = json.dumps({"type": kind, "message": message, "traceback": "…" * 3_000, "attempt": 1, "worker": "w"})
    return await make_job(way, "failed", **{"error": error, "finished_at": now_ms(), **columns})


async def give_up(way: Way, receiver: str, subscription: UUID | None, **columns: Any) -> UUID:
    """Make a delivery that has failed for good."""
    delivery = await fail(way, "answered 500", "DeliveryFailed", task=DELIVER, queue=INTERNAL_QUEUE, **columns)
    whose = None if subscription is None else str(subscription)
    await way.call(_execute, MAKE_DELIVERY, job=await seq_of(way, delivery), receiver=receiver, subscription=whose)
    return delivery


MAKE_DELIVERY = """
    INSERT INTO holdfast_delivery (job, target, event, subscription, receiver)
    VALUES (:job, 1, 'job:failed', :subscription, :receiver)"""


async def _execute(tx: Tx, /, sql: str, **values: object) -> None:
    await tx.execute(sql, **values)


async def one_of_each(way: Way) -> dict[str, UUID]:
    """Make an entry of every kind, the kinds in the reverse of their order; give the job of each."""
    approve = await ask_for(way)
    letter = await give_up(way, "example.com:443/hook", None)
    halting = await fail(way, lane="vm-7", head=1, place=1)
    paused = await make_job(way, "paused", reason="look at it")
    failed = await fail(way)
    asked = await way.face.start(approve(order=41))
    return dict(zip(KINDS, (asked.id, failed, paused, halting, letter), strict=True))


def job_of(entry: InboxEntry) -> UUID:
    return entry.example if isinstance(entry, Failure | DeadLetter) else entry.id


async def all_pages(way: Way, limit: int, **wanted: Any) -> list[Any]:
    page = await way.face.inbox(limit=limit, **wanted)
    found = list(page)
    while page.next_cursor is not None:
        page = await way.face.inbox(limit=limit, cursor=page.next_cursor, **wanted)
        assert len(page) <= limit
        found += page
    return found


async def test_what_waits_for_nobody_is_in_no_inbox(way: Way) -> None:
    await ask_for(way)
    for status in ("pending", "running", "completed", "cancelled", "blocked"):
        await make_job(way, status)
    await make_job(way, "pending", queue="people")  # somebody else's queue of this name

    assert list(await way.face.inbox()) == []
    assert [list(await way.face.inbox(kind=kind)) for kind in KINDS] == [[]] * len(KINDS)


async def test_the_inbox_shows_each_kind_in_a_fixed_order(way: Way) -> None:
    jobs = await one_of_each(way)

    page = await way.face.inbox()

    assert [(each.kind, job_of(each)) for each in page] == list(jobs.items())
    assert [type(each) for each in page] == [Ask, Failure, PausedJob, Halt, DeadLetter]
    assert page.next_cursor is None


@pytest.mark.parametrize("kind", KINDS)
async def test_the_inbox_can_be_narrowed_to_one_kind(way: Way, kind: Any) -> None:
    jobs = await one_of_each(way)

    assert [job_of(each) for each in await way.face.inbox(kind=kind)] == [jobs[kind]]


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_pages_of_any_size_show_everything_once(way: Way, limit: int) -> None:
    jobs = await one_of_each(way)

    assert [job_of(each) for each in await all_pages(way, limit)] == list(jobs.values())


async def test_a_question_comes_with_all_that_an_answer_needs(way: Way) -> None:
    approve = await ask_for(way, queue="refunds")
    chain = await way.face.start(approve(order=41), priority=3)

    (ask,) = await way.face.inbox()

    assert (ask.id, ask.job.input, ask.job.queue) == (chain.id, Refund(41), "refunds")
    assert (ask.title, ask.help) == ("Approve the refund?", "Compare it with the invoice.")
    assert ask.output_schema["properties"]["is_approved"]["type"] == "boolean"
    assert ask.since == ask.job.created_at  # whatever its priority


async def test_a_program_that_does_not_know_the_task_still_shows_its_question(way: Way) -> None:
    approve = await ask_for(way)
    await way.face.start(approve(order=41))
    way.hf.tasks._by_name.pop("approve")

    (ask,) = await way.face.inbox()

    assert (ask.title, ask.job.input) == ("Approve the refund?", {"order": 41})


async def test_answering_a_question_takes_it_out_of_the_inbox(way: Way) -> None:
    approve = await ask_for(way)
    chain = await way.face.start(approve(order=41))
    (ask,) = await way.face.inbox()

    with pytest.raises(InvalidOutput):
        await way.face.complete(approve, ask, "perhaps")
    await way.face.complete(approve, ask, Decision(is_approved=True), by="ada")

    assert list(await way.face.inbox()) == []
    assert await _result(way, chain) == Decision(is_approved=True)
    with pytest.raises(StatusConflict, match="is completed"):
        await way.face.complete(approve, ask, Decision(is_approved=False), by="bob")


async def _result(way: Way, chain: Any) -> Any:
    return await chain.result(timeout=10) if way.is_async else chain.result(timeout=10)


async def test_a_question_is_asked_once_nothing_else_is_to_be_waited_for(way: Way) -> None:
    approve = await ask_for(way)
    first = await way.face.start(approve(order=1), lane="orders")
    await way.face.start(approve(order=2), lane="orders")
    await way.face.start(approve(order=3), delay=3600)
    await admit(way, "people")

    assert [each.job.input.order for each in await way.face.inbox()] == [1]
    await way.face.complete(approve, first, Decision(is_approved=True))
    assert [each.job.input.order for each in await way.face.inbox()] == [2]


async def test_questions_of_several_tasks_come_oldest_first(way: Way) -> None:
    tasks = [await ask_for(way, name) for name in ("b", "a", "c")]
    numbers = [0, 1, 2, 1, 0, 2]
    chains = [await way.face.start(tasks[number](order=n)) for n, number in enumerate(numbers)]
    for n, chain in enumerate(chains):  # those of one moment have the order of their starts
        await change_job(way, chain.id, sort_key=1_000 + n // 2)
    await change_job(way, chains[5].id, sort_key=1)

    expected = [chains[n].id for n in (5, 0, 1, 2, 3, 4)]

    assert [each.id for each in await way.face.inbox()] == expected
    assert [each.id for each in await all_pages(way, 2)] == expected


async def test_more_asking_tasks_than_are_read_at_once_lose_no_question(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "MOST_KINDS", 2)
    tasks = [await ask_for(way, f"ask-{n}") for n in range(5)]
    chains = [await way.face.start(tasks[n % 5](order=n)) for n in range(10)]
    for chain in chains:
        await change_job(way, chain.id, sort_key=1_000)

    assert [each.id for each in await all_pages(way, 500)] == [each.id for each in chains]


async def test_failed_jobs_are_grouped_by_task_error_and_first_line(way: Way) -> None:
    oldest = await fail(way, "no answer\nfrom 10.0.0.1")
    newest = await fail(way, "  no answer  \nfrom 10.0.0.2")
    other_line = await fail(way, "no answer from 10.0.0.3")
    other_type = await fail(way, kind="OSError")
    other_task = await fail(way, task="add")
    await change_job(way, oldest, finished_at=1_000)

    groups = await way.face.inbox(kind="failed")

    assert [each.example for each in groups] == [newest, other_line, other_type, other_task]
    assert groups[0] == Failure(
        task="greet",
        error_type="TimeoutError",
        message="no answer",
        count=2,
        is_exact=True,
        example=newest,
        since=instant(1_000),
    )


async def test_a_failure_without_an_exception_is_known_by_its_reason(way: Way) -> None:
    await make_job(way, "failed", reason="the blocker failed\nbadly")

    ((found),) = await way.face.inbox()

    assert (found.error_type, found.message) == (None, "the blocker failed")


@pytest.mark.parametrize(
    "message",
    ["ü" * 2_000, '\\"' * 900, "\\" * 999, *("x" * n + "\U0001f600" * 400 for n in range(12)), "plain", ""],
    ids=lambda message: f"{message[:3]!a}-{message.count('x')}",
)
async def test_a_long_message_is_cut_and_never_garbled(way: Way, message: str) -> None:
    await fail(way, message)

    (found,) = await way.face.inbox()

    assert found.error_type == "TimeoutError"
    assert message.startswith(found.message)
    assert len(found.message) >= min(len(message), 80)


async def test_failures_are_counted_among_the_newest_and_marked_so(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MOST_FAILED", 4)
    for _ in range(2):
        await fail(way, "old")
    assert [each.is_exact for each in await way.face.inbox(kind="failed")] == [True]

    for _ in range(3):
        await fail(way, "new")

    found = await way.face.inbox()

    assert [(each.message, each.count, each.is_exact) for each in found] == [("old", 1, False), ("new", 3, False)]


async def test_failures_hide_no_paused_job(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MOST_FAILED", 2)
    paused = [await make_job(way, "paused") for _ in range(3)]
    for _ in range(3):
        await fail(way)

    assert [each.id for each in await way.face.inbox(kind="paused")] == paused


async def test_a_paused_job_says_since_when(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await way.face.pause(chain, why="look at it")
    at_once = await way.face.start(greet(name="Bob"), paused=True)
    await way.call(_execute, TOLD_LATER, job=await seq_of(way, chain.id))

    found = await way.face.inbox()

    assert [each.id for each in found] == [chain.id, at_once.id]
    timeline = await way.face.timeline(chain)
    assert found[0].since == next(each.at for each in timeline if each.name == "job:paused")
    assert found[0].job.reason == "look at it"
    assert found[1].since == found[1].job.created_at


TOLD_LATER = """INSERT INTO holdfast_event (job, name, at) VALUES (:job, 'job:webhook:delivered', 1)"""


async def test_a_halted_lane_says_by_which_job_and_how_many_wait(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = await fail(way, lane="vm-7", head=1, place=1, finished_at=5_000)
    for place in range(2, 5):
        await make_job(way, lane="vm-7", gate="lane", place=place)
    paused = await make_job(way, "paused", lane="vm-8", head=1, place=1)
    await make_job(way, "running", lane="vm-9", head=1, place=1)

    found = await way.face.inbox()

    assert [(each.lane, each.id, each.behind) for each in found] == [("vm-7", failed, 3), ("vm-8", paused, 0)]
    assert found[0].since == instant(5_000)
    assert found[0].job.error["message"] == "no answer"


async def test_those_who_wait_in_a_halted_lane_are_counted_up_to_a_hundred(way: Way) -> None:
    await fail(way, lane="vm-7", head=1, place=1)
    await way.call(_execute, MANY_BEHIND)

    (found,) = await way.face.inbox(kind="halted")

    assert found.behind == inbox.MOST_BEHIND


MANY_BEHIND = """
    INSERT INTO holdfast_job (id, chain_id, task, queue, status, gate, lane, place, run_at, input, created_at)
    WITH RECURSIVE series(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM series WHERE n < 150)
    SELECT CAST(n AS text), CAST(n AS text), 'greet', 'default', 'pending', 'lane', 'vm-7', n, 0, '{}', 0 FROM series"""


async def test_deliveries_that_were_given_up_are_grouped_by_receiver(way: Way) -> None:
    subscription = UUID(int=7)
    first = await give_up(way, "example.com:443/hook", subscription)
    newest = await give_up(way, "example.com:443/hook", subscription)
    other = await give_up(way, "example.org:443/", None)
    await change_job(way, first, finished_at=1_000)

    found = await way.face.inbox()

    assert [(each.example, each.count, each.receiver) for each in found] == [
        (newest, 2, "example.com:443/hook"),
        (other, 1, "example.org:443/"),
    ]
    assert (found[0].subscription, found[0].message, found[0].since) == (subscription, "answered 500", instant(1_000))
    assert "hook" not in repr(found[0])  # the path may be a secret


async def test_what_fails_while_somebody_reads_moves_no_entry(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MOST_FAILED", 4)
    for message in ("out of sight", "a", "b", "c", "d"):
        await fail(way, message)
    page = await way.face.inbox(kind="failed", limit=1)

    for _ in range(3):
        await fail(way, "new")
    later = await way.face.inbox(kind="failed", cursor=page.next_cursor)

    assert [each.message for each in (*page, *later)] == ["a", "b", "c", "d"]


async def test_entries_that_leave_while_somebody_reads_hide_none(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MOST_FAILED", 4)
    older = await fail(way, "b")
    jobs = {message: await fail(way, message) for message in ("a", "b", "c", "d")}
    page = await way.face.inbox(kind="failed", limit=1)

    await change_job(way, jobs["d"], status="completed", closed_as="completed", error=None)
    later = await way.face.inbox(kind="failed", cursor=page.next_cursor)

    assert [each.message for each in (*page, *later)] == ["a", "b", "c"]
    assert older not in [each.example for each in later]


async def test_questions_that_come_and_go_while_somebody_reads_hide_no_others(way: Way) -> None:
    approve = await ask_for(way)
    chains = [await way.face.start(approve(order=n)) for n in range(4)]
    page = await way.face.inbox(limit=2)

    await way.face.complete(approve, chains[0], Decision(is_approved=True))
    await way.face.complete(approve, chains[2], Decision(is_approved=True))
    new = await way.face.start(approve(order=4))
    later = await way.face.inbox(limit=2, cursor=page.next_cursor)

    assert [each.id for each in later] == [chains[3].id, new.id]


async def test_a_row_that_cannot_be_read_is_left_out_and_hides_no_other(way: Way) -> None:
    """FINDINGS A5."""
    jobs = await one_of_each(way)
    approve = way.hf.tasks.get("approve")
    bad = [(await way.face.start(approve(order=1))).id, await make_job(way, "paused")]
    bad.append(await make_job(way, "paused", lane="vm-8", head=1, place=1))
    for each in bad:
        await change_job(way, each, tags="{")
    odd = [await fail(way), await fail(way), await fail(way)]
    for each, error in zip(odd, ("Traceback", '{"type": 7}', "[" * 5_000), strict=True):
        await change_job(way, each, error=error)
    await way.call(_execute, BAD_POLICIES)

    found = await all_pages(way, 2)

    assert [job_of(each) for each in found if job_of(each) not in odd] == list(jobs.values())
    assert [each.count for each in found if job_of(each) in odd] == [3]


BAD_POLICIES = """
    INSERT INTO holdfast_task (name, version, policy, input_schema, output_schema, updated_at)
    VALUES ('cut', '1', '{"asks":{"title"', '{}', '{}', 0), ('number', '1', '{"asks":{"title":7}}', '{}', '{}', 0),
        ('text', '1', '{"asks":"you"}', '{}', '{}', 0), ('queue', '1', '{"asks":{"title":"a"},"queue":7}', '{}', '', 0)
    """


async def test_a_page_takes_few_statements_however_much_there_is(way: Way) -> None:
    jobs = await one_of_each(way)
    approve = way.hf.tasks.get("approve")
    few = await way.read(_statements)
    for n in range(20):
        await way.face.start(approve(order=n))
        await fail(way, f"another {n}")
        await fail(way, lane=f"lane-{n}", head=1, place=1)

    assert len(jobs) == len(KINDS)
    assert await way.read(_statements) == few
    assert len(few) <= 9


async def _statements(tx: Tx) -> list[str]:
    return await counted(tx, inbox.inbox, None, 500, None)


@pytest.mark.parametrize("limit", [0, 501, "7"])
async def test_a_page_has_1_to_500_entries(way: Way, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit must be 1 to 500"):
        await way.face.inbox(limit=limit)
    assert [len(await way.face.inbox(limit=each)) for each in (1, 500)] == [0, 0]


async def test_a_kind_that_does_not_exist_is_refused(way: Way) -> None:
    with pytest.raises(InvalidInput, match="or None for all, got the text 'lost'"):
        await way.face.inbox(kind="lost")


@pytest.mark.parametrize("cursor", ["nonsense", "", "YXNrZWQ", "YXNrZWQ6eDp5Ono6dw"])
async def test_a_cursor_of_something_else_is_refused(way: Way, cursor: str) -> None:
    with pytest.raises(UsageError, match="not one of this inbox"):
        await way.face.inbox(cursor=cursor)


async def test_a_cursor_of_another_kind_is_refused(way: Way) -> None:
    await fail(way, "a")
    await fail(way, "b")
    page = await way.face.inbox(limit=1)

    assert len(await way.face.inbox(kind="failed", cursor=page.next_cursor)) == 1
    with pytest.raises(UsageError, match="pass the same kind="):
        await way.face.inbox(kind="paused", cursor=page.next_cursor)


async def test_a_question_is_written_down_for_programs_that_do_not_have_it(way: Way) -> None:
    await ask_for(way, asks=Question("Ship it?"))

    assert (await way.read(task_rows.policies))["approve"]["asks"] == {"title": "Ship it?", "help": None}


async def test_a_question_in_another_queue_than_its_task_has_is_refused(way: Way) -> None:
    approve = await ask_for(way)

    with pytest.raises(InvalidInput, match="its questions wait in queue 'people'; leave queue= out"):
        await way.face.start(approve(order=1), queue="legal")
    await way.face.start(approve(order=1), queue="people")

    way.hf.tasks._by_name.pop("approve")
    with pytest.raises(InvalidInput, match="its questions wait in queue 'people'"):
        await way.face.start(way.hf.call("approve", {"order": 1}), queue="legal")
    assert len(await way.face.inbox()) == 1


async def test_a_question_stays_in_the_inbox_if_its_task_changes_its_queue(way: Way) -> None:
    chains = []
    for queue in ("managers", "bosses", "people"):
        approve = await ask_for(way, queue=queue)
        chains.append((await way.face.start(approve(order=1))).id)
        way.hf.tasks._by_name.pop("approve")

    assert [each.id for each in await way.face.inbox()] == chains


async def test_what_follows_an_answer_leaves_the_queue_of_people(way: Way) -> None:
    approve = await ask_for(way)
    chain = await way.face.start(approve(order=41), priority=5)

    await _continue(way, approve, chain)

    last = (await way.face.list_chain_jobs(chain))[-1]
    assert (last.task, last.queue, last.priority) == ("greet", "default", 5)


async def _continue(way: Way, approve: Task[..., Decision], chain: Any) -> None:
    if way.is_async:
        async with way.hf.completing(approve, chain, by="ada") as job:
            await job.continue_with(greet(name="Ada"))  # type: ignore[arg-type]  # a chain ends as its first task says
        return
    with way.hf.sync.completing(approve, chain, by="ada") as held:
        held.continue_with(greet(name="Ada"))  # type: ignore[arg-type]
