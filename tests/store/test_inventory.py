"""Lists of tasks, queues, workers and lanes: what there is, who serves it, and what needs somebody first."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from holdfast import InvalidInput, LaneInfo, UsageError
from holdfast.models import INTERNAL_QUEUE, Page
from holdfast.outcomes import FATAL
from holdfast.states import Status
from holdfast.store import lanes, workers
from holdfast.store.insight import inventory, lane_lists
from holdfast.store.reads import Paging
from holdfast.store.workers import Member
from tests.store.engine import FAIL, admit, drain, run
from tests.store.test_newer_release import Newer, newer
from tests.support.factories import add, counted, greet, make_job, now_ms, pause_lane, pause_queue
from tests.support.ways import Way

__all__ = ["newer"]


async def beat(way: Way, name: str, **facts: Any) -> None:
    """Let a worker say something of itself."""
    await way.call(workers.beat, Member(name, name.upper(), "host", 7, json.dumps(facts)))


async def silence(way: Way, name: str) -> None:
    """Let the last beat of a worker be so old that it counts as dead."""

    async def work(tx: Any) -> None:
        sql = "UPDATE holdfast_worker SET seen_at = seen_at - :ms WHERE id = :id"
        await tx.execute(sql, ms=workers.ALIVE_MS + 1_000, id=name)

    await way.call(work)


# ---- workers


async def test_workers_are_listed_with_what_they_say_and_what_they_run(way: Way) -> None:
    slots = {"handlers": 20, "children": 2, "webhooks": 4}
    said = {"queues": ["mail"], "tasks": ["greet"], "version": "1.2", "hint_mode": "listening"}
    await beat(way, "w1", **said, slots=slots)
    await beat(way, "w2", queues=["mail"], tasks=[])
    await silence(way, "w2")
    for where in ("", "", workers.IN_CHILD):
        await make_job(way, "running", worker=f"w1{where}")

    alive, dead = await way.face.list_workers()

    assert (alive.id, alive.name, alive.host, alive.pid, alive.is_alive) == ("w1", "W1", "host", 7, True)
    assert (alive.queues, alive.tasks, alive.slots, alive.running) == (("mail",), ("greet",), 26, 3)
    assert (alive.version, alive.hint_mode) == ("1.2", "listening")
    assert abs(alive.seen_at - datetime.now(UTC)) < timedelta(minutes=1)
    assert (dead.id, dead.is_alive, dead.running, dead.slots, dead.version) == ("w2", False, 0, None, None)


async def test_those_who_only_wait_or_follow_the_log_are_no_workers(way: Way) -> None:
    await way.call(workers.mark_asleep, Member.here("feed-1", looks_out_as="feed"))
    await beat(way, "w1", queues=["mail"])

    assert [each.id for each in await way.face.list_workers()] == ["w1"]


@pytest.mark.parametrize("count", [inventory.MOST_RUNNING, inventory.MOST_RUNNING + 1])
async def test_what_runs_is_counted_among_as_many_as_is_said(
    way: Way, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "MOST_RUNNING", 3)
    await beat(way, "w1")
    for _ in range(3 + count - 10_000):
        await make_job(way, "running", worker="w1")

    assert [each.running for each in await way.face.list_workers()] == [3]


@pytest.mark.parametrize(
    "facts", ["not JSON", "[1]", '{"queues":7,"tasks":[7],"slots":"many","version":2,"hint_mode":["x"]}']
)
async def test_a_worker_whose_facts_cannot_be_read_is_listed_without_them(newer: Newer, facts: str) -> None:
    way = newer.way
    await beat(way, "w1", queues=["mail"])
    newer.write(f"UPDATE holdfast_worker SET facts = '{facts}' WHERE id = 'w1'")

    (worker,) = await way.face.list_workers()

    assert (worker.queues, worker.tasks, worker.slots, worker.version, worker.hint_mode) == ((), (), None, None, None)


# ---- tasks


async def test_tasks_are_listed_with_their_policy_schemas_and_who_has_them(way: Way) -> None:
    await way.face.start(greet(name="Ada"))  # the first write records the tasks
    await beat(way, "w2", queues=["sums"], tasks=["add"])
    await beat(way, "w1", queues=["sums"], tasks=["add"])
    await beat(way, "dead", queues=["sums"], tasks=["add"])
    await silence(way, "dead")

    found = {each.name: each for each in await way.face.list_tasks()}

    assert list(found) == ["add", "greet"]
    assert (found["add"].queue, found["add"].policy["priority"], found["add"].served_by) == ("sums", 3, ("w1", "w2"))
    assert set(found["add"].input_schema["properties"]) == {"a", "b"}
    assert found["add"].output_schema["type"] == "integer"
    assert (found["greet"].served_by, len(found["greet"].version)) == ((), 12)
    assert abs(found["greet"].updated_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_a_task_that_cannot_be_read_is_listed_with_the_usual_policy(newer: Newer) -> None:
    found = {each.name: each for each in await newer.way.face.list_tasks()}

    assert (found["no_json"].policy["attempts"], found["no_json"].input_schema, found["no_json"].queue) == (
        20,
        {},
        None,
    )
    assert {"greet", "a_list", "cut_off", "new_words"} <= found.keys()


# ---- queues


async def test_queues_are_listed_that_wait_are_paused_named_or_served(way: Way) -> None:
    await way.face.start(greet(name="a"), queue="ready")
    await way.face.start(greet(name="a"), queue="later", delay=60)
    await make_job(way, "completed", queue="over")
    await make_job(way, queue=INTERNAL_QUEUE)
    await beat(way, "w1", queues=["served", "ready"])
    await way.hf.queue("held").pause(by="ada", why="full", until=datetime.now(UTC) + timedelta(hours=1))

    found = {each.name: each for each in await way.face.list_queues()}

    assert list(found) == ["default", "held", "later", "ready", "served", "sums"]
    held = found["held"]
    assert (held.is_paused, held.paused_by, held.reason, held.served_by) == (True, "ada", "full", ())
    assert held.paused_at is not None
    assert held.paused_until is not None
    assert (found["ready"].is_paused, found["ready"].served_by, found["ready"].paused_at) == (False, ("w1",), None)


async def test_a_queue_whose_pause_is_over_is_not_paused(way: Way) -> None:
    await pause_queue(way, "sums")
    before = [each.is_paused for each in await way.face.list_queues() if each.name == "sums"]

    async def end(tx: Any) -> None:
        await tx.execute("UPDATE holdfast_queue SET until = $now - 1 WHERE name = 'sums'")

    await way.face.start(add(a=1, b=2))
    await way.call(end)

    assert before == [True]
    assert [each.is_paused for each in await way.face.list_queues() if each.name == "sums"] == [False]


@pytest.mark.parametrize("count", [2, 3])
async def test_lists_have_as_many_as_they_may(way: Way, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is 1,000 of each."""
    monkeypatch.setattr(inventory, "MOST_LISTED", 2)
    for n in range(count):
        await make_job(way, queue=f"a{n}")
        await beat(way, f"w{n}")

    assert [each.name for each in await way.face.list_queues()] == ["a0", "a1"]
    assert len(await way.face.list_workers()) == 2
    await way.face.start(greet(name="x"))
    assert len(await way.face.list_tasks()) == 2


