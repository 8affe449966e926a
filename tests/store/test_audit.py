"""The audit: every act of an acting face leaves one row, in the commit of the act, and nothing else does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput, JobNotFound, Misuse, StatusConflict, fault_points
from holdfast.access import Actor, AuditEntry
from holdfast.client.acting import ACTS, OF_HF_ALONE, ActingRunner
from holdfast.database.tx import Blocking, is_repeatable
from holdfast.fault_points import CrashPoint
from holdfast.ids import target_id
from holdfast.models import INTERNAL_QUEUE, Asked
from holdfast.store import audit, lanes
from holdfast.store.audit import AuditQuery, NewAuditEntry
from holdfast.store.chains import creation
from holdfast.store.jobs import bulk_pages
from holdfast.store.reads import Paging
from tests.support.factories import greet, make_job, row_of
from tests.support.log_rows import as_events
from tests.support.outbox import empty_outbox
from tests.support.ways import Awaitable, Way

HOOK = "https://example.com/hook"


def face_of(way: Way, *, by: str = "ann", why: str | None = "a bad day", request: str | None = "r-1") -> Any:
    """An acting face, whose every method is awaited."""
    if way.is_async:
        return way.hf.acting(by=by, why=why, request=request)
    return Awaitable(way.hf.sync.acting(by=by, why=why, request=request))


def handle(way: Way, name: str, *arguments: str) -> Any:
    """A handle of an acting face, whose every method is awaited."""
    face: Any = face_of(way)
    found = getattr(face if way.is_async else way.hf.sync.acting(by="ann", why="a bad day", request="r-1"), name)
    made = found(*arguments) if arguments else found
    return made if way.is_async else Awaitable(made)


async def entries(way: Way, **wanted: Any) -> list[AuditEntry]:
    """List what stands in the audit, the oldest first."""
    return list(reversed((await way.face.audit(**wanted)).items))


async def newest_of_control(way: Way) -> AuditEntry:
    """Read what was done last in the control place, where tokens and links are, and so what is done to them."""
    control = Blocking(getattr(way.hf.store, "control", way.hf.store))
    return (await control.read(audit.list_entries, AuditQuery(), Paging())).items[0]


async def actions(way: Way) -> list[str]:
    return [each.action for each in await entries(way)]


# ---- every act, by every method that writes

Do = Callable[[Way], Any]


async def a_delivery(way: Way) -> Any:
    """Have a delivery that nobody tries any more."""
    hf = way.hf.sync
    hf.queue(INTERNAL_QUEUE).pause()
    chain = hf.start(greet(name="Ada"), webhook=HOOK)
    hf.cancel(chain)
    empty_outbox(way.hf)
    delivery = hf.webhooks.deliveries(job=chain).items[0]
    hf.cancel(delivery)
    return delivery


def of_job(status: str, act: Callable[[Any, Any], Any]) -> Do:
    """Do something to a job in this status."""

    async def do(way: Way) -> Any:
        return await act(face_of(way), await make_job(way, status))

    return do


async def _scheduled(way: Way) -> Any:
    way.hf.sync.schedules.put("nightly", greet(name="Ada"), every=3600)
    return handle(way, "schedules")


async def _subscribed(way: Way) -> Any:
    way.hf.sync.webhooks.subscribe(HOOK, name="shop")
    return handle(way, "webhooks")


def of_handle(name: str, *arguments: str, act: Callable[[Any], Any], before: Callable[[Holdfast], Any] = id) -> Do:
    async def do(way: Way) -> Any:
        before(way.hf)
        return await act(handle(way, name, *arguments))

    return do


async def _schedule(way: Way, act: Callable[[Any], Any]) -> Any:
    return await act(await _scheduled(way))


async def _webhook(way: Way, act: Callable[[Any], Any]) -> Any:
    return await act(await _subscribed(way))


async def _skip(way: Way) -> Any:
    await make_job(way, "failed", lane="till", head=1, place=1)
    await way.call(_make_lane)
    return await handle(way, "lane", "till").skip()


async def _make_lane(tx: Any) -> None:
    await tx.execute("INSERT INTO holdfast_lane (key, places) VALUES ('till', 1)")


async def _redeliver(way: Way) -> Any:
    return await handle(way, "webhooks").redeliver(await a_delivery(way))


async def _revoke(way: Way) -> Any:
    return await handle(way, "tokens").revoke(way.hf.sync.tokens.create("ann").info.id)


async def _revoke_link(way: Way) -> Any:
    chain = way.hf.sync.start(greet(name="Ada"))
    return await handle(way, "links").revoke(way.hf.sync.links.create(chain).link.id)


async def _link(way: Way) -> Any:
    return await handle(way, "links").create(way.hf.sync.start(greet(name="Ada")))


def pause_lane(hf: Holdfast) -> None:
    hf.sync.lane("till").pause()


def pause_queue(hf: Holdfast) -> None:
    hf.sync.queue("q").pause()


WRITES: dict[str, tuple[str, Do]] = {
    "start": ("start", lambda way: face_of(way).start(greet(name="Ada"))),
    "start_many": ("start", lambda way: face_of(way).start_many([greet(name="Ada"), greet(name="Bob")])),
    "start_again": ("start_again", of_job("failed", lambda face, job: face.start_again(job))),
    "start_again_many": ("start_again", of_job("failed", lambda face, job: face.start_again_many([job]))),
    "cancel": ("cancel", of_job("pending", lambda face, job: face.cancel(job))),
    "cancel_many": ("cancel", of_job("pending", lambda face, job: face.cancel_many([job]))),
    "pause": ("pause", of_job("pending", lambda face, job: face.pause(job))),
    "pause_many": ("pause", of_job("pending", lambda face, job: face.pause_many([job]))),
    "resume": ("resume", of_job("paused", lambda face, job: face.resume(job))),
    "resume_many": ("resume", of_job("paused", lambda face, job: face.resume_many([job]))),
    "retry": ("retry", of_job("failed", lambda face, job: face.retry(job, arguments={"name": "Eve"}))),
    "retry_many": ("retry", of_job("failed", lambda face, job: face.retry_many([job]))),
    "reschedule": ("reschedule", of_job("pending", lambda face, job: face.reschedule(job, after=60))),
    "reschedule_many": ("reschedule", of_job("pending", lambda face, job: face.reschedule_many([job], after=60))),
    "trigger": ("trigger", of_job("pending", lambda face, job: face.trigger(job))),
    "trigger_many": ("trigger", of_job("pending", lambda face, job: face.trigger_many([job]))),
    "complete": ("complete", of_job("failed", lambda face, job: face.complete(greet, job, "Hello"))),
    "delete": ("delete", of_job("failed", lambda face, job: face.delete(job))),
    "delete_many": ("delete", of_job("failed", lambda face, job: face.delete_many([job]))),
    "bulk": ("bulk.cancel", of_job("pending", lambda face, job: face.bulk("cancel", id=job))),
    "start_bulk": ("bulk.start", of_job("pending", lambda face, job: face.start_bulk("cancel", id=job))),
    "lane.pause": ("lane.pause", of_handle("lane", "till", act=lambda lane: lane.pause())),
    "lane.resume": ("lane.resume", of_handle("lane", "till", act=lambda lane: lane.resume(), before=pause_lane)),
    "lane.skip": ("lane.skip", _skip),
    "queue.pause": ("queue.pause", of_handle("queue", "q", act=lambda queue: queue.pause())),
    "queue.resume": ("queue.resume", of_handle("queue", "q", act=lambda queue: queue.resume(), before=pause_queue)),
    "webhooks.subscribe": ("webhook.subscribe", of_handle("webhooks", act=lambda hooks: hooks.subscribe(HOOK))),
    "webhooks.remove": ("webhook.remove", lambda way: _webhook(way, lambda hooks: hooks.remove("shop"))),
    "webhooks.enable": ("webhook.enable", lambda way: _webhook(way, lambda hooks: hooks.enable("shop"))),
    "webhooks.disable": ("webhook.disable", lambda way: _webhook(way, lambda hooks: hooks.disable("shop"))),
    "webhooks.redeliver": ("webhook.redeliver", _redeliver),
    "schedules.put": (
        "schedule.put",
        of_handle("schedules", act=lambda schedules: schedules.put("n", greet(name="Ada"), every=60)),
    ),
    "schedules.pause": ("schedule.pause", lambda way: _schedule(way, lambda schedules: schedules.pause("nightly"))),
    "schedules.resume": (
        "schedule.resume",
        lambda way: _schedule(way, lambda schedules: _paused_and_resumed(way, schedules)),
    ),
    "schedules.run": ("schedule.run", lambda way: _schedule(way, lambda schedules: schedules.run("nightly"))),
    "schedules.delete": ("schedule.delete", lambda way: _schedule(way, lambda schedules: schedules.delete("nightly"))),
    "tokens.create": ("token.create", of_handle("tokens", act=lambda tokens: tokens.create("ann"))),
    "tokens.revoke": ("token.revoke", _revoke),
    "links.create": ("link.create", _link),
    "links.revoke": ("link.revoke", _revoke_link),
}
"""Each method that writes: what it leaves in the audit, and how it is called by an acting face."""

ELSEWHERE = {"tenants.create", "tenants.suspend", "tenants.resume", "tenants.drop"}
"""What is tried in `tests/tenants/test_audit.py`."""

NO_ACTS = {
    *("get_job", "get_chain", "wait", "explain", "explain_queue", "list_jobs", "list_chains", "list_chain_jobs"),
    *(
        "get_blockers",
        "list_blocked_by",
        "events",
        "event_stream",
        "cursor",
        "watch",
        "timeline",
        "list_tasks",
        "list_events",
    ),
    *("list_queues", "list_workers", "list_lanes", "inbox", "journal", "overview", "stats", "audit"),
    *("lane", "queue", "tenant", "acting", "call", "health"),
    *("lane.info", "lane.jobs", "webhooks.list", "webhooks.get", "webhooks.deliveries"),
    *("schedules.get", "schedules.list", "schedules.ticks", "tenants.get", "tenants.list", "tenants.migrate"),
    *("tokens.list", "links.list", "links.get", "tokens.get"),
}
"""What only reads, or makes something in memory; and the migration of tenants, of which the schema itself tells."""


async def _paused_and_resumed(way: Way, schedules: Any) -> None:
    way.hf.sync.schedules.pause("nightly")
    await schedules.resume("nightly")


def methods(hf: Holdfast) -> Iterator[str]:
    """Name every public method of the face, and of what it has for lanes, queues, webhooks, …"""
    handles = {"lane": hf.lane("x"), "queue": hf.queue("x"), "webhooks": hf.webhooks, "schedules": hf.schedules}
    handles |= {name: getattr(hf, name) for name, each in vars(Holdfast).items() if isinstance(each, cached_property)}
    for owner, prefix in [
        (hf, ""),
        *((each, f"{name}.") for name, each in handles.items() if not name.startswith("_")),
    ]:
        for name, value in inspect.getmembers(type(owner)):
            if not name.startswith("_") and callable(value) and not isinstance(value, type):
                yield f"{prefix}{name}"


def test_every_method_that_writes_is_known_to_the_audit(tmp_path: Any) -> None:
    """Whoever adds a method says here whether it is somebody's act."""
    hf = Holdfast(str(tmp_path / "jobs.db"), tenants=True)
    with closing(hf.sync):
        unknown = set(methods(hf)) - WRITES.keys() - ELSEWHERE - NO_ACTS - set(OF_HF_ALONE)

    assert not unknown
    assert {action for action, _ in WRITES.values()} >= {
        each.action for each in ACTS.values() if not each.action.startswith(("tenant.", "bulk"))
    }


