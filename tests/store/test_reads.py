"""Reading jobs and chains: one by id, and lists with filters, orders and cursors that stay right."""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import (
    ChainNotFound,
    Holdfast,
    InvalidId,
    InvalidInput,
    JobNotFound,
    Misuse,
    State,
    Status,
    UsageError,
    WrongTask,
)
from holdfast.models import ChainQuery, JobQuery
from holdfast.store import lists, reads
from holdfast.store.reads import Paging
from tests.store.engine import FAIL, run
from tests.support.factories import (
    HOUR_MS,
    TASKS,
    add,
    block,
    change_job,
    continue_chain,
    counted,
    greet,
    make_job,
    now_ms,
    pause_lane,
    pause_queue,
)
from tests.support.ways import Way

HOUR = timedelta(hours=1)


def ids(page: Any) -> list[UUID]:
    return [each.id for each in page]


async def all_pages(listing: Callable[..., Any], **wanted: Any) -> list[UUID]:
    page = await listing(**wanted)
    found = ids(page)
    while page.next_cursor is not None:
        page = await listing(**wanted, cursor=page.next_cursor)
        found += ids(page)
    return found


# ---- one


@pytest.mark.source("PQ-9", "TQ-4")
async def test_a_job_is_read_with_everything_that_was_stored(way: Way) -> None:
    job_id = await make_job(
        way, "running", attempt=3, progress=40, message="half-way", current_phase="encode", crashes=1
    )

    job = await way.face.get_job(job_id)

    assert (job.status, job.attempt, job.worker, job.crashes) == (Status.RUNNING, 3, "worker-1", 1)
    assert (job.progress, job.message, job.current_phase) == (40, "half-way", "encode")
    assert (job.chain_id, job.chain_index, job.outcome) == (job_id, 0, None)


async def test_times_are_aware_and_kept_to_the_millisecond(way: Way) -> None:
    at = datetime(2026, 5, 4, 3, 2, 1, 987_000, tzinfo=UTC)

    job_id = await make_job(way, "completed", finished_at=int(at.timestamp() * 1000))

    assert (await way.face.get_job(job_id)).finished_at == at


async def test_an_error_is_read_as_json(way: Way) -> None:
    job_id = await make_job(way, "failed", error='{"kind":"ValueError","message":"no"}', reason="attempts")

    job = await way.face.get_job(job_id)

    assert (job.error, job.reason) == ({"kind": "ValueError", "message": "no"}, "attempts")


async def test_a_job_that_is_not_there_is_named(way: Way) -> None:
    missing = uuid4()

    with pytest.raises(JobNotFound) as refused:
        await way.face.get_job(missing)

    assert refused.value.job_id == missing


async def test_a_chain_that_is_not_there_is_named(way: Way) -> None:
    missing = uuid4()

    with pytest.raises(ChainNotFound) as refused:
        await way.face.get_chain(str(missing))

    assert refused.value.chain_id == missing


@pytest.mark.parametrize(
    ("verb", "bad"),
    [
        ("get_job", "seven"),
        ("get_job", 7),
        ("get_chain", ""),
        ("get_chain", None),
        ("list_chain_jobs", "seven"),
        ("delete", "7"),
    ],
)
async def test_what_is_no_id_is_refused(way: Way, verb: str, bad: Any) -> None:
    with pytest.raises(InvalidId):
        await getattr(way.face, verb)(bad)


async def test_a_chain_is_read_with_its_last_jobs_status_and_output(way: Way) -> None:
    first = await make_job(way, "running")
    await continue_chain(way, first, "completed", task="add", input='{"a":1,"b":2}', output="3")

    chain = await way.face.get_chain(first)

    assert (chain.id, chain.task, chain.last_task) == (first, "greet", "add")
    assert (chain.status, chain.output, chain.is_open) == (Status.COMPLETED, 3, False)


@pytest.mark.source("JC-89")
async def test_a_chain_is_read_as_one_of_its_task_or_refused(way: Way) -> None:
    first = await make_job(way, "running")
    later = await continue_chain(way, first, "completed", task="add", input='{"a":1,"b":2}', output="3")

    by_its_task = await way.face.get_chain(later, task=greet)
    with pytest.raises(WrongTask) as refused:
        await way.face.get_chain(first, task=add)

    assert (by_its_task.id, by_its_task.task) == (first, "greet")
    assert (refused.value.asked, refused.value.found) == ("add", "greet")


