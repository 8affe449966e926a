"""Filters of lists: each finds exactly what fits, along its path, and says how far it has looked."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from enum import IntEnum, StrEnum
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import InvalidInput, Misuse
from holdfast.codec import Codec
from holdfast.models import ChainQuery, EventFilter, Job, JobQuery, Order, Page, Searched
from holdfast.states import State, Status
from holdfast.store import lists
from holdfast.store.log import snapshot
from holdfast.store.reads import Paging
from holdfast.store.search import Reach
from holdfast.store.workers import IN_CHILD
from tests.store.engine import FAIL, run
from tests.support.factories import add, change_job, continue_chain, counted, greet, make_job, now_ms
from tests.support.ways import Way


def ids(page: Any) -> list[UUID]:
    return [each.id for each in page]


CANONICAL = Codec[dict[str, Any]](dict[str, Any], "input", InvalidInput)


async def make_with(way: Way, value: dict[str, Any]) -> UUID:
    """Make a job of which *value* is the input, as every start writes it."""
    return await make_job(way, task="unknown", input=CANONICAL.encode(value))


# ---- one filter at a time


@pytest.mark.source("JC-91")
async def test_jobs_are_found_by_their_ids(way: Way) -> None:
    first, _, third = await way.face.start_many([greet(name=name) for name in "abc"])

    assert ids(await way.face.list_jobs(id=first)) == [first.id]
    assert ids(await way.face.list_jobs(id=[str(first.id), third, uuid4()])) == [third.id, first.id]
    assert ids(await way.face.list_jobs(id=[first, third], order="oldest")) == [first.id, third.id]
    assert ids(await way.face.list_jobs(id=[first, third], task="add")) == []


@pytest.mark.source("JC-91")
async def test_the_jobs_of_a_chain_are_found_by_the_id_of_any_of_them(way: Way) -> None:
    first, other = [await make_job(way) for _ in range(2)]
    second = await continue_chain(way, first)
    third = await continue_chain(way, first, "failed")

    assert ids(await way.face.list_jobs(chain=first)) == [third, second, first]
    assert ids(await way.face.list_jobs(chain=second, order="oldest")) == [first, second, third]
    assert ids(await way.face.list_jobs(chain=[third, other], status="pending")) == [other]
    assert ids(await way.face.list_jobs(chain=uuid4())) == []


@pytest.mark.source("JC-91")
async def test_jobs_are_found_by_the_task_of_their_chain(way: Way) -> None:
    begun = await make_job(way)
    later = await continue_chain(way, begun, task="add", input='{"a":1,"b":2}')
    alone = await make_job(way, task="add")

    assert ids(await way.face.list_jobs(chain_task="greet")) == [later, begun]
    assert ids(await way.face.list_jobs(chain_task="add")) == [alone]
    assert ids(await way.face.list_jobs(chain_task="greet", task="add")) == [later]


@pytest.mark.source("JC-91")
async def test_chains_are_found_by_the_id_of_any_of_their_jobs(way: Way) -> None:
    first, other = [await make_job(way) for _ in range(2)]
    later = await continue_chain(way, first)

    assert ids(await way.face.list_chains(id=later)) == [first]
    assert ids(await way.face.list_chains(id=[later, other, uuid4()])) == [other, first]
    assert ids(await way.face.list_chains(id=uuid4())) == []


async def test_jobs_are_found_by_their_tags(way: Way) -> None:
    """A tag is compared as a whole: what only looks like it in the stored text is another one."""
    tags = (["red"], ["red", "blue"], ["reddish"], ['"red"'], ["a", ", ", "b"], ["é"], [])
    made = [(await way.face.start(greet(name="x").options(tags=each))).id for each in tags]

    assert ids(await way.face.list_jobs(tag="red")) == [made[1], made[0]]
    assert ids(await way.face.list_jobs(tag=["blue", "é"])) == [made[5], made[1]]
    assert ids(await way.face.list_jobs(tag=", ")) == [made[4]]
    assert ids(await way.face.list_jobs(tag='red"')) == []


class Grade(IntEnum):
    """A number that is written otherwise in Python."""

    GOOD = 1


class Colour(StrEnum):
    """A text with a name."""

    RED = "red"


class Metres(float):
    """A number that other people's classes write otherwise, as NumPy's do."""

    def __repr__(self) -> str:
        return f"Metres({float(self)})"


@pytest.mark.parametrize("value", [Grade.GOOD, Colour.RED, Metres(1.5)])
async def test_members_of_enums_and_others_numbers_are_found_by_what_they_are_worth(way: Way, value: Any) -> None:
    job = await make_with(way, {"value": json.loads(json.dumps(value, default=float))})

    assert ids(await way.face.list_jobs(task="unknown", input={"value": value})) == [job]


async def test_jobs_are_found_by_the_worker_that_runs_them(way: Way) -> None:
    mine = await make_job(way, "running", worker="worker-7")
    await make_job(way, "running")
    await make_job(way, "pending")

    assert ids(await way.face.list_jobs(worker="worker-7")) == [mine]
    assert ids(await way.face.list_jobs(worker="worker-7", status="cancelling")) == []


async def test_a_suspect_that_runs_in_a_child_is_found_by_its_worker_and_by_what_its_job_says(way: Way) -> None:
    mine = await make_job(way, "running", worker="worker-7" + IN_CHILD)
    shown = await way.face.get_job(mine)

    assert ids(await way.face.list_jobs(worker="worker-7")) == [mine]
    assert ids(await way.face.list_jobs(worker=shown.worker)) == [mine]


async def test_jobs_are_found_by_the_type_of_their_last_error(way: Way) -> None:
    chain = await way.face.start(greet(name="a"))
    await run(way, FAIL)
    hidden = json.dumps({"type": "KeyError", "message": "x", "attributes": {"type": "ValueError"}})
    await make_job(way, "failed", error=hidden)
    kind = (await way.face.get_job(chain)).error["type"]

    assert ids(await way.face.list_jobs(error=kind)) == [chain.id]
    assert ids(await way.face.list_jobs(error="ValueError")) == []
    assert ids(await way.face.list_jobs(error=[kind[:-1], kind.lower()])) == []


# ---- values of the input

INPUTS: list[tuple[str, Any]] = [
    ("int", 42),
    ("float", 42.0),
    ("longer", 421),
    ("text", "42"),
    ("negative", -42),
    ("big", 2**70),
    ("near big", 2**70 + 1),
    ("big float", 1e30),
    ("small", 1e-7),
    ("zero", -0.0),
    ("true", True),
    ("one", 1),
    ("null", None),
    ("word", "null"),
    ("quotes", 'say "x":42,'),
    ("letters", "Zoë\n\u2028"),
    ("list", [42]),
    ("object", {"value": 42}),
]
EXPECTED: list[tuple[Any, set[str]]] = [
    (42, {"int", "float"}),
    (42.0, {"int", "float"}),
    ("42", {"text"}),
    (-42, {"negative"}),
    (2**70, {"big"}),
    (2**70 + 1, {"near big"}),
    (10**30, {"big float"}),
    (1e30, {"big float"}),
    (1e-7, {"small"}),
    (0, {"zero"}),
    (True, {"true"}),
    (1, {"one"}),
    (None, {"null"}),
    ("null", {"word"}),
    ('say "x":42,', {"quotes"}),
    ("Zoë\n\u2028", {"letters"}),
    ("missing", set()),
]


async def test_jobs_are_found_by_a_value_of_their_input(way: Way) -> None:
    """Numbers are compared by what they are worth, texts sign by sign, and nothing with another kind."""
    made = {}
    for name, value in INPUTS:
        made[await make_with(way, {"name": name, "value": value, "last": 0})] = name

    for value, expected in EXPECTED:
        found = await way.face.list_jobs(task="unknown", input={"value": value})
        assert {made[job.id] for job in found} == expected, value


async def test_a_path_leads_through_objects_only(way: Way) -> None:
    inputs = [{"order": {"id": 7}}, {"order": [{"id": 7}]}, {"id": 7}, {"order": {"more": {"id": 7}}}, {"order": 7}]
    made = [await make_with(way, each) for each in inputs]

    assert ids(await way.face.list_jobs(input={"order.id": 7})) == [made[0]]
    assert ids(await way.face.list_jobs(input={"order.more.id": 7})) == [made[3]]
    assert ids(await way.face.list_jobs(input={"order.id": 7, "id": 7})) == []


async def test_a_search_goes_on_behind_jobs_that_only_look_as_if_they_fit(way: Way) -> None:
    wanted = await make_with(way, {"order": {"id": 7}})
    for _ in range(60):
        await make_with(way, {"id": 7})

    page = await way.face.list_jobs(input={"order.id": 7}, limit=1)

    assert (ids(page), page.next_cursor) == ([wanted], None)


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_search_that_ends_with_jobs_that_do_not_fit_has_no_next_page(way: Way, count: int) -> None:
    for _ in range(count):
        await make_with(way, {"id": 7})

    page = await way.face.list_jobs(input={"order.id": 7}, limit=1)

    assert (list(page), page.next_cursor) == ([], None)


@pytest.mark.parametrize("text", ["{", '"value":42,', '{"value":42,}', "[" * 100_000 + '{"value":42}'])
async def test_an_input_that_is_no_json_fits_no_value(way: Way, text: str) -> None:
    await make_job(way, input=text)
    good = await make_job(way, input='{"value":42}')

    assert ids(await way.face.list_jobs(input={"value": 42})) == [good]


EIGHT = ".".join("abcdefgh")


async def test_a_path_has_eight_steps_at_most(way: Way) -> None:
    value: Any = 1
    for key in reversed(EIGHT.split(".")):
        value = {key: value}
    made = await make_with(way, value)

    assert ids(await way.face.list_jobs(input={EIGHT: 1})) == [made]
    with pytest.raises(InvalidInput, match="8 keys"):
        await way.face.list_jobs(input={f"{EIGHT}.i": 1})


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        ({"input": {"": 1}}, "keys"),
        ({"input": {"a..b": 1}}, "keys"),
        ({"input": {7: 1}}, "keys"),
        ({"input": {"a\0": 1}}, "keys"),
        ({"input": {"a": [1]}}, "must be a text"),
        ({"input": {"a": float("nan")}}, "must be a text"),
        ({"input": {"a": "\0"}}, "must be a text"),
        ({"input": {"a": 10**5000}}, "must be a text"),
        ({"input": {"a": 10**4300}}, "must be a text"),
        ({"input": {"a": -(10**4300)}}, "must be a text"),
        ({"input": "a"}, "paths with values"),
        ({"input": {f"a{n}": 1 for n in range(21)}}, "at most 20"),
        ({"id": [UUID(int=n) for n in range(501)]}, "at most 500"),
        ({"chain": [UUID(int=n) for n in range(501)]}, "at most 500"),
        ({"tag": [7]}, "tag must be"),
        ({"tag": [str(n) for n in range(501)]}, "tag takes at most 500"),
        ({"error": [str(n) for n in range(501)]}, "error takes at most 500"),
    ],
)
async def test_what_no_filter_can_be_is_refused(way: Way, wanted: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        await way.face.list_jobs(**wanted)


async def test_a_part_of_a_millisecond_lets_no_job_of_the_next_one_fit(way: Way) -> None:
    made = await make_job(way)
    at = (await way.face.get_job(made)).created_at
    least = timedelta(microseconds=1)

    def fit(**wanted: Any) -> Any:
        return way.face.list_jobs(**wanted)

    assert ids(await fit(created_from=at, created_to=at)) == [made]
    assert ids(await fit(created_from=at - least, created_to=at + least)) == [made]
    assert ids(await fit(created_to=at - least)) == []
    assert ids(await fit(created_from=at + least)) == []


async def test_filters_take_as_many_as_they_say(way: Way) -> None:
    made = await make_with(way, {f"a{n}": 1 for n in range(20)})
    many = [UUID(int=n) for n in range(499)]

    assert ids(await way.face.list_jobs(input={f"a{n}": 1 for n in range(20)})) == [made]
    assert ids(await way.face.list_jobs(id=[*many, made])) == [made]
    assert ids(await way.face.list_jobs(chain=[*many, made])) == [made]
    words = [str(n) for n in range(500)]
    assert ids(await way.face.list_jobs(tag=words, error=words, lane=words)) == []
    assert ids(await way.face.list_jobs(input={"a0": 10**4300 - 1})) == []


async def test_a_filter_that_is_misspelt_is_refused_with_the_nearest(way: Way) -> None:
    with pytest.raises(Misuse, match="did you mean chain_task"):
        await way.face.list_jobs(chain_tasks="greet")


# ---- how far a request looks

TINY = Reach(numbers=7, slow_numbers=5, rows=3)
FAR = Reach(10**9, 10**9, 10**6)
A_CHAIN = UUID(int=77)
STUCK = {State.FAILED, State.PAUSED}
RUNNING = {State.RUNNING, State.CANCELLING, State.PAUSING}

Fits = Callable[[Job], bool]
QUERIES: dict[str, tuple[JobQuery, Fits]] = {
    "all": (JobQuery(), lambda job: True),
    "task": (JobQuery(tasks=("add",)), lambda job: job.task == "add"),
    "failed": (JobQuery(states=(State.FAILED,)), lambda job: job.state is State.FAILED),
    "stuck": (JobQuery(states=(State.FAILED, State.PAUSED)), lambda job: job.state in STUCK),
    "stuck of a task": (
        JobQuery(states=(State.PAUSED,), tasks=("add",)),
        lambda job: job.state is State.PAUSED and job.task == "add",
    ),
    "running": (JobQuery(states=(State.RUNNING, State.CANCELLING)), lambda job: job.state in RUNNING),
    "worker": (JobQuery(workers=("worker-2",)), lambda job: job.worker == "worker-2"),
    "chain": (JobQuery(chains=(A_CHAIN,)), lambda job: job.chain_id == A_CHAIN),
    "parent": (JobQuery(parent=A_CHAIN), lambda job: job.parent == A_CHAIN),
    "tag": (JobQuery(tags=("odd",)), lambda job: "odd" in job.tags),
    "lane": (JobQuery(lanes=("vm-1",)), lambda job: job.lane == "vm-1"),
    "input": (JobQuery(inputs=((("n",), 1),)), lambda job: json.loads(job.input).get("n") == 1),
    "chain task": (JobQuery(chain_tasks=("add",)), lambda job: job.task == "add" and job.chain_id != A_CHAIN),
    "nothing": (JobQuery(tasks=("nobody",)), lambda job: False),
}


async def fill(way: Way) -> None:
    """Make jobs of every kind, with gaps between their numbers, and some that cannot be read or are the engine's."""
    await make_job(way, id=A_CHAIN)
    for n in range(40):
        status = [*Status, Status.FAILED, Status.PAUSED][n % 9]
        columns: dict[str, Any] = {"task": "add" if n % 3 else "greet", "input": CANONICAL.encode({"n": n % 4})}
        if n % 4 == 0:
            columns["tags"] = '["odd"]'
        if status == "running":
            columns["worker"] = f"worker-{n % 3}"
        if status in ("failed", "paused") and n % 2:
            columns |= {"lane": f"vm-{n}", "head": 1, "place": 1}
        elif n % 5 == 0:
            columns["lane"] = "vm-1"
        if n % 6 == 0:
            columns["parent"] = A_CHAIN
        if n % 11 == 10:
            columns["queue"] = "holdfast.internal"
        if n % 13 == 12:
            columns["tags"] = "{"
        job_id = await make_job(way, status, **columns)
        if n % 7 == 6:
            await continue_chain(way, A_CHAIN, input='{"n":1}')
        if n % 10 == 9:
            await way.face.delete_many([job_id])
    stale = await make_job(way, "failed", task="add")
    await change_job(way, stale, stale_at=now_ms())