@pytest.mark.parametrize("method", WRITES)
async def test_a_method_that_writes_leaves_a_row_that_says_who_and_why(way: Way, method: str) -> None:
    action, do = WRITES[method]

    await do(way)

    if method.startswith(("tokens", "links")):
        entry = await newest_of_control(way)
    else:
        (entry,) = await entries(way)
    assert (entry.action, entry.who, entry.why, entry.request) == (action, "ann", "a bad day", "r-1")
    assert entry.subject


async def test_the_row_of_a_start_says_which_job(way: Way) -> None:
    chain = await face_of(way).start(greet(name="Ada"))

    (entry,) = await entries(way)
    assert (entry.subject, entry.facts) == (str(chain.id), {"tasks": ["greet"]})
    assert abs(entry.at - datetime.now(UTC)) < timedelta(minutes=5)


async def test_five_hundred_starts_are_one_row_with_ten_ids(way: Way) -> None:
    chains = await face_of(way).start_many([greet(name="Ada") for _ in range(500)])

    (entry,) = await entries(way)
    assert (entry.subject, entry.facts["ids"]) == ("500 jobs", [str(each.id) for each in chains[:10]])


async def test_each_page_of_a_bulk_act_is_one_row(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_pages, "PAGE", 3)
    await way.face.start_many([greet(name="Ada") for _ in range(7)])

    await face_of(way).bulk("cancel", task="greet")

    found = await entries(way)
    assert [(each.action, each.subject) for each in found] == [
        ("bulk.cancel", "3 jobs"),
        ("bulk.cancel", "3 jobs"),
        ("bulk.cancel", "1 job"),
    ]
    first, last = found[0].facts["seqs"]
    assert found[0].facts == {"matched": 3, "done": 3, "passed_over": {}, "seqs": [first, last]}
    assert last == first + 2