async def test_the_names_of_queues_take_a_probe_each_and_no_statement(way: Way) -> None:
    few = len(await way.read(counted, inventory.list_queues))
    for n in range(20):
        await make_job(way, queue=f"q{n}")

    assert len(await way.read(counted, inventory.list_queues)) == few


# ---- lanes


async def halt(way: Way, lane: str, **columns: Any) -> UUID:
    """Let a failed job halt *lane*, with another behind it."""
    await make_lane(way, lane)
    await make_job(way, gate="lane", lane=lane, place=2)
    error = json.dumps({"type": "ValueError", "message": "no"})
    return await make_job(way, "failed", lane=lane, head=1, place=1, reason=FATAL, error=error, **columns)


async def make_lane(way: Way, lane: str) -> None:
    """Make the row of a lane."""

    async def work(tx: Any) -> None:
        await tx.execute("INSERT INTO holdfast_lane (key, places) VALUES (:key, 2) ON CONFLICT DO NOTHING", key=lane)

    await way.call(work)


async def all_lanes(way: Way, limit: int, **wanted: Any) -> list[LaneInfo]:
    """Read a list of lanes to its end, with requests that look at three lanes."""
    found: list[LaneInfo] = []
    cursor: str | None = None
    for _ in range(100):
        page: Page[LaneInfo] = await way.read(
            lane_lists.list_lanes, wanted.get("state"), wanted.get("prefix", ""), Paging(limit, cursor=cursor), 3
        )
        found += page
        if (cursor := page.next_cursor) is None:
            return found
    raise AssertionError("the list does not end")