async def walk(way: Way, wanted: JobQuery, limit: int, order: Order, reach: Reach) -> list[Page[Job]]:
    """Read a list to its end."""
    pages = [await way.read(lists.list_jobs, wanted, Paging(limit, order), reach)]
    while (cursor := pages[-1].next_cursor) is not None:
        pages.append(await way.read(lists.list_jobs, wanted, Paging(limit, order, cursor), reach))
        assert len(pages) < 500
    return pages


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_pages_of_short_searches_give_just_what_a_whole_scan_gives(way: Way, order: Order) -> None:
    """And each page says truly how far it has looked: what fits there is on it, and the pages follow one another."""
    await fill(way)
    (everything,) = await walk(way, JobQuery(), 500, order, FAR)
    faults: list[str] = []

    for name, (wanted, fits) in QUERIES.items():
        expected = [job.seq for job in everything if fits(job)]
        for limit in (1, 4, 500):
            pages = await walk(way, wanted, limit, order, TINY)
            found = [job.seq for page in pages for job in page]
            if found != expected:
                faults.append(f"{name}, {limit} a page: {found}, not {expected}")
            faults += [f"{name}, {limit} a page: {each}" for each in untrue(pages, expected)]

    assert faults == []


def untrue(pages: list[Page[Job]], expected: list[int]) -> list[str]:
    """Say what *pages* say wrongly about how far they have looked."""
    found = []
    for page in pages:
        searched = page.searched
        assert searched is not None
        low, high = sorted(searched[:2])
        if [job.seq for job in page] != [seq for seq in expected if low <= seq <= high]:
            found.append(f"{searched} is not what is on the page")
        if searched.is_end is not (page.next_cursor is None):
            found.append(f"{searched} has a next page, or none")
    for before, after in pairwise(each.searched for each in pages):
        assert before is not None
        assert after is not None
        if after.from_seq and not min(before[:2]) > max(after[:2]) and not max(before[:2]) < min(after[:2]):
            found.append(f"{before} and {after} overlap")
    return found


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_chains_are_listed_by_short_searches_as_by_a_whole_scan(way: Way, order: Order) -> None:
    await fill(way)
    faults = []
    for wanted in (ChainQuery(), ChainQuery(is_open=True), ChainQuery(tasks=("add",)), ChainQuery(roots_only=True)):
        whole = await way.read(lists.list_chains, wanted, Paging(500, order), FAR)
        page = await way.read(lists.list_chains, wanted, Paging(2, order), TINY)
        found = ids(page)
        while page.next_cursor is not None:
            page = await way.read(lists.list_chains, wanted, Paging(2, order, page.next_cursor), TINY)
            found += ids(page)
        if found != ids(whole):
            faults.append((wanted, found))

    assert faults == []