async def test_a_bulk_act_that_is_given_to_workers_names_who_asked(way: Way) -> None:
    await make_job(way, "pending")

    chain = await face_of(way).start_bulk("cancel", task="greet")

    ((given,),) = await way.rows("SELECT input FROM holdfast_job WHERE id = :id", id=str(chain.id))
    assert '"by":"ann"' in given.replace(" ", "")
    assert '"audited":true' in given.replace(" ", "")
    (entry,) = await entries(way)
    assert (entry.action, entry.facts) == ("bulk.start", {"verb": "cancel"})


# ---- who


async def test_the_history_of_a_job_says_who_acted(way: Way) -> None:
    job = await make_job(way, "pending")

    await face_of(way).cancel(job)

    facts = (await way.face.timeline(job)).items[-1].facts
    assert (facts["by"], facts["reason"]) == ("ann", "a bad day")


async def test_what_a_call_says_itself_comes_first(way: Way) -> None:
    job = await make_job(way, "pending")

    await face_of(way).cancel(job, by="bob", why="he asked")

    (entry,) = await entries(way)
    assert (entry.who, entry.why) == ("bob", "he asked")
    assert (await way.face.timeline(job)).items[-1].facts["by"] == "bob"


async def test_the_log_says_who_has_deleted_a_chain(way: Way) -> None:
    job = await make_job(way, "failed")

    await face_of(way).delete(job)

    (facts,) = [facts for name, facts in await _log(way) if name == "job:deleted"]
    assert "ann" in facts


