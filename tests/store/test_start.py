"""Starting chains: what is stored, what is refused before any SQL, and that a batch is one act."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from holdfast import (
    BlockerCycle,
    Chain,
    ChainNotFound,
    Holdfast,
    InvalidInput,
    Misuse,
    State,
    Status,
    TransactionRequired,
    Unique,
    UnknownTask,
    WrongTask,
)
from holdfast.database.tx import Tx
from holdfast.store.chains import creation
from tests.support.factories import (
    HOUR_MS,
    TASKS,
    a_start,
    add,
    change_job,
    counted,
    events_of,
    greet,
    make_job,
    now_ms,
    row_of,
    seq_of,
    whole_store,
)
from tests.support.ways import Way

IN_AN_HOUR = timedelta(hours=1)


@pytest.mark.source("TQ-6")
async def test_a_start_that_has_returned_is_seen_by_everybody(way: Way, new_holdfast: Callable[..., Holdfast]) -> None:
    """I-01."""
    somebody_else = Way(new_holdfast(way.database), is_async=False)

    chain = await way.face.start(greet(name="Ada"))

    assert (await somebody_else.face.get_job(chain.id)).task == "greet"


async def test_a_start_gives_the_chain_as_it_stands(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    assert chain == await way.face.get_chain(chain)
    assert (chain.task, chain.status, chain.is_open, chain.deduplicated) == ("greet", Status.PENDING, True, False)


async def test_a_job_with_nothing_to_wait_for_is_ready_at_once(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    gate, wake_at, sort_key, run_at, created_at = await row_of(
        way, chain.id, "gate", "wake_at", "sort_key", "run_at", "created_at"
    )
    assert (gate, wake_at) == ("ready", None)
    assert sort_key == run_at == created_at


async def test_a_point_of_priority_is_worth_a_minute_of_waiting(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), priority=5)

    priority, sort_key, created_at = await row_of(way, chain.id, "priority", "sort_key", "created_at")
    assert priority == 5
    assert sort_key == created_at - 5 * 60_000


async def test_a_delay_makes_a_job_scheduled(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), delay=3600)

    job = await way.face.get_job(chain)
    assert (job.status, job.state) == (Status.PENDING, State.SCHEDULED)
    assert job.run_at - job.created_at == IN_AN_HOUR


@pytest.mark.source("PQ-8")
async def test_a_delayed_job_arrives_when_it_is_due(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), delay=IN_AN_HOUR)

    gate, wake_at, run_at, sort_key = await row_of(way, chain.id, "gate", "wake_at", "run_at", "sort_key")
    assert (gate, sort_key) == ("arrival", None)
    assert wake_at == run_at


async def test_no_delay_is_no_reason_to_wait(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), delay=0)

    assert await row_of(way, chain.id, "gate") == ("ready",)


async def test_run_at_is_kept_to_the_millisecond(way: Way) -> None:
    at = datetime(2100, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)

    chain = await way.face.start(greet(name="Ada"), run_at=at)

    job = await way.face.get_job(chain)
    assert (job.run_at, job.state) == (at, State.SCHEDULED)


async def test_a_time_in_the_past_counts_as_now(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), run_at=datetime(2001, 1, 1, tzinfo=UTC))

    job = await way.face.get_job(chain)
    assert (job.run_at, job.state) == (job.created_at, State.PENDING)


async def test_a_job_in_a_lane_arrives_at_once_and_has_no_place_yet(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), lane="vm-7")

    gate, wake_at, created_at, place, head = await row_of(
        way, chain.id, "gate", "wake_at", "created_at", "place", "head"
    )
    assert (gate, wake_at) == ("arrival", created_at)
    assert (place, head) == (None, 0)
    assert (await way.face.get_job(chain)).lane == "vm-7"


@pytest.mark.source("TQ-6")
async def test_a_paused_job_is_for_nobody_to_look_at(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), paused=True, delay=60, lane="vm-7")

    assert chain.status is Status.PAUSED
    assert await row_of(way, chain.id, "gate", "wake_at", "sort_key") == (None, None, None)


async def test_queue_and_tags_are_kept(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), queue="mail", tags=["a", "ü", "a"])

    job = await way.face.get_job(chain)
    assert (job.queue, job.tags) == ("mail", ("a", "ü"))


async def test_a_task_gives_its_jobs_its_queue_and_priority(way: Way) -> None:
    chain = await way.face.start(add(a=1, b=2))

    job = await way.face.get_job(chain)
    assert (job.queue, job.priority) == ("sums", 3)


@pytest.mark.source("JC-86")
async def test_a_call_goes_before_its_task(way: Way) -> None:
    chain = await way.face.start(add(a=1, b=2), queue="mail", priority=-7)

    job = await way.face.get_job(chain)
    assert (job.queue, job.priority) == ("mail", -7)


@pytest.mark.source("PQ-8")
@pytest.mark.parametrize(
    ("options", "stored"),
    [({}, None), ({"webhook": "https://example.org/x"}, "https://example.org/x"), ({"webhook": None}, "")],
    ids=["left to the queue", "its own", "silent"],
)
async def test_a_webhook_that_is_not_given_differs_from_none(way: Way, options: Any, stored: str | None) -> None:
    chain = await way.face.start(greet(name="Ada"), **options)

    assert await row_of(way, chain.id, "webhook") == (stored,)


@pytest.mark.source("PQ-11", "PQ-35")
async def test_every_started_job_is_logged_once_with_its_status(way: Way) -> None:
    started = await way.face.start_many([greet(name="Ada"), greet(name="Bob").options(paused=True)])

    rows = await way.rows("SELECT job, name, status, version, attempt FROM holdfast_event ORDER BY seq")
    first, second = [await seq_of(way, each.id) for each in started]
    assert rows == [(first, "job:enqueued", "pending", 1, 0), (second, "job:enqueued", "paused", 1, 0)]


# ---- an id of the caller's


@pytest.mark.source("JC-88")
async def test_a_chain_has_the_id_that_its_caller_chose(way: Way) -> None:
    chosen = uuid4()

    chain = await way.face.start(greet(name="Ada"), id=chosen)

    assert (chain.id, chain.deduplicated) == (chosen, False)


async def test_a_start_repeated_under_its_id_makes_one_job_and_gives_it_again(way: Way) -> None:
    """I-04."""
    first = await way.face.start(greet(name="Ada"), id=uuid4())

    again = await way.face.start(greet(name="Ada"), id=first.id)

    assert (again.id, again.deduplicated) == (first.id, True)
    assert len(await way.face.list_jobs()) == 1
    assert await events_of(way, first.id) == ["job:enqueued"]


async def test_a_start_repeated_after_its_chain_has_closed_gives_the_closed_chain(way: Way) -> None:
    done = await make_job(way, "completed", output='"Hello, Ada"')

    again = await way.face.start(greet(name="Ada"), id=done)

    assert (again.id, again.status, again.output, again.is_open) == (done, Status.COMPLETED, "Hello, Ada", False)


async def test_a_start_repeated_with_its_key_gives_its_own_chain(way: Way) -> None:
    first = await way.face.start(greet(name="Ada"), id=uuid4(), unique="ada")

    again = await way.face.start(greet(name="Ada"), id=first.id, unique="ada")

    assert (again.id, again.deduplicated) == (first.id, True)


async def test_an_id_that_belongs_to_another_task_is_refused(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    before = await whole_store(way)

    with pytest.raises(WrongTask) as refused:
        await way.face.start(add(a=1, b=2), id=chain.id)

    assert (refused.value.job_id, refused.value.asked, refused.value.found) == (chain.id, "add", "greet")
    assert await whole_store(way) == before


@pytest.mark.source("JC-46")
async def test_a_held_key_goes_before_a_new_id(way: Way) -> None:
    holder = await way.face.start(greet(name="Ada"), unique="ada")

    chain = await way.face.start(greet(name="Bob"), unique="ada", id=uuid4())

    assert (chain.id, chain.deduplicated) == (holder.id, True)
    assert len(await way.face.list_jobs()) == 1


# ---- many


@pytest.mark.source("JC-87")
async def test_no_calls_give_no_chains(way: Way) -> None:
    assert await way.face.start_many([]) == []


@pytest.mark.source("JC-87")
async def test_chains_come_back_and_are_numbered_in_the_order_of_their_calls(way: Way) -> None:
    names = [f"name-{number}" for number in range(1000)]

    started = await way.face.start_many([greet(name=name) for name in names])

    rows = await way.rows("SELECT id, input FROM holdfast_job ORDER BY seq")
    assert [UUID(id_) for id_, _ in rows] == [chain.id for chain in started]
    assert [json.loads(text)["name"] for _, text in rows] == names


COLUMNS = """chain_index, input, task, queue, lane, priority, tags, webhook, history, status, gate, wake_at,
    run_at - created_at, sort_key - created_at, on_blocker_failure, unique_key, trace, version, attempt"""


@pytest.mark.parametrize("count", [1, 3])
async def test_a_plain_start_writes_the_row_that_a_start_with_an_id_writes(way: Way, count: int) -> None:
    call = greet(name="Ada").options(queue="mail", priority=5, tags=["a"], webhook=None)

    plain = await way.face.start_many([call.options() for _ in range(count)])
    named = await way.face.start_many([call.options(id=uuid4()) for _ in range(count)])

    rows = [await row_of(way, chain.id, COLUMNS) for chain in plain + named]
    assert rows == rows[:1] * (2 * count)
    assert [await events_of(way, chain.id) for chain in plain + named] == [["job:enqueued"]] * (2 * count)
    assert plain == [await way.face.get_chain(chain) for chain in plain]


async def test_each_call_has_the_options_that_were_chosen_for_it(way: Way) -> None:
    call = greet(name="Ada").consume()
    calls = [call, call.options(tags=["b"]), call, call.options(lane="c"), add(a=1, b=2), call]

    started = await way.face.start_many(calls)

    found = [await way.face.get_job(chain) for chain in started]
    assert [job.tags for job in found] == [(), ("b",), (), (), (), ()]
    assert [job.lane for job in found] == [None, None, None, "c", None, None]
    assert [job.queue for job in found] == ["default"] * 4 + ["sums", "default"]
    assert len({job.id for job in found}) == 6


async def test_events_of_a_batch_are_in_its_order(way: Way) -> None:
    await way.face.start_many([greet(name=str(number)) for number in range(100)])

    assert await way.rows("SELECT job FROM holdfast_event ORDER BY seq") == await way.rows(
        "SELECT seq FROM holdfast_job ORDER BY seq"
    )


@pytest.mark.parametrize("features", ["plain", "everything"])
async def test_a_thousand_starts_take_as_many_statements_as_one(way: Way, features: str) -> None:
    """I-62."""
    blocker = await way.face.start(greet(name="first"))
    holder = await way.face.start(greet(name="holder"), unique="held")

    def batch(size: int) -> list[Any]:
        if features == "plain":
            return [a_start() for _ in range(size)]
        kinds: list[dict[str, Any]] = [
            {"blockers": (blocker.id,), "unique": Unique("held")},
            {"named": True, "lane": "vm-7"},
            {"unique": Unique(f"key-{size}"), "delay_ms": 1000},
            {"blockers": (blocker.id, holder.id), "webhook": "https://example.org"},
        ]
        return [a_start(**(kinds[number % 4] if size >= 10 else kinds[0] | kinds[1])) for number in range(size)]

    statements = {size: await way.call(counted, creation.start, batch(size)) for size in (10, 1000)}

    assert statements[10] == statements[1000]
    assert len(await way.call(counted, creation.start, batch(1))) <= len(statements[10]) <= 10


async def test_a_plain_start_takes_one_round_trip(way: Way) -> None:
    statements = await way.call(counted, creation.start, [a_start()])

    assert len(statements) == {"postgres": 1, "sqlite": 2}[way.database]


async def test_blocked_and_unblocked_starts_mix_in_one_batch(way: Way) -> None:
    first = await way.face.start(greet(name="first"))

    waiting, free = await way.face.start_many([greet(name="a").options(blockers=[first]), greet(name="b")])

    assert (waiting.status, free.status) == (Status.BLOCKED, Status.PENDING)


async def test_tasks_mix_in_one_batch(way: Way) -> None:
    one, other = await way.face.start_many([greet(name="a"), add(a=1, b=2)])

    assert (one.task, other.task) == ("greet", "add")


@pytest.mark.source("JC-47")
async def test_equal_keys_in_a_batch_collapse_to_the_first(way: Way) -> None:
    calls = [greet(name=name).options(unique="same") for name in ("first", "second", "third")]

    one, two, three = await way.face.start_many(calls)

    assert one.id == two.id == three.id
    assert [one.deduplicated, two.deduplicated, three.deduplicated] == [False, True, True]
    assert (await way.face.get_job(one)).input.name == "first"
    assert await events_of(way, one.id) == ["job:enqueued"]


async def test_equal_ids_in_a_batch_collapse_to_the_first(way: Way) -> None:
    chosen = uuid4()

    one, two = await way.face.start_many([greet(name=name).options(id=chosen) for name in ("first", "second")])

    assert (one.id, two.id) == (chosen, chosen)
    assert (one.deduplicated, two.deduplicated) == (False, True)
    assert (await way.face.get_job(chosen)).input.name == "first"


async def test_one_id_with_two_keys_takes_the_key_of_the_first_only(way: Way) -> None:
    chosen = uuid4()

    await way.face.start_many([greet(name="a").options(id=chosen, unique=key) for key in ("first", "second")])

    assert await way.rows("SELECT key FROM holdfast_unique") == [("first",)]
    assert await row_of(way, chosen, "unique_key") == ("first",)


async def test_one_id_for_two_tasks_in_a_batch_is_refused(way: Way) -> None:
    chosen = uuid4()

    with pytest.raises(WrongTask):
        await way.face.start_many([greet(name="a").options(id=chosen), add(a=1, b=2).options(id=chosen)])

    assert len(await way.face.list_jobs()) == 0


async def test_a_batch_with_a_bad_start_starts_nothing(way: Way) -> None:
    taken = await way.face.start(greet(name="Ada"))
    before = await whole_store(way)

    with pytest.raises(WrongTask):
        await way.face.start_many([greet(name="a").options(unique="a"), add(a=1, b=2).options(id=taken.id)])

    assert await whole_store(way) == before


async def test_a_batch_with_a_missing_blocker_starts_nothing(way: Way) -> None:
    before = await whole_store(way)

    with pytest.raises(ChainNotFound):
        await way.face.start_many([greet(name="a").options(unique="a"), greet(name="b").options(blockers=[uuid4()])])

    assert await whole_store(way) == before


# ---- what is refused


@pytest.mark.source("JC-93")
async def test_a_start_needs_a_connection_where_that_is_required(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    strict = Way(new_holdfast(way.database, require_connection=True, tasks=[TASKS]), is_async=way.is_async)

    with pytest.raises(TransactionRequired, match="connection="):
        await strict.face.start(greet(name="Ada"))
    with pytest.raises(TransactionRequired, match="connection="):
        await strict.face.start_many([greet(name="Ada")])
    await strict.close()


async def test_a_task_that_nobody_has_recorded_is_refused(way: Way) -> None:
    """F-48."""
    with pytest.raises(UnknownTask) as refused:
        await way.face.start(way.hf.call("nobody.knows", {"x": 1}))

    assert refused.value.name == "nobody.knows"
    assert len(await way.face.list_jobs()) == 0


HOSTILE = {
    "a NUL character": "a\0b",
    "a lone surrogate": "a\ud800b",
    "not a number": float("nan"),
    "an infinity": float("inf"),
    "too deep": json.loads("[" * 70 + "]" * 70),
    "a NUL character in a key": {"a\0": 1},
}


@pytest.mark.parametrize("way", ["sqlite-async", "postgres-blocking"], indirect=True)
@pytest.mark.parametrize("name", HOSTILE)
async def test_what_one_database_cannot_hold_neither_is_given(way: Way, name: str) -> None:
    """F-29, I-06."""

    @way.hf.task(name="take")
    async def take(values: list[Any]) -> None: ...

    with pytest.raises(InvalidInput) as refused:
        await way.face.start(take(values=[HOSTILE[name]]))

    assert refused.value.path.startswith("arguments")
    assert len(await way.face.list_jobs()) == 0


BAD_OPTIONS: list[dict[str, Any]] = [
    {"delay": -1},
    {"delay": float("nan")},
    {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - that is what is wrong with it
    {"priority": 101},
    {"queue": ""},
    {"lane": "a\0"},
    {"tags": "one"},
    {"unique": "k" * 501},
    {"unique": Unique("k", within=-1)},
    {"webhook": "ftp://example.org"},
    {"on_blocker_failure": "explode"},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=lambda options: next(iter(options)))
async def test_a_bad_option_is_refused_before_anything_is_asked_of_the_database(options: dict[str, Any]) -> None:
    hf = Holdfast("/nowhere/at/all/jobs.db", tasks=[TASKS])

    with pytest.raises(InvalidInput, match=next(iter(options))) as caught:
        await hf.start(greet(name="Ada"), **options)
    assert caught.value.path.startswith("options.")


# ---- tasks whose code is elsewhere


@dataclass
class SumInput:
    a: int
    b: int


@pytest.mark.source("JC-108")
async def test_a_task_is_started_by_name_where_its_code_is_elsewhere(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    await way.face.open()  # writes its tasks down
    stranger = Way(new_holdfast(way.database), is_async=way.is_async)

    chain = await stranger.face.start(stranger.hf.call("add", {"a": 1, "b": 2}))

    job = await way.face.get_job(chain)
    assert (job.queue, job.priority, job.input.a, job.input.b) == ("sums", 3, 1, 2)
    await stranger.close()


async def test_arguments_by_name_are_held_against_what_the_owner_wrote_down(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    await way.face.open()
    stranger = Way(new_holdfast(way.database), is_async=way.is_async)

    with pytest.raises(InvalidInput) as refused:
        await stranger.face.start(stranger.hf.call("add", {"a": 1, "c": 2}))

    assert refused.value.path == "arguments.b"
    await stranger.close()


@pytest.mark.source("JC-108")
async def test_a_declared_task_gets_the_queue_of_its_owner(way: Way, new_holdfast: Callable[..., Holdfast]) -> None:
    await way.face.open()
    stranger = Way(new_holdfast(way.database), is_async=way.is_async)
    declared = stranger.hf.declare("add", SumInput, int)

    chain = await stranger.face.start(declared(a=1, b=2))

    job = await way.face.get_job(chain)
    assert (job.queue, job.priority) == ("sums", 3)
    await stranger.close()


async def test_tasks_are_recorded_anew_in_a_database_that_was_made_anew(way: Way) -> None:
    await way.face.start(greet(name="Ada"))
    await way.call(_forget_tasks)

    await way.face.close()
    await way.face.start(greet(name="Ada"))

    assert await way.rows("SELECT name FROM holdfast_task ORDER BY name") == [("add",), ("greet",)]


async def _forget_tasks(tx: Tx) -> None:
    await tx.execute("DELETE FROM holdfast_task")


async def test_a_declared_task_that_nobody_has_recorded_yet_is_started_all_the_same(way: Way) -> None:
    """F-48."""
    declared = way.hf.declare("not.yet.deployed", SumInput, int)

    chain = await way.face.start(declared(a=1, b=2))

    job = await way.face.get_job(chain)
    assert (job.queue, job.input) == ("default", SumInput(1, 2))


async def test_a_declaration_goes_before_what_the_owner_chose(way: Way, new_holdfast: Callable[..., Holdfast]) -> None:
    await way.face.open()
    stranger = Way(new_holdfast(way.database), is_async=way.is_async)
    declared = stranger.hf.declare("add", SumInput, int, queue="here")

    chain = await stranger.face.start(declared(a=1, b=2))

    assert (await way.face.get_job(chain)).queue == "here"
    await stranger.close()


# ---- typed values come back as what they were


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: float
    at: datetime


class Order(BaseModel):
    number: UUID
    colour: Colour
    lines: list[int | str]


class Letter(TypedDict):
    to: str
    copies: int


VALUES: dict[str, tuple[Any, Any]] = {
    "dataclass": (Point, Point(-0.5, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC))),
    "model": (Order, Order(number=UUID(int=7), colour=Colour.RED, lines=[1, "1", 2**70])),
    "TypedDict": (Letter, {"to": 'Ada "the" Å\\Countess\n', "copies": 2}),
    "datetime": (datetime, datetime(1969, 7, 20, 20, 17, tzinfo=UTC)),
    "UUID": (UUID, UUID(int=2**127)),
    "enum": (Colour, Colour.RED),
    "union": (int | str | None, "7"),
    "text of a Latin, an Asian and an emoji": (str, "naïve 漢字 🦀 {}[],:'\"\\ \x7f\u2028"),
    "large number": (int, 10**40),
    "bytes": (bytes, bytes(range(256))),
    "null": (None, None),
}


@pytest.mark.parametrize("way", ["sqlite-blocking", "postgres-async", "postgres-blocking"], indirect=True)
@pytest.mark.parametrize("kind", VALUES)
async def test_arguments_and_outputs_come_back_equal(way: Way, kind: str) -> None:
    type_, value = VALUES[kind]

    async def take(value: Any) -> Any: ...

    take.__annotations__ = {"value": type_, "return": type_}
    task = way.hf.task(name="take")(take)

    chain = await way.face.start(task(value=value))
    await change_job(way, chain.id, output=task.encode_output(value))

    job = await way.face.get_job(chain)
    assert (job.input.value, job.output) == (value, value)
    assert type(job.input.value) is type(value)


async def test_a_value_that_no_longer_fits_its_type_is_given_as_plain_json(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    await change_job(way, chain.id, input='{"former":[1]}')

    assert (await way.face.get_job(chain)).input == {"former": [1]}


async def test_a_chain_cannot_wait_for_itself(way: Way) -> None:
    chosen = uuid4()

    with pytest.raises(BlockerCycle):
        await way.face.start(greet(name="Ada"), id=chosen, blockers=[chosen])

    assert len(await way.face.list_jobs()) == 0


async def test_a_time_beyond_what_python_holds_can_still_be_read(way: Way) -> None:
    """F-41."""
    job_id = await make_job(way, run_at=now_ms() + HOUR_MS * 24 * 365 * 9000)

    assert (await way.face.get_job(job_id)).run_at == datetime(9999, 12, 31, tzinfo=UTC)


async def test_a_chain_is_a_value_that_other_verbs_take(way: Way) -> None:
    chain: Chain[str] = await way.face.start(greet(name="Ada"))

    assert (await way.face.get_job(chain)).id == (await way.face.get_job(str(chain.id))).id


async def test_a_task_that_was_not_called_is_refused_with_what_to_write(way: Way) -> None:
    with pytest.raises(Misuse, match="got the task 'greet'; write `await"):
        await way.face.start(greet)


async def test_calls_that_are_made_one_by_one_are_all_started(way: Way) -> None:
    chains = await way.face.start_many(greet(name=name) for name in ("Ada", "Grace"))

    assert [(await way.face.get_job(each)).input.name for each in chains] == ["Ada", "Grace"]


async def test_one_call_where_a_list_is_wanted_is_refused_with_what_to_write(way: Way) -> None:
    call = greet(name="Ada")
    with pytest.raises(Misuse, match=r"start_many\(\["):
        await way.face.start_many(call)

    await way.face.start(call)


@pytest.mark.parametrize("given", [5, None])
async def test_what_is_no_list_of_calls_is_refused_with_what_to_write(way: Way, given: Any) -> None:
    with pytest.raises(Misuse, match=r"got (5|None); write `hf\.start_many\(\["):
        await way.face.start_many(given)
