"""Brief and merged streams, four ways: of one job the newest event, in order, resumed without a gap; and no secrets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any
from uuid import UUID

import pytest

from holdfast import Holdfast, Tasks
from holdfast.errors import InvalidInput, StatusConflict, StoreError
from holdfast.events import sse_stream
from holdfast.events.sse_stream import Held
from holdfast.models import Event
from holdfast.tasks.redactions import TaskRedactions
from holdfast.wire.redaction import REDACTED, Redaction
from tests.http.listening import Listening, listening
from tests.support.factories import TASKS, greet, make_job
from tests.support.sse_reader import Message
from tests.support.ways import Way

CANARY = "canary-5e1d"
ERROR = json.dumps(
    {
        "type": "Declined",
        "message": f"postgres://ada:{CANARY}@db refused",
        "traceback": f"  line {CANARY}trace",
        "attributes": {"token": CANARY, "status": 402},
        "attempt": 1,
        "worker": "w",
    }
)


class Patience:
    """Lets a stream go on once it holds so many events as a test has said, and never for the time."""

    def __init__(self) -> None:
        self.number = 1
        self.seen = 0

    def see(self, add: Callable[[Held, Event], None]) -> Callable[[Held, Event], None]:
        def counted(held: Held, event: Event) -> None:
            self.seen += 1
            add(held, event)

        return counted


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Patience:
    """What is held is let go by number, so that a test is the same on every machine."""
    patience = Patience()
    monkeypatch.setattr(Held, "add", patience.see(Held.add))
    monkeypatch.setattr(Held, "is_due", property(lambda held: len(held) > 0 and patience.seen >= patience.number))
    monkeypatch.setattr(Held, "seconds_left", property(lambda held: 0.01))
    return patience


async def lives(way: Way) -> list[UUID]:
    """Have some jobs come and change crosswise, and a lane between them; give their ids."""
    first, second = [UUID(str(each.id)) for each in await way.face.start_many([greet(name="a"), greet(name="b")])]
    await way.face.pause(first)
    await way.face.pause(second)
    third = UUID(str((await way.face.start(greet(name="c"))).id))
    await way.face.resume(first)
    await way.face.cancel(second)
    await way.face.delete(second)
    await way.face.cancel(first)
    return [first, second, third]


def subject(message: Message) -> str:
    data = message.json
    return str(data.get("deletedJobId") or (data.get("job") or {}).get("id") or message.last_id)


def key(message: Message) -> tuple[str, str]:
    return message.last_id, message.event


async def whole_log(way: Way, begin: str) -> list[Message]:
    """Read all that is behind *begin*, event by event; a last start tells where it ends."""
    async with listening(way, last_event_id=begin) as reader:
        return await until_name(reader, "end")


async def until_name(reader: Listening, name: str) -> list[Message]:
    found: list[Message] = []
    while not (found and ((found[-1].json.get("job") or {}).get("input") or {}).get("name") == name):
        found.append(await reader.next())
    return found


@asynccontextmanager
async def log_of_lives(way: Way) -> AsyncIterator[tuple[str, list[Message]]]:
    """Give where a log begins that has some lives in it, and all of its messages."""
    begin = await way.face.cursor()
    await lives(way)
    await way.face.start(greet(name="end"))
    yield begin, await whole_log(way, begin)


# merged


async def test_of_one_job_the_newest_event_comes_and_says_how_many_it_stands_for(way: Way, patience: Patience) -> None:
    async with log_of_lives(way) as (begin, every):
        patience.number = len(every)
        async with listening(way, last_event_id=begin, merge_ms=60_000) as reader:
            found = await until_name(reader, "end")

    newest = {subject(each): key(each) for each in every}
    assert {subject(each): key(each) for each in found} == newest
    assert len(found) == len(newest) < len(every)
    counts = {subject(each): each.json.get("merged", 0) + 1 for each in found}
    assert counts == {about: [subject(each) for each in every].count(about) for about in newest}


async def test_what_is_let_go_comes_in_the_order_of_the_log(way: Way, patience: Patience) -> None:
    async with log_of_lives(way) as (begin, every):
        patience.number = 4
        async with listening(way, last_event_id=begin, merge_ms=60_000) as reader:
            found = await until_name(reader, "end")

    places = [[key(each) for each in every].index(key(each)) for each in found]
    assert places == sorted(places)
    assert sum(each.json.get("merged", 0) + 1 for each in found) == len(every)


@pytest.mark.parametrize("number", [2, 5, 100])
async def test_who_leaves_anywhere_and_comes_back_behind_the_last_id_misses_nothing(
    way: Way, patience: Patience, number: int
) -> None:
    async with log_of_lives(way) as (begin, every):
        patience.number = min(number, len(every))
        async with listening(way, last_event_id=begin, merge_ms=60_000) as reader:
            found = await until_name(reader, "end")

        for cut in range(len(found)):
            sent = found[:cut]
            rest = await whole_log(way, sent[-1].last_id if sent else begin)
            assert missing(every, sent, rest) == []


def missing(every: list[Message], sent: list[Message], rest: list[Message]) -> list[str]:
    """Name what was neither sent, nor comes later, nor was followed by something newer of the same job."""
    have = {key(each) for each in (*sent, *rest)}
    last = {subject(each): place for place, each in enumerate(every) if key(each) in have}
    return [
        each.event for place, each in enumerate(every) if key(each) not in have and last.get(subject(each), -1) < place
    ]


async def test_while_something_is_held_no_id_is_sent(way: Way, patience: Patience) -> None:
    patience.number = 1_000_000
    async with listening(way, snapshot=False, merge_ms=60_000, ping_seconds=0.02) as reader:
        await reader.begun()
        begun = reader.last_id
        await way.face.start(greet(name="held"))
        stream = getattr(reader.stream, "stream", reader.stream)
        while not stream._held:
            await reader.any()
        for _ in range(3):
            assert (await reader.any()).event == "ping"

        assert reader.last_id == begun
        patience.number = 1
        assert (await reader.next()).json["job"]["input"] == {"name": "held"}


async def test_events_of_lanes_are_all_told(way: Way, patience: Patience) -> None:
    lane = way.hf.sync.lane("vm-7")
    async with listening(way, snapshot=False, merge_ms=60_000) as reader:
        await reader.begun()
        patience.number = 3
        for change in (lane.pause, lane.resume, lane.pause):
            change()
        names = [each.event for each in await reader.take(3)]

    assert names == ["lane:paused", "lane:resumed", "lane:paused"]


async def test_many_jobs_at_once_are_not_held_in_memory(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse_stream, "MOST_HELD", 3)
    async with listening(way, snapshot=False, merge_ms=60_000) as reader:
        await reader.begun()
        await way.face.start_many([greet(name=str(number)) for number in range(3)])
        found = await reader.take(3)

    assert [each.json["job"]["input"]["name"] for each in found] == ["0", "1", "2"]
    assert all("merged" not in each.json for each in found)


async def test_a_stream_that_breaks_off_gives_what_it_holds_first(way: Way, patience: Patience) -> None:
    patience.number = 1_000_000
    async with listening(way, snapshot=False, merge_ms=60_000, ping_seconds=0.02) as reader:
        await reader.begun()
        await way.face.start(greet(name="held"))
        stream = getattr(reader.stream, "stream", reader.stream)
        while not stream._held:
            await reader.any()
        way.hf._feed.here.break_off(StoreError("the log cannot be read"))

        assert (await reader.next()).json["job"]["input"] == {"name": "held"}
        with pytest.raises(StoreError, match="cannot be read"):
            await reader.piece()


async def test_what_is_held_comes_when_its_time_is_over(way: Way) -> None:
    async with listening(way, snapshot=False, merge_ms=50) as reader:
        await reader.begun()
        chain = await way.face.start(greet(name="Ada"))
        assert (await reader.next()).json["job"]["id"] == str(chain.id)


@pytest.mark.parametrize("value", [-1, 1, 49, 60_001, True, 2.5, "250", None])
def test_other_intervals_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="merge_ms must be 0, or 50 to 60000 milliseconds"):
        Holdfast("nowhere.db").sync.event_stream(merge_ms=value)


# brief, and redacted


async def told(way: Way, job: UUID, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Give how a stream shows a job: in its snapshot, and in an event."""
    async with listening(way, jobs=job, **asked) as reader:
        snapshot = (await reader.next()).json
        await way.face.retry(job)
        event = (await reader.next()).json
    (shown,) = snapshot["jobs"]
    assert snapshot["omitted"] == ([str(job)] if event["omitted"] else [])
    assert shown["input"] == event["job"]["input"]
    return shown, event["job"]