async def test_a_chain_is_read_by_a_task_and_not_by_its_name(way: Way) -> None:
    first = await make_job(way)

    with pytest.raises(Misuse, match="takes the task itself"):
        await way.face.get_chain(first, task="greet")


async def test_a_chain_that_goes_on_looks_open_though_its_first_job_is_completed(way: Way) -> None:
    first = await make_job(way, "running")
    await continue_chain(way, first, "pending")

    chain = await way.face.get_chain(first)

    assert (chain.status, chain.is_open, chain.output) == (Status.PENDING, True, None)


async def test_the_id_of_a_later_step_gives_its_chain(way: Way) -> None:
    first = await make_job(way)
    second = await continue_chain(way, first)
    third = await continue_chain(way, first, "failed")

    assert [(await way.face.get_chain(each)).id for each in (first, second, third)] == [first] * 3


# ---- what is shown


async def made(way: Way, state: State) -> UUID:
    """Make a job that is shown as *state*."""
    match state:
        case State.SCHEDULED:
            return await make_job(way, run_at=now_ms() + HOUR_MS, gate="arrival", wake_at=now_ms() + HOUR_MS)
        case State.WAITING:
            return await make_job(way, gate="lane", lane="vm-7", place=2)
        case State.CANCELLING:
            return await make_job(way, "running", cancel_requested_at=now_ms())
        case State.PAUSING:
            return await make_job(way, "running", pause_requested_at=now_ms())
        case State.CONTINUED:
            job_id = await make_job(way, "running")
            await continue_chain(way, job_id, "pending", queue="elsewhere")
            return job_id
        case State.STALE:
            return await make_job(way, "failed", stale_at=now_ms())
        case _:
            return await make_job(way, str(state))


async def test_every_state_is_shown(way: Way) -> None:
    everything = {state: await made(way, state) for state in State}

    shown = {state: (await way.face.get_job(job_id)).state for state, job_id in everything.items()}

    assert shown == {state: state for state in State}


STORED = {str(status) for status in Status}
DERIVED = [state for state in State if str(state) not in STORED]


async def test_a_derived_state_is_a_filter_that_finds_just_what_is_shown_so(way: Way) -> None:
    everything = {state: await made(way, state) for state in State}
    await make_job(way, "running", cancel_requested_at=now_ms(), pause_requested_at=now_ms(), queue="twice")
    await change_job(way, await made(way, State.CONTINUED), stale_at=now_ms(), queue="twice")
    listed = (await way.face.list_jobs(limit=500)).items

    found = {state: ids(await way.face.list_jobs(status=state)) for state in DERIVED}

    assert found == {state: [job.id for job in listed if job.state is state] for state in DERIVED}
    assert all(everything[state] in found[state] for state in DERIVED)


async def test_a_stored_status_is_a_filter_whatever_else_is_shown_unless_it_is_stale(way: Way) -> None:
    for state in State:
        await made(way, state)
    await make_job(way, "completed", stale_at=now_ms())
    listed = [job for job in await way.face.list_jobs(limit=500) if job.state is not State.STALE]

    found = {status: ids(await way.face.list_jobs(status=status)) for status in Status}

    assert found == {status: [job.id for job in listed if job.status is status] for status in Status}


async def test_several_states_are_found_together(way: Way) -> None:
    scheduled, _, failed = [await made(way, state) for state in (State.SCHEDULED, State.RUNNING, State.FAILED)]

    assert ids(await way.face.list_jobs(status=["failed", "scheduled"])) == [failed, scheduled]


async def test_a_paused_queue_makes_its_jobs_wait(way: Way) -> None:
    held = await make_job(way, queue="mail")
    await make_job(way)

    await pause_queue(way, "mail")

    assert (await way.face.get_job(held)).state is State.WAITING
    assert ids(await way.face.list_jobs(status="waiting")) == [held]


async def test_a_paused_lane_makes_its_jobs_wait(way: Way) -> None:
    held = await make_job(way, lane="vm-7")
    await make_job(way, lane="vm-8")

    await pause_lane(way, "vm-7")

    assert (await way.face.get_job(held)).state is State.WAITING
    assert ids(await way.face.list_jobs(status="waiting")) == [held]