def keys(found: Iterable[LaneInfo]) -> list[str]:
    return [each.key for each in found]


async def fill_lanes(way: Way) -> None:
    """Make lanes in every state."""
    for key in ("a-moves", "c-moves", "b-moves"):
        await make_lane(way, key)
        await make_job(way, lane=key, head=1, place=1)
    await halt(way, "z-halted")
    await halt(way, "b-halted")
    await halt(way, "m-both")
    for key in ("m-both", "y-paused", "a-paused"):
        await pause_lane(way, key)


async def test_lanes_are_listed_halted_ones_first_then_paused_ones_then_the_rest(way: Way) -> None:
    await fill_lanes(way)

    page = await way.face.list_lanes()

    halted, paused = ["z-halted", "b-halted", "m-both"], ["a-paused", "y-paused"]
    moving = ["a-moves", "b-moves", "c-moves"]
    assert (keys(page), page.next_cursor) == (halted + paused + moving, None)
    for limit in (1, 2, 50):
        assert keys(await all_lanes(way, limit)) == halted + paused + moving
        assert keys(await all_lanes(way, limit, state="halted")) == halted
        assert keys(await all_lanes(way, limit, state="paused")) == ["a-paused", "m-both", "y-paused"]
        assert keys(await all_lanes(way, limit, state="moving")) == moving
        assert keys(await all_lanes(way, limit, prefix="b-")) == ["b-halted", "b-moves"]
        assert keys(await all_lanes(way, limit, prefix="nothing")) == []


@pytest.mark.parametrize("is_more", [False, True])
async def test_a_list_of_lanes_looks_at_as_many_as_it_may(way: Way, is_more: bool) -> None:
    """The limit is 10,000; then the page is short, and the next one goes on."""
    for n in range(2 + is_more):
        await make_lane(way, f"a{n}")
    await make_lane(way, "b")

    page = await way.read(lane_lists.list_lanes, "moving", "b", Paging(limit=5), 3)

    assert (keys(page), page.next_cursor is None) == ([], False) if is_more else (["b"], True)
    if is_more:
        assert keys(await way.face.list_lanes(state="moving", prefix="b", cursor=page.next_cursor)) == ["b"]


async def test_lanes_behind_some_that_do_not_belong_are_listed(way: Way) -> None:
    for key in ("a1", "a2", "b3", "b4"):
        await make_lane(way, key)
    for key in ("b1", "b2"):
        await halt(way, key)

    first = await way.face.list_lanes(state="moving", prefix="b", limit=1)
    second = await way.face.list_lanes(state="moving", prefix="b", limit=1, cursor=first.next_cursor)

    assert (keys(first), keys(second), second.next_cursor) == (["b3"], ["b4"], None)


async def test_a_halted_lane_is_listed_with_the_error_that_halts_it(way: Way) -> None:
    since = now_ms() - 5_000
    job_id = await halt(way, "vm-7", finished_at=since)

    (lane,) = await way.face.list_lanes(state="halted")

    assert (lane.halted_by, lane.halted_because, lane.depth) == (job_id, "ValueError: no", 2)
    assert (lane.head_status, lane.halted_since) == (Status.FAILED, datetime.fromtimestamp(since / 1000, UTC))
    assert await way.hf.lane("vm-7").info() == lane


async def test_a_lane_halted_by_a_paused_job_does_not_say_since_when(way: Way) -> None:
    await make_lane(way, "vm-7")
    await make_job(way, "paused", lane="vm-7", head=1, place=1, reason="look at it")

    (lane,) = await way.face.list_lanes(state="halted")

    assert (lane.halted_because, lane.halted_since) == ("look at it", None)