async def test_an_empty_page_may_have_a_next_one(way: Way) -> None:
    wanted = (await way.face.start(add(a=1, b=2))).id
    await way.face.start_many([greet(name=str(number)) for number in range(10)])
    query = JobQuery(tasks=("add",))

    first = await way.read(lists.list_jobs, query, Paging(), TINY)
    second = await way.read(lists.list_jobs, query, Paging(cursor=first.next_cursor), TINY)

    assert (ids(first), ids(second), second.next_cursor) == ([], [wanted], None)
    assert first.searched is not None
    assert first.searched.from_seq - first.searched.to_seq == TINY.numbers - 1
    assert not first.searched.is_end


@pytest.mark.parametrize("order", ["newest", "oldest"])
@pytest.mark.parametrize("is_more", [False, True])
async def test_a_search_along_numbers_looks_at_as_many_as_it_may(way: Way, is_more: bool, order: Order) -> None:
    others = [greet(name=str(number)) for number in range(TINY.numbers - 1 + is_more)]
    wanted = add(a=1, b=2)
    await way.face.start_many([wanted, *others] if order == "newest" else [*others, wanted])

    page = await way.read(lists.list_jobs, JobQuery(tasks=("add",)), Paging(order=order), TINY)

    assert len(page) == (0 if is_more else 1)
    assert (page.next_cursor is None) is not is_more