@pytest.mark.source("DF-40")
async def test_a_stale_job_keeps_what_it_was(way: Way) -> None:
    job_id = await made(way, State.STALE)

    job = await way.face.get_job(job_id)

    assert (job.state, job.outcome) == (State.STALE, Status.FAILED)


async def test_a_word_that_is_no_state_is_refused_with_those_that_are(way: Way) -> None:
    with pytest.raises(InvalidInput, match="scheduled"):
        await way.face.list_jobs(status="sleeping")


# ---- lists of jobs


async def test_jobs_are_listed_newest_first(way: Way) -> None:
    started = await way.face.start_many([greet(name=name) for name in "abc"])

    assert ids(await way.face.list_jobs()) == [chain.id for chain in reversed(started)]


async def test_jobs_are_listed_oldest_first_if_asked(way: Way) -> None:
    started = await way.face.start_many([greet(name=name) for name in "abc"])

    assert ids(await way.face.list_jobs(order="oldest")) == [chain.id for chain in started]


@pytest.mark.source("JC-91")
async def test_jobs_are_found_by_task_queue_and_lane(way: Way) -> None:
    calls = [greet(name="a"), add(a=1, b=2), greet(name="b").options(lane="x"), greet(name="c").options(lane="y")]
    plain, sum_, in_x, in_y = ids(await way.face.start_many(calls))

    assert ids(await way.face.list_jobs(task="add")) == [sum_]
    assert ids(await way.face.list_jobs(task=["add", "greet"], order="oldest")) == [plain, sum_, in_x, in_y]
    assert ids(await way.face.list_jobs(queue="sums")) == [sum_]
    assert ids(await way.face.list_jobs(lane=["x", "y"])) == [in_y, in_x]
    assert ids(await way.face.list_jobs(task="greet", lane="x")) == [in_x]


async def test_jobs_are_found_by_when_they_were_created_both_ends_included(way: Way) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    for hours in range(4):
        await make_job(way, created_at=int((noon + hours * HOUR).timestamp() * 1000))

    found = await way.face.list_jobs(created_from=noon + HOUR, created_to=noon + 2 * HOUR)

    assert [job.created_at for job in found] == [noon + 2 * HOUR, noon + HOUR]