async def test_jobs_behind_a_head_are_counted_up_to_a_hundred_in_lists(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_lists, "MOST_BEHIND", 2)
    await halt(way, "vm-7")
    for place in (3, 4):
        await make_job(way, gate="lane", lane="vm-7", place=place)

    (lane,) = await way.face.list_lanes()

    assert (lane.depth, (await way.hf.lane("vm-7").info()).depth) == (3, 4)


async def test_a_lane_that_the_engine_halts_is_listed_and_goes_once_it_is_skipped(way: Way) -> None:
    first, _ = await way.face.start_many([greet(name=name).options(lane="vm-7") for name in "ab"])
    await admit(way)
    await run(way, FAIL)

    assert [each.halted_by for each in await way.face.list_lanes(state="halted")] == [first.id]
    await way.hf.lane("vm-7").skip()
    assert keys(await way.face.list_lanes(state="moving")) == ["vm-7"]
    await drain(way)
    assert keys(await way.face.list_lanes()) == []


async def test_lanes_are_listed_without_those_whose_head_cannot_be_read(newer: Newer) -> None:
    odd = await halt(newer.way, "odd")
    await halt(newer.way, "good")
    newer.write(f"UPDATE holdfast_job SET status = 'archived' WHERE id = '{odd}'")

    assert keys(await newer.way.face.list_lanes()) == ["good"]


@pytest.mark.parametrize(
    ("wanted", "match"),
    [
        ({"state": "stopped"}, "'halted', 'paused', 'moving'"),
        ({"prefix": 7}, "prefix must be"),
        ({"limit": 501}, "1 to 500"),
    ],
)
async def test_what_no_list_of_lanes_takes_is_refused(way: Way, wanted: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        await way.face.list_lanes(**wanted)


@pytest.mark.parametrize(
    "cursor",
    [
        *("", "x", "bGFuZXM", "WyJsYW5lcyIsImhhbHRlZCIsLTFd", "WyJsYW5lcyIsIm1vdmluZyIsN10"),
        pytest.param("W1tb" * 20_000, id="deep"),
    ],
)
async def test_a_cursor_that_is_none_of_a_list_of_lanes_is_refused(way: Way, cursor: str) -> None:
    with pytest.raises(UsageError, match="cursor"):
        await way.face.list_lanes(cursor=cursor)


async def test_a_cursor_of_lanes_in_another_state_is_refused(way: Way) -> None:
    await halt(way, "a")
    await halt(way, "b")
    cursor = (await way.face.list_lanes(state="halted", limit=1)).next_cursor

    with pytest.raises(UsageError, match="another state"):
        await way.face.list_lanes(state="moving", cursor=cursor)


# ---- the jobs of a lane


async def test_the_jobs_of_a_lane_are_listed_from_its_head_on_by_their_places(way: Way) -> None:
    lane = way.hf.lane("vm-7")
    third = await make_job(way, gate="lane", lane="vm-7", place=3)
    second = await make_job(way, gate="lane", lane="vm-7", place=2)
    head = await make_job(way, "failed", lane="vm-7", head=1, place=1)
    await make_job(way, "completed", lane="vm-7")
    await make_job(way, gate="lane", lane="vm-8", place=1)

    for limit in (1, 2, 3, 50):
        page = await lane.jobs(limit=limit)
        found = [job.id for job in page]
        while page.next_cursor is not None:
            page = await lane.jobs(limit=limit, cursor=page.next_cursor)
            found += [job.id for job in page]
        assert found == [head, second, third]


async def test_the_jobs_of_a_lane_have_their_types_and_a_lane_without_jobs_has_none(way: Way) -> None:
    await way.face.start(greet(name="Ada"), lane="vm-7")
    await admit(way)

    assert [job.input.name for job in await way.hf.lane("vm-7").jobs()] == ["Ada"]
    assert [job.input.name for job in way.hf.sync.lane("vm-7").jobs()] == ["Ada"]
    assert list(await way.hf.lane("nobody").jobs()) == []


async def test_a_lane_is_told_about_in_three_statements_however_many(way: Way) -> None:
    for n in range(5):
        await halt(way, f"vm-{n}")

    many = [f"vm-{n}" for n in range(5)]

    assert len(await way.read(counted, lanes.lane_infos, many, 10)) == 3
    assert len(await way.read(counted, lanes.lane_infos, many[:1], 10)) == 3