async def failed(way: Way, **columns: Any) -> UUID:
    values = {"input": f'{{"name":"Ada","token":"{CANARY}"}}', "error": ERROR, "reason": f"said {CANARY}reason"}
    return await make_job(way, "failed", **values, **columns)


async def test_a_brief_stream_has_no_payloads_and_no_traces(way: Way) -> None:
    job = await failed(way)

    shown, event = await told(way, job, brief=True)

    assert (shown["input"], shown["output"]) == (None, None)
    assert shown["error"].keys() == {"type", "message", "attempt", "worker"}
    assert shown.keys() == event.keys()


async def test_secrets_are_masked_for_who_may_see_the_rest(way: Way) -> None:
    job = await failed(way)

    shown, event = await told(way, job, redaction=Redaction())

    assert shown["input"] == event["input"] == {"name": "Ada", "token": REDACTED}
    assert shown["error"]["attributes"] == {"token": REDACTED, "status": 402}
    assert shown["error"]["message"] == f"postgres://ada:{REDACTED}@db refused"


async def test_without_payloads_no_canary_comes(way: Way) -> None:
    job = await failed(way)

    shown, event = await told(way, job, redaction=Redaction(payloads=False))

    assert CANARY not in json.dumps([shown, event])
    assert shown["error"] == {"type": "Declined"}