async def _log(way: Way) -> list[Any]:
    return list(as_events(await way.rows("SELECT name, facts FROM holdfast_event"), "name, facts"))


# ---- what leaves no row


async def test_what_nobody_does_by_an_acting_face_leaves_no_row(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))
    await way.face.cancel(chain, by="bob", why="he asked")

    assert await entries(way) == []


async def test_an_act_that_raises_leaves_no_row(way: Way) -> None:
    job = await make_job(way, "pending")

    with pytest.raises(StatusConflict):
        await face_of(way).resume(job)
    with pytest.raises(JobNotFound):
        await face_of(way).cancel("01890000-0000-7000-8000-000000000000")

    assert await entries(way) == []


async def test_an_act_that_changes_nothing_leaves_no_row(way: Way) -> None:
    await way.face.start(greet(name="Ada"), unique="ada")
    done = await make_job(way, "completed")

    await face_of(way).start(greet(name="Ada"), unique="ada")
    await face_of(way).cancel(done)
    await handle(way, "queue", "q").resume()
    await face_of(way).delete_many(["01890000-0000-7000-8000-000000000000"])

    assert await entries(way) == []


async def test_a_task_that_is_recorded_by_an_acting_face_is_nobodys_act(way: Way) -> None:
    face = Holdfast(store=way.hf.store, settings=way.hf.settings.model_copy(update={"webhook": HOOK}))
    task = face.task(_quiet)

    face.sync.acting(by="ann").start(task())

    assert await actions(way) == ["start"]


async def _quiet() -> None:
    """Do nothing."""


# ---- one commit


@pytest.mark.parametrize("point", ["before_commit", "after_commit"])
async def test_the_row_is_there_if_and_only_if_the_act_was_committed(way: Way, point: str) -> None:
    job, is_done = await make_job(way, "pending"), point == "after_commit"
    fault_points.arm(f"steering.cancel.{point}:1:raise")
    try:
        with suppress(CrashPoint):
            await face_of(way).cancel(job)
    finally:
        fault_points.arm(None)

    assert await row_of(way, job, "status") == ("cancelled" if is_done else "pending",)
    assert await actions(way) == ["cancel"] * is_done


class Twice:
    """Commits everything twice, as who does not know whether the first commit has come through."""

    def __init__(self, way: Way) -> None:
        self._way = way

    async def run(self, operation: Any, *args: Any, **kwargs: Any) -> Any:
        """Run it, and run it again."""
        await self._way.call(operation, *args, **kwargs)
        return await self._way.call(operation, *args, **kwargs)


async def test_a_commit_that_is_repeated_writes_one_row(way: Way) -> None:
    runner: Any = Twice(way)
    twice = ActingRunner(runner, Actor("ann"), way.hf._starter.new_id)

    await twice.run(lanes.pause_queue, "q", None, Asked())

    assert await actions(way) == ["queue.pause"]