async def test_a_time_without_a_zone_is_refused(way: Way) -> None:
    with pytest.raises(InvalidInput, match="aware"):
        await way.face.list_jobs(created_from=datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is wrong with it


@pytest.mark.source("JC-90")
@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_pages_together_are_the_whole_list(way: Way, order: str) -> None:
    started = ids(await way.face.start_many([greet(name=str(number)) for number in range(7)]))

    found = await all_pages(way.face.list_jobs, limit=3, order=order)

    assert found == (started if order == "oldest" else started[::-1])


async def test_the_last_page_says_that_it_is_the_last(way: Way) -> None:
    await way.face.start_many([greet(name=str(number)) for number in range(6)])

    first = await way.face.list_jobs(limit=3)
    second = await way.face.list_jobs(limit=3, cursor=first.next_cursor)

    assert (len(first), len(second), second.next_cursor) == (3, 3, None)


async def test_a_page_of_a_filter_is_full(way: Way) -> None:
    calls = [greet(name=str(number)).options(queue="odd" if number % 2 else "even") for number in range(12)]
    await way.face.start_many(calls)

    page = await way.face.list_jobs(queue="odd", limit=5)

    assert len(page) == 5
    assert page.next_cursor is not None


@pytest.mark.source("JC-90")
@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_a_cursor_stays_right_while_jobs_come_and_go(way: Way, order: str) -> None:
    started = ids(await way.face.start_many([greet(name=str(number)) for number in range(9)]))
    expected = started if order == "oldest" else started[::-1]
    first = await way.face.list_jobs(limit=3, order=order)

    await way.face.delete_many([expected[0], expected[2], expected[5]])
    await way.face.start(greet(name="new"))
    second = await way.face.list_jobs(limit=3, order=order, cursor=first.next_cursor)

    assert ids(second) == [expected[3], expected[4], expected[6]]


async def test_a_cursor_may_be_used_again(way: Way) -> None:
    await way.face.start_many([greet(name=str(number)) for number in range(4)])
    cursor = (await way.face.list_jobs(limit=2)).next_cursor

    assert await way.face.list_jobs(cursor=cursor) == await way.face.list_jobs(cursor=cursor)


def spoilt(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


BAD_CURSORS = {
    "nonsense": "nonsense",
    "empty": "",
    "not of ASCII": "ü",
    "no number": spoilt("newest:x"),
    "two numbers": spoilt("newest:1:2"),
    "a number that no database holds": spoilt(f"newest:{2**70}"),
    "of the other order": spoilt("oldest:1"),
    "of another list": spoilt("steps:1"),
}


@pytest.mark.parametrize("cursor", BAD_CURSORS.values(), ids=BAD_CURSORS)
async def test_a_cursor_that_is_not_of_this_list_is_refused(way: Way, cursor: str) -> None:
    with pytest.raises(UsageError, match="cursor"):
        await way.face.list_jobs(cursor=cursor)
    with pytest.raises(UsageError, match="cursor"):
        await way.face.list_chains(cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1, 501])
async def test_a_page_has_one_to_five_hundred_items(way: Way, limit: int) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        await way.face.list_jobs(limit=limit)


async def test_a_page_has_fifty_items_unless_asked_otherwise(way: Way) -> None:
    await way.face.start_many([greet(name=str(number)) for number in range(501)])

    assert [len(await way.face.list_jobs()), len(await way.face.list_jobs(limit=500))] == [50, 500]


async def test_an_unknown_order_is_refused(way: Way) -> None:
    with pytest.raises(InvalidInput, match="oldest"):
        await way.face.list_jobs(order="alphabetic")


async def test_an_empty_list_is_a_page_without_items(way: Way) -> None:
    page = await way.face.list_jobs()

    assert (page.items, page.next_cursor) == ((), None)


# ---- lists of chains


async def test_a_chain_is_listed_once_however_many_steps_it_has(way: Way) -> None:
    first = await make_job(way)
    await continue_chain(way, first)
    other = await make_job(way)

    assert ids(await way.face.list_chains()) == [other, first]
    assert len(await way.face.list_jobs()) == 3


async def test_chains_are_found_by_the_status_of_their_last_job(way: Way) -> None:
    gone_on = await make_job(way, "running")
    await continue_chain(way, gone_on, "failed")
    await make_job(way, "completed")

    assert ids(await way.face.list_chains(status="failed")) == [gone_on]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [(["pending"], [0]), (["completed", "pending"], [1, 0]), (["failed", "completed"], [2, 1]), (["blocked"], [])],
)
async def test_open_and_closed_statuses_are_found_together(way: Way, statuses: list[str], expected: list[int]) -> None:
    made = [await make_job(way, status) for status in ("pending", "completed", "failed")]

    assert ids(await way.face.list_chains(status=statuses)) == [made[number] for number in expected]


@pytest.mark.source("DF-24")
async def test_open_chains_are_those_that_have_not_closed(way: Way) -> None:
    gone_on = await make_job(way, "running")
    await continue_chain(way, gone_on, "paused")
    closed = await make_job(way, "completed")

    assert ids(await way.face.list_chains(is_open=True)) == [gone_on]
    assert ids(await way.face.list_chains(is_open=False)) == [closed]


async def test_roots_are_the_chains_that_nobody_waits_for(way: Way) -> None:
    blocker = await make_job(way)
    root = await make_job(way, "blocked")
    await block(way, root, blocker)

    assert ids(await way.face.list_chains(roots_only=True)) == [root]


@pytest.mark.source("JC-91")
async def test_chains_are_found_by_task_and_time(way: Way) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    old = await make_job(way, task="add", created_at=int(noon.timestamp() * 1000))
    new = await make_job(way, task="add")

    assert ids(await way.face.list_chains(task="add", created_to=noon)) == [old]
    assert ids(await way.face.list_chains(task="add", created_from=noon + HOUR)) == [new]
    assert ids(await way.face.list_chains(task="greet")) == []


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_pages_of_chains_are_stable_while_steps_are_added(way: Way, order: str) -> None:
    made = [await make_job(way) for _ in range(5)]
    expected = made if order == "oldest" else made[::-1]
    first = await way.face.list_chains(limit=2, order=order)

    await continue_chain(way, expected[3])
    second = await way.face.list_chains(order=order, cursor=first.next_cursor)

    assert ids(first) + ids(second) == expected


async def test_a_derived_word_is_no_status_of_a_chain(way: Way) -> None:
    with pytest.raises(InvalidInput, match="the words are: blocked"):
        await way.face.list_chains(status="scheduled")