@pytest.mark.parametrize("is_more", [False, True])
async def test_what_costs_more_to_test_is_looked_for_among_fewer(way: Way, is_more: bool) -> None:
    await make_job(way, input='{"n":1}')
    await way.face.start_many([greet(name=str(number)) for number in range(TINY.slow_numbers - 1 + is_more)])

    page = await way.read(lists.list_jobs, JobQuery(inputs=((("n",), 1),)), Paging(), TINY)

    assert len(page) == (0 if is_more else 1)


@pytest.mark.parametrize("is_more", [False, True])
async def test_a_search_along_an_index_looks_at_as_many_rows_as_it_may(way: Way, is_more: bool) -> None:
    wanted = await make_job(way, "failed", task="add")
    for _ in range(TINY.rows - 1 + is_more):
        await make_job(way, "failed")
    query = JobQuery(tasks=("add",), states=(State.FAILED,))

    page = await way.read(lists.list_jobs, query, Paging(limit=1), TINY)

    assert ids(page) == ([] if is_more else [wanted])
    assert is_more <= (page.next_cursor is not None)


async def test_a_gap_between_the_numbers_costs_no_search(way: Way) -> None:
    old = await make_job(way, seq=1_000, task="add")
    await make_job(way, seq=10**12)

    page = await way.read(lists.list_jobs, JobQuery(tasks=("add",)), Paging(limit=1), TINY)
    page = await way.read(lists.list_jobs, JobQuery(tasks=("add",)), Paging(limit=1, cursor=page.next_cursor), TINY)

    assert ids(page) == [old]