async def test_a_start_by_an_acting_face_is_still_one_that_may_be_repeated() -> None:
    anything: Any = str
    acted, _ = ActingRunner(anything, Actor("ann"), anything)._acted(creation.start, ([],))

    assert (is_repeatable(acted), hasattr(acted, "brief")) == (True, False)


# ---- the face


def test_an_acting_face_neither_works_nor_opens(tmp_path: Any) -> None:
    hf = Holdfast(str(tmp_path / "jobs.db"))
    face: Any = hf.acting(by="ann")
    for name in OF_HF_ALONE:
        with pytest.raises(Misuse, match=f"call hf.{name}\\(\\) itself"):
            getattr(face, name)()
    with pytest.raises(Misuse):
        face.sync.retain()


async def test_the_blocking_side_of_an_acting_face_acts_as_well(way: Way) -> None:
    way.hf.acting(by="ann").sync.start(greet(name="Ada"))

    assert await actions(way) == ["start"]


async def test_an_acting_face_may_act_for_somebody_else(way: Way) -> None:
    way.hf.acting(by="ann").acting(by="bob").sync.start(greet(name="Ada"))

    (entry,) = await entries(way)
    assert entry.who == "bob"


@pytest.mark.parametrize("by", ["", " ", None, 7, "x" * 201])
def test_who_acts_must_have_a_name(tmp_path: Any, by: Any) -> None:
    with pytest.raises(InvalidInput, match="by "):
        Holdfast(str(tmp_path / "jobs.db")).acting(by=by)


def test_a_reason_and_a_request_are_short(tmp_path: Any) -> None:
    hf = Holdfast(str(tmp_path / "jobs.db"))
    with pytest.raises(InvalidInput, match="why has 501 characters"):
        hf.acting(by="ann", why="x" * 501)
    with pytest.raises(InvalidInput, match="request has 201 characters"):
        hf.acting(by="ann", request="x" * 201)


# ---- the list


async def written(way: Way, count: int, **given: Any) -> None:
    for number in range(count):
        await way.call(audit.write, NewAuditEntry(f"{given}{number}", "ann", "cancel", "x")._replace(**given))


async def test_the_list_comes_newest_first_and_page_by_page(way: Way) -> None:
    await written(way, 5)

    first = await way.face.audit(limit=3)
    second = await way.face.audit(limit=3, cursor=first.next_cursor)

    assert [each.id[-1] for each in [*first, *second]] == ["4", "3", "2", "1", "0"]
    assert second.next_cursor is None


async def test_the_list_is_narrowed_by_who_what_and_to_what(way: Way) -> None:
    job = await make_job(way, "pending")
    await written(way, 1, who="bob", subject="a")
    await written(way, 1, action="lane.skip", subject="b")
    await written(way, 1, subject=str(job))

    assert [each.subject for each in await entries(way, who="bob")] == ["a"]
    assert [each.subject for each in await entries(way, action="lane.skip")] == ["b"]
    assert [each.subject for each in await entries(way, subject=job)] == [str(target_id(job))]


async def test_the_list_is_narrowed_by_time(way: Way) -> None:
    await written(way, 1)
    now, hour = datetime.now(UTC), timedelta(hours=1)

    assert len(await entries(way, since=now - hour, until=now + hour)) == 1
    assert await entries(way, since=now + hour) == []
    assert await entries(way, until=now - hour) == []


async def test_a_request_looks_at_a_bounded_number_of_entries(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_SEARCHED", 2)
    await written(way, 1, who="bob")
    await written(way, 3)

    first = await way.face.audit(who="bob")
    second = await way.face.audit(who="bob", cursor=first.next_cursor)

    assert (len(first.items), len(second.items), second.next_cursor) == (0, 1, None)


async def test_old_entries_are_forgotten_by_retention(way: Way) -> None:
    await written(way, 2)
    await way.call(_age)
    await written(way, 1, who="bob")

    await way.face.retain()

    assert [each.who for each in await entries(way)] == ["bob"]


async def test_entries_are_kept_for_ever_if_asked_for(way: Way) -> None:
    await written(way, 1)
    await way.call(_age)
    never = way.hf.settings.model_copy(update={"delete_audit_after_seconds": None})

    Holdfast(store=way.hf.store, settings=never).sync.retain()

    assert len(await entries(way)) == 1


async def _age(tx: Any) -> None:
    await tx.execute("UPDATE holdfast_audit SET at = 1")