# ---- the jobs of a chain


async def test_the_jobs_of_a_chain_are_listed_from_its_first(way: Way) -> None:
    first = await make_job(way)
    later = [await continue_chain(way, first) for _ in range(3)]
    await make_job(way)

    assert ids(await way.face.list_chain_jobs(later[1])) == [first, *later]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
async def test_the_jobs_of_a_chain_are_paged(way: Way, limit: int) -> None:
    first = await make_job(way)
    later = [await continue_chain(way, first) for _ in range(3)]

    async def listing(**page: Any) -> Any:
        return await way.face.list_chain_jobs(first, **page)

    assert await all_pages(listing, limit=limit) == [first, *later]


async def test_the_jobs_of_no_chain_are_not_found(way: Way) -> None:
    with pytest.raises(ChainNotFound):
        await way.face.list_chain_jobs(uuid4())


async def test_a_cursor_of_jobs_does_not_lead_through_a_chain(way: Way) -> None:
    started = await way.face.start_many([greet(name=str(number)) for number in range(3)])
    cursor = (await way.face.list_jobs(limit=1)).next_cursor

    with pytest.raises(UsageError, match="cursor"):
        await way.face.list_chain_jobs(started[0], cursor=cursor)


# ---- how it is done


async def test_no_read_counts_rows(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    statements = [
        *await way.read(counted, lists.list_jobs, JobQuery(states=tuple(State)), Paging()),
        *await way.read(counted, lists.list_chains, ChainQuery(roots_only=True, is_open=True), Paging()),
        *await way.read(counted, reads.list_chain_jobs, chain.id, Paging()),
        *await way.read(counted, reads.get_chain, chain.id),
    ]

    assert len(statements) == 10
    assert not [sql for sql in statements if "count(" in sql.lower()]


async def test_a_list_takes_two_statements_however_long_it_is(way: Way) -> None:
    """One finds the numbers to look at, and one looks at them."""
    await way.face.start_many([greet(name=str(number)) for number in range(100)])

    assert len(await way.read(counted, lists.list_jobs, JobQuery(), Paging(limit=100))) == 2


async def test_a_job_of_a_task_that_is_not_known_here_is_read_as_plain_json(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    chain = await way.face.start(greet(name="Ada"))
    stranger = Way(new_holdfast(way.database), is_async=way.is_async)

    job = await stranger.face.get_job(chain.id)

    assert job.input == {"name": "Ada"}
    await stranger.close()


async def test_an_output_is_read_by_the_type_of_its_task(way: Way) -> None:
    done = await make_job(way, "completed", output='"Hello, Ada"')

    assert (await way.face.get_chain(done)).output == "Hello, Ada"
    assert (await way.face.get_job(done)).output == TASKS.get("greet").decode_output('"Hello, Ada"')


async def test_a_changed_row_is_read_as_it_is_now(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await change_job(way, chain.id, priority=7)

    assert (await way.face.get_job(chain)).priority == 7


@pytest.mark.parametrize("word", ["a\0b", "\ud800", 5], ids=["nul", "surrogate", "number"])
@pytest.mark.parametrize("option", ["task", "queue", "lane"])
async def test_a_filter_that_no_database_can_hold_is_refused_before_any_sql(way: Way, option: str, word: Any) -> None:
    with pytest.raises(InvalidInput, match=option):
        await way.face.list_jobs(**{option: ["fine", word]})


@pytest.mark.parametrize("limit", ["5", 1.5, None])
async def test_a_limit_that_is_no_number_is_refused(way: Way, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        await way.face.list_jobs(limit=limit)


async def test_a_cursor_that_is_no_text_is_refused(way: Way) -> None:
    with pytest.raises(UsageError, match="next_cursor"):
        await way.face.list_jobs(cursor=7)


async def test_a_job_and_its_events_are_printed_in_short_and_without_what_they_were_given(way: Way) -> None:
    chain = await way.face.start(greet(name="hush"))
    await run(way, FAIL)

    job, timeline = await way.face.get_job(chain.id), await way.face.timeline(chain.id)

    assert repr(job) == f"<Job {chain.id} greet failed, attempt 1, {job.error['type']}>"
    assert repr(timeline[0]) == f"<JobEvent job:enqueued of {job!r}>"
    assert "hush" not in repr([job, timeline])