async def test_more_running_jobs_than_a_request_may_look_at_are_found_along_their_numbers(way: Way) -> None:
    running = [await make_job(way, "running") for _ in range(TINY.rows + 1)]

    pages = await walk(way, JobQuery(states=(State.RUNNING,)), 2, "oldest", TINY)

    assert [job.id for page in pages for job in page] == running


@pytest.mark.parametrize("order", ["newest", "oldest"])
async def test_a_walk_up_to_a_number_leaves_out_what_came_later(way: Way, order: Order) -> None:
    started = await way.face.start_many([greet(name=str(number)) for number in range(6)])
    upto = (await way.face.get_job(started[3])).seq

    page = await way.read(lists.list_jobs, JobQuery(), Paging(3, order, upto=upto))
    rest = await way.read(lists.list_jobs, JobQuery(), Paging(3, order, page.next_cursor, upto))

    assert sorted(job.seq for job in (*page, *rest)) == sorted(
        [(await way.face.get_job(each)).seq for each in started[:4]]
    )


async def test_an_empty_list_has_looked_at_nothing(way: Way) -> None:
    assert (await way.face.list_jobs()).searched == Searched(0, 0, is_end=True)


async def test_stuck_jobs_are_found_by_few_statements(way: Way) -> None:
    for _ in range(3):
        await make_job(way, "failed")

    statements = await way.read(counted, lists.list_jobs, JobQuery(states=(State.FAILED,)), Paging())

    assert len(statements) == 2


async def test_a_page_that_the_first_rows_leave_half_empty_is_filled_from_some_more(way: Way) -> None:
    """Not from all that a request may look at."""
    for _ in range(30):
        await make_job(way, "failed", queue="mails")
        await make_job(way, "failed")
    query = JobQuery(states=(State.FAILED,), queues=("default",))

    statements = await way.read(counted, lists.list_jobs, query, Paging(limit=4))
    page = await way.read(lists.list_jobs, query, Paging(limit=4), Reach(rows=5 + 8 * 5))

    assert len(statements) == 4
    assert len(page) == 4


async def test_a_stream_begins_with_old_jobs_too_if_they_are_the_newest_of_their_task(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = ids(await way.face.start_many([add(a=1, b=n) for n in range(3)]))
    await way.face.start_many([greet(name=str(number)) for number in range(20)])
    monkeypatch.setattr(lists, "list_jobs", partial(lists.list_jobs, reach=TINY))

    jobs, _ = await way.read(snapshot.read, EventFilter(tasks=frozenset({"add"})), 2)

    assert [job.id for job in jobs] == wanted[:0:-1]