async def test_a_stream_hides_what_the_task_hides_whose_code_is_elsewhere(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    @way.hf.task(name="pay", redact=["card.number"])
    async def pay(card: dict[str, str]) -> None:
        """Take the money."""

    chain = await way.face.start(pay(card={"number": CANARY, "name": "Ada"}))
    await way.face.cancel(chain)
    server = Way(new_holdfast(way.database), way.is_async)

    shown, event = await told(server, chain.id, redaction=Redaction())
    await server.close()

    assert shown["input"] == event["input"] == {"card": {"number": REDACTED, "name": "Ada"}}


async def test_a_stream_learns_of_a_task_that_is_new(way: Way, new_holdfast: Callable[..., Holdfast]) -> None:
    server = Way(new_holdfast(way.database), way.is_async)
    async with listening(server, redaction=Redaction()) as reader:
        await reader.next()

        @way.hf.task(name="pay", redact=["*.number"])
        async def pay(card: dict[str, str]) -> None:
            """Take the money."""

        way.hf._starter.forget()
        await way.face.start(pay(card={"number": CANARY}))
        event = await reader.next()
    await server.close()

    assert event.json["job"]["input"] == {"card": {"number": REDACTED}}


async def test_what_others_have_written_down_is_read_again_after_some_seconds(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    now = [0.0]
    hidden = TaskRedactions(Tasks(), lambda: now[0])

    async def paths(name: str) -> tuple[str, ...]:
        await hidden.refresh(way.hf.store, [name])
        return hidden.of(name, Redaction()).paths

    def release(name: str, *redact: str) -> None:
        tasks = Tasks()

        @tasks.task(name=name, redact=redact)
        async def pay(card: str) -> None:
            """Take the money."""

        new_holdfast(way.database, tasks=[tasks]).sync.open()

    release("pay", "card")
    assert await paths("pay") == ("card",)
    release("pay")
    now[0] = 9.0
    assert await paths("pay") == ("card",)
    now[0] = 10.0
    assert await paths("pay") == ()
    release("new", "card")
    assert await paths("new") == ("card",)


# for long


@pytest.mark.long
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
@pytest.mark.parametrize("seed", range(5))
async def test_who_is_cut_off_again_and_again_knows_how_every_job_stands(
    database: str, seed: int, new_holdfast: Callable[..., Holdfast]
) -> None:
    chance = Random(seed)
    hf = new_holdfast(database, tasks=[TASKS])
    way = Way(hf, is_async=True)
    known: dict[str, Any] = {}

    async def write() -> None:
        for number in range(40):
            chain = await hf.start(greet(name=str(number)))
            verbs: list[Any] = [hf.pause, hf.resume, hf.trigger, hf.cancel, hf.retry]
            for verb in chance.sample(verbs, 4):
                with suppress(StatusConflict):
                    await verb(chain.id)
            if chance.random() < 0.3:
                await hf.cancel(chain.id)
                await hf.delete(chain.id)

    async def read(last: str) -> None:
        while True:
            async with listening(way, last_event_id=last, merge_ms=50) as reader:
                for _ in range(chance.randint(1, 60)):
                    message = await reader.next()
                    last, data = message.last_id, message.json
                    known[subject(message)] = data["job"]["version"] if data.get("job") else None
                    if ((data.get("job") or {}).get("input") or {}).get("name") == "end":
                        return

    async with hf, asyncio.TaskGroup() as group:
        reading = group.create_task(read(await hf.cursor()))
        await asyncio.gather(*(write() for _ in range(4)))
        await hf.start(greet(name="end"))
        await reading
        stands = {str(job.id): job.version for job in await hf.list_jobs(limit=500)}

    assert {job: version for job, version in known.items() if version is not None} == stands
    assert len(known) == 161
