"""Why a job does not run: every code is made, read, ended by its remedy, and then the job starts (I-57, I-86)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import Holdfast, Question, Task
from holdfast.database.tx import Tx
from holdfast.explanations import CODES, MOST_LISTED, Explanation, OpenBlocker
from holdfast.models import DELIVER, INTERNAL_QUEUE
from holdfast.outcomes import Kind, Outcome
from holdfast.states import Status
from holdfast.store import workers
from holdfast.store.insight import explain
from holdfast.store.log import events
from holdfast.store.workers import LivingWorker, Member
from tests.store import engine
from tests.store.test_delivery_backlog import BAD, SILENT, deliveries
from tests.store.test_delivery_backlog import claim as claim_deliveries
from tests.support.conditions import until
from tests.support.factories import (
    TASKS,
    change_job,
    continue_chain,
    counted,
    greet,
    make_job,
    pause_lane,
    pause_queue,
    row_of,
)
from tests.support.remedies import Helper
from tests.support.ways import WAYS, Way

HOUR = timedelta(hours=1)
MOST_STATEMENTS = 10
LOCK_STATEMENTS = 2
"""What `find_lock` takes beside the snapshot."""


async def why(way: Way, target: Any) -> Explanation:
    """Explain a job; whatever the reason is, by few statements."""
    id_ = getattr(target, "id", target)
    statements = await way.read(counted, explain.explain_or_doubt, id_)
    assert len(statements) + LOCK_STATEMENTS <= MOST_STATEMENTS, statements
    found: Explanation = await way.face.explain(target)
    assert all(CODES[each.code] is type(each) and each.text == str(each) for each in found.reasons)
    return found


async def codes(way: Way, target: Any) -> list[str]:
    """Name the reasons, in their order."""
    return [each.code for each in (await why(way, target)).reasons]


async def serve(way: Way, handlers: int = 4, children: int = 0, webhooks: int = 128, **facts: Any) -> None:
    """Let a worker say that it lives, which runs greet in queue default unless *facts* say otherwise."""
    slots = {"handlers": handlers, "children": children, "webhooks": webhooks}
    known = {"queues": ["default"], "tasks": ["greet"], "slots": slots}
    await way.call(workers.beat, Member.here("worker-1", **{**known, **facts}))


async def starts(way: Way, job_id: UUID) -> bool:
    """Let whatever can run begin, as a worker does; tell whether *job_id* is among that."""
    await engine.claim_all(way, f"nonce-{uuid4()}")
    return (await row_of(way, job_id, "status")) == ("running",)


@pytest.fixture
async def helper(way: Way) -> AsyncIterator[Helper]:
    """Who carries remedies out."""
    made = Helper(way)
    yield made
    await made.close()


async def test_a_paused_job_says_by_whom_and_why(way: Way, helper: Helper) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    await way.face.pause(job, by="bob", why="wrong address")

    (reason,) = (await why(way, job)).reasons

    assert (reason.code, reason.facts["by"], reason.facts["why"]) == ("paused", "bob", "wrong address")
    assert reason.text == "the job is paused by bob (wrong address)"
    assert abs(datetime.now(UTC) - reason.facts["since"]) < HOUR
    assert not await starts(way, job)
    await helper.carry_out(reason.remedy)
    assert "paused" not in await codes(way, job)
    assert await starts(way, job)


async def test_a_job_that_was_started_paused_has_no_event_that_says_who_paused_it(way: Way) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"), paused=True)).id

    (reason,) = (await why(way, job)).reasons

    assert (reason.code, reason.facts["by"], reason.facts["since"]) == ("paused", None, None)


async def test_a_blocked_job_names_the_chains_that_it_waits_for(way: Way) -> None:
    await serve(way)
    first, second = [(await way.face.start(greet(name=name))).id for name in ("Ada", "Bob")]
    job = (await way.face.start(greet(name="Cy"), blockers=[first, second])).id

    before = await why(way, job)
    await engine.admit(way)
    counted_ = await why(way, job)
    await engine.drain(way)

    shown = tuple(OpenBlocker(each, "greet", Status.PENDING) for each in (first, second))
    assert [each.code for each in before.reasons] == ["blocked"]
    assert before.reasons == counted_.reasons
    assert (before.reasons[0].facts["blockers"], before.reasons[0].facts["count"]) == (shown, 2)
    assert f"waits for chains {first} (pending), {second} (pending)" in before.reasons[0].text
    assert before.reasons[0].remedy is None  # what the others wait for, they say themselves
    assert await row_of(way, job, "status") == ("completed",)


async def test_of_many_blockers_those_that_have_ended_do_not_hide_the_others(way: Way) -> None:
    await serve(way)
    ended = [await make_job(way, "completed") for _ in range(MOST_LISTED + 1)]
    still_open = [(await way.face.start(greet(name="Ada"))).id for _ in range(2)]
    job = (await way.face.start(greet(name="Bob"), blockers=[*ended, *still_open])).id

    (reason,) = (await why(way, job)).reasons

    assert reason.code == "blocked"
    assert [each.chain_id for each in reason.facts["blockers"]] == still_open
    assert reason.facts["count"] == 2


async def test_a_job_that_waits_for_a_failed_chain_is_helped_by_its_retry(way: Way, helper: Helper) -> None:
    await serve(way)
    first = (await way.face.start(greet(name="Ada"))).id
    job = (await way.face.start(greet(name="Bob"), blockers=[first], on_blocker_failure="wait")).id
    await engine.run(way, engine.FAIL)

    (reason,) = (await why(way, job)).reasons
    await helper.carry_out(reason.remedy)
    await engine.run(way)

    assert (reason.code, reason.remedy and reason.remedy.verb) == ("blocked", "retry")
    assert await starts(way, job)


async def test_a_blocked_job_that_has_not_been_told_of_the_end_is_arriving(way: Way) -> None:
    await serve(way)
    first = await make_job(way, "completed")
    job = (await way.face.start(greet(name="Bob"), blockers=[first])).id

    found = await codes(way, job)

    assert found == ["blocked", "arriving"]
    assert await starts(way, job)


async def test_a_job_for_later_says_when_it_is_due(way: Way, helper: Helper) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"), delay=3600)).id

    found = await why(way, job)

    (reason,) = found.reasons
    assert reason.code == "not_due"
    assert found.until == found.job.run_at == reason.facts["run_at"]
    assert not await starts(way, job)
    await helper.carry_out(reason.remedy)
    assert "not_due" not in await codes(way, job)
    assert await starts(way, job)


async def test_a_job_between_attempts_says_what_failed_and_when_it_goes_on(way: Way, helper: Helper) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    error = json.dumps({"type": "OSError", "message": "no route"})
    await engine.run(way, Outcome(Kind.RETRY, delay_ms=3_600_000, error=error))

    found = await why(way, job)

    (reason,) = found.reasons
    assert (reason.code, reason.facts["attempt"], found.until) == ("backing_off", 1, reason.facts["run_at"])
    assert reason.text.startswith("attempt 1 failed (OSError: no route); the next one is due at ")
    await helper.carry_out(reason.remedy)
    assert "backing_off" not in await codes(way, job)
    assert await starts(way, job)


async def test_a_job_behind_others_of_its_lane_says_its_place(way: Way) -> None:
    await serve(way)
    head, second, third = [(await way.face.start(greet(name=name), lane="ada")).id for name in "abc"]
    await engine.admit(way)

    reasons = [(await why(way, each)).reasons for each in (second, third)]

    assert [[each.code for each in found] for found in reasons] == [["lane_behind"], ["lane_behind"]]
    assert [found[0].facts["place"] for found in reasons] == [2, 3]
    assert reasons[0][0].facts["head"] == head
    assert reasons[0][0].text == f"the job has place 2 in lane 'ada', behind job {head} (pending)"
    await engine.run(way)
    assert await starts(way, second)


@pytest.mark.parametrize(("outcome", "verb"), [(engine.FAIL, "retry"), (engine.PAUSE, "resume")])
async def test_a_job_in_a_halted_lane_names_the_job_that_halts_it(
    way: Way, helper: Helper, outcome: Outcome, verb: str
) -> None:
    await serve(way)
    head, job = [(await way.face.start(greet(name=name), lane="ada")).id for name in "ab"]
    assert await engine.run(way, outcome) == head

    behind, halted = (await why(way, job)).reasons

    assert (behind.code, halted.code) == ("lane_behind", "lane_halted")
    assert (halted.facts["head"], halted.remedy and halted.remedy.verb) == (head, verb)
    await helper.carry_out(halted.remedy)
    assert await codes(way, job) == ["lane_behind"]
    await engine.run(way)
    assert await starts(way, job)


async def test_a_job_that_is_not_yet_in_its_lane_is_told_of_what_halts_it(way: Way) -> None:
    """A halted lane lasts; its place in the lane it has only once it is due."""
    await serve(way)
    await way.face.start(greet(name="a"), lane="ada")
    await engine.run(way, engine.FAIL)
    job = (await way.face.start(greet(name="b"), lane="ada", delay=3600)).id

    assert await codes(way, job) == ["not_due", "lane_halted"]


async def test_a_job_in_a_paused_lane_says_who_paused_it(way: Way, helper: Helper) -> None:
    await serve(way)
    await way.face.start(greet(name="Ada"), lane="ada")
    job = (await way.face.start(greet(name="Ada"), lane="bob")).id
    await engine.admit(way)
    await pause_lane(way, "bob")

    (reason,) = (await why(way, job)).reasons

    assert (reason.code, reason.facts["lane"]) == ("lane_paused", "bob")
    assert not await starts(way, job)
    await helper.carry_out(reason.remedy)
    assert "lane_paused" not in await codes(way, job)
    assert await starts(way, job)


async def test_a_job_in_a_paused_queue_says_who_paused_it(way: Way, helper: Helper) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    await pause_queue(way, "default")

    found = await why(way, job)

    (reason,) = found.reasons
    assert (reason.code, reason.text, found.until) == ("queue_paused", "queue 'default' is paused", None)
    assert not await starts(way, job)
    await helper.carry_out(reason.remedy)
    assert "queue_paused" not in await codes(way, job)
    assert await starts(way, job)


async def test_a_queue_that_is_paused_until_then_ends_by_time(way: Way) -> None:
    await serve(way)
    then = datetime.now(UTC).replace(microsecond=0) + HOUR
    job = (await way.face.start(greet(name="Ada"), delay=60)).id
    queue = way.hf.queue("default") if way.is_async else None
    if queue is not None:
        await queue.pause(until=then)
    else:
        way.hf.sync.queue("default").pause(until=then)

    found = await why(way, job)

    assert [each.code for each in found.reasons] == ["not_due", "queue_paused"]
    assert found.until == then


async def test_a_job_whose_queue_nobody_serves_names_those_that_are_served(way: Way, helper: Helper) -> None:
    await serve(way, queues=["email"])
    job = (await way.face.start(greet(name="Ada"), queue="emial")).id

    (reason,) = (await why(way, job)).reasons

    assert (reason.code, reason.facts["nearest"]) == ("no_worker", "email")
    assert [(each.id, each.queues) for each in reason.facts["workers"]] == [("worker-1", ("email",))]
    assert f"no worker serves queue 'emial'{of_tenant(way)}; did you mean 'email'?" in reason.text
    await helper.carry_out(reason.remedy)
    await until(lambda: has_completed(way, job), "a worker that serves the queue runs it")


def of_tenant(way: Way) -> str:
    """What an advice says of the tenant in which the test is run, if it is."""
    name = getattr(way.hf.store, "name", None)
    return "" if name is None else f" of tenant {name!r}"


async def has_completed(way: Way, job: UUID) -> bool:
    return await row_of(way, job, "status") == ("completed",)


async def test_a_queue_that_the_task_names_is_not_taken_for_a_typo(way: Way) -> None:
    await serve(way, queues=["smus"])
    job = (await way.face.start(TASKS.get("add")(a=1, b=2))).id

    (reason,) = (await why(way, job)).reasons

    assert (reason.code, reason.facts["nearest"]) == ("no_worker", None)
    assert "(workers serve 'smus'); start a worker with `holdfast worker APP " in reason.text
    assert "--queues sums" in reason.text


async def test_a_job_whose_task_no_worker_of_the_queue_has_names_near_ones(way: Way, helper: Helper) -> None:
    """F-48."""
    await serve(way, tasks=["greets", "bill"])
    job = (await way.face.start(greet(name="Ada"))).id

    (reason,) = (await why(way, job)).reasons

    assert (reason.code, reason.facts["nearest"]) == ("unknown_task", ("greets",))
    assert reason.text == "no worker of queue 'default' has task 'greet'; did you mean 'greets'?"
    await helper.carry_out(reason.remedy)
    await until(lambda: has_completed(way, job), "a worker that has the task runs it")


async def test_a_job_for_which_all_slots_are_taken_says_how_many_there_are(way: Way) -> None:
    await serve(way, handlers=2)
    await way.face.start_many([greet(name="a"), greet(name="b")])
    running = await engine.claim_all(way)
    job = (await way.face.start(greet(name="c"))).id

    (reason,) = (await why(way, job)).reasons
    await engine.settle(way, (running[0].token, engine.DONE))

    assert (reason.code, reason.facts["slots"], reason.facts["taken"]) == ("workers_busy", 2, 2)
    assert reason.facts["oldest"] is not None
    assert reason.remedy is None
    assert await codes(way, job) == ["arriving"]
    assert await starts(way, job)


async def test_a_slot_in_a_child_process_is_no_slot_for_other_tasks(way: Way) -> None:
    await serve(way, handlers=1, children=5, tasks=["greet", "bill"], in_children=["bill"])
    await make_job(way, "running", task="bill")
    job = (await way.face.start(greet(name="a"))).id
    free = await codes(way, job)

    await make_job(way, "running", task="greet")

    assert (free, await codes(way, job)) == (["arriving"], ["workers_busy"])


async def test_a_worker_of_an_older_release_is_not_taken_for_a_busy_one(way: Way) -> None:
    """It says neither which tasks it has, nor how many slots for what."""
    await way.call(workers.beat, Member.here("worker-1", queues=["default"]))
    await make_job(way, "running")
    job = (await way.face.start(greet(name="a"))).id

    assert await codes(way, job) == ["arriving"]


async def test_a_job_that_took_its_worker_down_says_that_it_waits_to_run_alone(way: Way) -> None:
    await serve(way)
    job = await make_job(way, crashes=2)

    before = await codes(way, job)
    await engine.claim_all(way)  # its worker has it, and waits until it is alone

    assert before == ["suspect"]
    assert await codes(way, job) == ["running", "suspect"]
    assert await row_of(way, job, "status", "started_at") == ("running", None)


async def test_a_job_whose_lane_is_halted_waits_for_more_than_a_look(way: Way) -> None:
    await serve(way)
    head = (await way.face.start(greet(name="Ada"), lane="ada")).id
    await engine.run(way, engine.FAIL)
    job = (await way.face.start(greet(name="Bob"), lane="ada")).id
    before = await codes(way, job)
    await pause_queue(way, "default")
    held = await codes(way, job)
    await engine.admit(way)

    assert (before, held) == (["lane_halted"], ["lane_halted", "queue_paused"])
    assert await codes(way, job) == ["lane_behind", "lane_halted", "queue_paused"]
    assert await row_of(way, head, "status") == ("failed",)


async def test_a_job_that_waits_for_nothing_but_a_look_is_arriving(way: Way) -> None:
    await serve(way)
    ready = (await way.face.start(greet(name="Ada"))).id
    arrived = (await way.face.start(greet(name="Ada"), lane="ada")).id

    found = [await why(way, each) for each in (ready, arrived)]

    assert [[each.code for each in one.reasons] for one in found] == [["arriving"], ["arriving"]]
    assert all(each.until is not None and each.until <= datetime.now(UTC) + HOUR for each in found)
    assert await starts(way, arrived)


@pytest.fixture(params=[True, False], ids=["async", "blocking"])
async def postgres(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Way]:
    """PostgreSQL, which alone locks rows, in either colour."""
    made = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=request.param)
    await made.face.open()
    yield made
    await made.close()


async def test_a_job_whose_row_a_stranger_holds_says_since_when(postgres: Way) -> None:
    way = postgres
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    with psycopg.connect(way.hf.settings.database) as stranger:
        stranger.execute("SET search_path = contract")
        stranger.execute("SELECT 1 FROM holdfast_job WHERE id = %s FOR UPDATE", [str(job)])

        (reason,) = (await why(way, job)).reasons
        could_start = await starts(way, job)
        stranger.rollback()

        assert (reason.code, reason.facts["pid"], could_start) == ("locked", stranger.info.backend_pid, False)
    assert abs(datetime.now(UTC) - reason.facts["since"]) < HOUR
    assert await codes(way, job) == ["arriving"]
    assert await starts(way, job)


async def test_who_may_only_read_is_told_what_can_be_read(postgres: Way) -> None:
    way = postgres
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    address = way.hf.settings.database
    role = f"looker_{uuid4().hex}"
    with psycopg.connect(address, autocommit=True) as owner:
        owner.execute(f"CREATE ROLE {role}")
        owner.execute(f"GRANT USAGE ON SCHEMA contract TO {role}")
        owner.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA contract TO {role}")
        joint = "&" if "?" in address else "?"
        looker = Way(Holdfast(f"{address}{joint}options=-c%20role%3D{role}", schema_name="contract"), way.is_async)
        try:
            found = await looker.face.explain(job)
        finally:
            await looker.close()
            owner.execute(f"DROP OWNED BY {role}")
            owner.execute(f"DROP ROLE {role}")

    assert [each.code for each in found.reasons] == ["arriving"]


async def test_a_look_for_a_lock_leaves_no_lock_and_no_version_behind(way: Way) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    before = await row_of(way, job, "version", "gate")

    await why(way, job)

    assert await row_of(way, job, "version", "gate") == before


async def test_a_job_that_nobody_takes_up_says_that_its_workers_may_be_dead(way: Way) -> None:
    await serve(way)
    ready = (await way.face.start(greet(name="Ada"))).id
    await change_job(way, ready, run_at=0)
    arrived = (await way.face.start(greet(name="Ada"), lane="ada")).id
    await change_job(way, arrived, wake_at=0, run_at=0)

    for job in (ready, arrived):
        found = await why(way, job)
        (reason,) = found.reasons
        assert (reason.code, reason.facts["is_overdue"], found.until) == ("arriving", True, None)
        assert "since 1970-01-01 00:00:00 UTC, and no worker has taken it up" in reason.text


async def test_an_unknown_id_is_no_error(way: Way) -> None:
    missing = uuid4()

    found = await why(way, missing)

    (reason,) = found.reasons
    assert (found.job, found.until, reason.code, reason.remedy) == (None, None, "not_committed", None)
    assert str(missing) in reason.text


async def test_a_running_job_names_its_worker_and_its_lease(way: Way) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    await engine.claim_all(way)

    found = await why(way, job)

    (reason,) = found.reasons
    facts = reason.facts
    assert (reason.code, facts["worker"], reason.remedy, found.until) == ("running", "worker-1", None, None)
    assert facts["since"] == found.job.started_at
    assert facts["lease_until"] == found.job.lease_until
    assert abs(datetime.now(UTC) - facts["seen_at"]) < HOUR


async def test_a_job_whose_lease_is_over_says_that_its_worker_is_probably_dead(way: Way) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    await engine.claim_all(way)
    await change_job(way, job, lease_until=0)

    (reason,) = (await why(way, job)).reasons

    assert (reason.code, reason.facts["is_overdue"]) == ("running", True)
    assert "is probably dead: its lease ended at 1970-01-01 00:00:00 UTC" in reason.text


@pytest.mark.parametrize("verb", ["cancel", "pause"])
async def test_a_job_that_is_to_stop_says_who_asked_for_it(way: Way, verb: str) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    await engine.claim_all(way)
    await getattr(way.face, verb)(job, by="bob", why="enough")

    (reason,) = (await why(way, job)).reasons

    facts = reason.facts
    assert (reason.code, facts["request"], facts["by"], facts["why"]) == ("stopping", verb, "bob", "enough")
    assert f"worker worker-1 is asked to {verb} the job since " in reason.text


async def test_a_job_that_goes_on_after_it_was_asked_to_pause_still_says_by_whom(way: Way) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    await engine.claim_all(way)
    await way.face.pause(job, by="bob")
    seq, version = await row_of(way, job, "seq", "version")
    said = events.NewEvent(seq, "job:progress", Status.RUNNING, version, 1, '{"percent": 40}')
    await way.call(events.append, [said] * 200)

    (reason,) = (await why(way, job)).reasons

    assert (reason.code, reason.facts["by"]) == ("stopping", "bob")


async def test_a_failed_job_says_by_what_and_its_retry_starts_it(way: Way, helper: Helper) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    await engine.run(way, engine.FAIL)

    (reason,) = (await why(way, job)).reasons
    await helper.carry_out(reason.remedy)

    assert (reason.code, reason.facts["outcome"], reason.facts["error"]) == ("ended", "failed", {"type": "OSError"})
    assert "ended" not in await codes(way, job)
    assert await starts(way, job)


async def test_a_job_that_failed_by_its_blocker_is_helped_by_the_retry_of_that(way: Way, helper: Helper) -> None:
    await serve(way)
    first = (await way.face.start(greet(name="Ada"))).id
    job = (await way.face.start(greet(name="Bob"), blockers=[first])).id
    await engine.admit(way)
    await engine.run(way, engine.FAIL)
    await engine.admit(way)

    (reason,) = (await why(way, job)).reasons
    await helper.carry_out(reason.remedy)
    await engine.drain(way)

    assert (reason.code, reason.facts["blocker"], reason.facts["why"]) == ("ended", first, "blocker failed")
    assert f"it waited for chain {first}" in reason.text
    assert await row_of(way, job, "status") == ("completed",)


async def test_a_cancelled_job_says_by_whom(way: Way) -> None:
    job = (await way.face.start(greet(name="Ada"))).id
    await way.face.cancel(job, by="bob", why="enough")

    (reason,) = (await why(way, job)).reasons

    assert reason.facts["by"] == "bob"
    assert reason.text.endswith("by bob (enough)")


async def test_a_completed_job_names_who_completed_it_and_has_no_remedy(way: Way) -> None:
    job = (await way.face.start(greet(name="Ada"))).id
    await engine.run(way)

    (reason,) = (await why(way, job)).reasons

    assert (reason.facts["outcome"], reason.facts["by"], reason.remedy) == ("completed", "worker-1", None)


@pytest.fixture
def approve(way: Way) -> Task[[str], bool]:
    """A task that a person completes."""
    return way.hf.declare("approve", Refund, bool, asks=Question("May Ada go?"))


@dataclass
class Refund:
    """What is asked about."""

    name: str


async def test_a_job_that_asks_a_person_is_completed_by_the_answer(way: Way, helper: Helper, approve: Any) -> None:
    await serve(way)
    job = (await way.face.start(approve(name="Ada"), delay=3600)).id

    later, reason = (await why(way, job)).reasons
    await helper.carry_out(reason.remedy, output=True)

    assert (later.code, reason.code, reason.facts["title"]) == ("not_due", "asks_a_person", "May Ada go?")
    assert reason.text == "task 'approve' asks a person: May Ada go?"
    assert (await way.face.get_job(job)).output is True


@pytest.mark.ways(*WAYS)
async def test_all_reasons_that_hold_are_given_in_their_order(way: Way) -> None:
    """I-86: whoever ends the first one must know of the others."""
    helper = Helper(way)
    await serve(way, queues=["email"])
    await way.face.start(greet(name="head"), lane="ada")
    await engine.run(way, engine.FAIL)
    job = (await way.face.start(greet(name="Ada"), lane="ada", delay=3600, queue="emial")).id
    await way.face.pause(job)
    await pause_lane(way, "ada")
    await pause_queue(way, "emial")

    found = await why(way, job)

    every = ["paused", "not_due", "lane_halted", "lane_paused", "queue_paused", "no_worker"]
    assert [each.code for each in found.reasons] == every
    assert found.until is None
    for number, reason in enumerate(found.reasons[:-1]):
        await helper.carry_out(reason.remedy)
        left = await codes(way, job)
        assert [each for each in left if each in every] == every[number + 1 :]


@pytest.mark.ways("sqlite-async", "postgres-async", "postgres-blocking")
async def test_what_is_said_is_true_of_one_snapshot(
    way: Way, new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    """I-86: what others commit between two of its statements is not seen by the second."""
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    await way.face.pause(job)
    await pause_queue(way, "default")
    before = await codes(way, job)
    other, living = new_holdfast(way.database), workers.living

    async def meanwhile(tx: Tx, hosts: Sequence[LivingWorker]) -> list[LivingWorker]:
        other.sync.queue("default").resume()
        return await living(tx, hosts)

    monkeypatch.setattr(workers, "living", meanwhile)
    found = await way.face.explain(job)
    monkeypatch.undo()

    assert [each.code for each in found.reasons] == before == ["paused", "queue_paused"]
    assert await codes(way, job) == ["paused"]


@pytest.mark.parametrize("named", ["chain", "first", "current"])
async def test_a_job_that_has_continued_stands_for_the_current_one(way: Way, named: str) -> None:
    await serve(way)
    chain = await make_job(way)
    second = await continue_chain(way, chain, "paused")
    third = {"chain": chain, "first": chain, "current": second}[named]

    found = await why(way, third)

    assert (found.job and found.job.id, [each.code for each in found.reasons]) == (second, ["paused"])


async def test_the_input_and_the_output_of_the_job_are_decoded(way: Way) -> None:
    job = (await way.face.start(greet(name="Ada"))).id
    await engine.run(way)

    found = await why(way, job)

    assert found.job == await way.face.get_job(job)


async def test_a_delivery_that_was_put_off_names_its_receiver(way: Way) -> None:
    """A silent receiver holds up its own deliveries only, and each of them says so."""
    await serve(way)
    (delivery,) = await deliveries(way, [BAD])
    await claim_deliveries(way, SILENT)

    found = await why(way, delivery)

    (reason,) = found.reasons
    assert (reason.code, reason.facts["receiver"]) == ("not_due", "bad.example:443/hook")
    assert found.until == reason.facts["run_at"]
    assert "put off" in reason.text


async def test_a_delivery_that_no_worker_posts_says_so(way: Way) -> None:
    await serve(way, webhooks=0)
    (delivery,) = await deliveries(way, [BAD])

    (reason,) = (await why(way, delivery)).reasons

    assert (reason.code, reason.facts["queue"]) == ("no_worker", INTERNAL_QUEUE)
    tenants = "tenants={'tried': 1}" if of_tenant(way) else ""
    assert (reason.remedy and reason.remedy.python) == f"hf.worker({tenants})"
    assert DELIVER not in reason.text


async def test_a_worker_without_a_beat_for_minutes_serves_nothing(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    await serve(way)
    job = (await way.face.start(greet(name="Ada"))).id
    monkeypatch.setattr(workers, "ALIVE_MS", -1)

    assert await codes(way, job) == ["no_worker"]


async def test_a_count_stops_and_says_so(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "MOST_COUNTED", 3)
    monkeypatch.setattr("holdfast.explanations.MOST_COUNTED", 3)
    await serve(way)
    jobs = [(await way.face.start(greet(name=name), lane="ada")).id for name in "abcdef"]
    await engine.admit(way)

    (reason,) = (await why(way, jobs[-1])).reasons

    assert reason.facts["place"] == 3
    assert "place 3 or more" in reason.text


# ---- queues


async def queue_codes(way: Way, name: str = "default") -> list[str]:
    """Explain a queue; whatever the reason is, by few statements."""
    assert len(await way.read(counted, explain.explain_queue, name)) <= MOST_STATEMENTS
    return [each.code for each in (await way.face.explain_queue(name)).reasons]


async def test_a_queue_whose_jobs_are_taken_is_moving(way: Way) -> None:
    await serve(way)
    empty = await way.face.explain_queue("default")
    await way.face.start(greet(name="Ada"))

    assert await queue_codes(way) == ["moving"]
    assert (empty.queue, empty.reasons[0].facts["is_empty"]) == ("default", True)


async def test_a_queue_says_that_it_is_paused_and_that_nobody_serves_it(way: Way) -> None:
    await pause_queue(way, "default")
    empty = await queue_codes(way)
    await way.face.start(greet(name="Ada"))

    assert (empty, await queue_codes(way)) == (["queue_paused", "no_worker"], ["queue_paused", "no_worker"])


async def test_a_queue_names_each_task_that_waits_in_it_and_that_nobody_knows(way: Way) -> None:
    await serve(way)
    for task in ("lost", "greet", "alien", "alien"):
        await make_job(way, task=task)

    found = await way.face.explain_queue("default")

    assert [(each.code, each.facts["task"]) for each in found.reasons] == [
        ("unknown_task", "alien"),
        ("unknown_task", "lost"),
    ]


async def test_a_queue_whose_workers_are_busy_says_so(way: Way) -> None:
    await serve(way, handlers=1)
    await make_job(way, "running")
    await make_job(way)

    assert await queue_codes(way) == ["workers_busy"]


@pytest.mark.parametrize("in_child", ["bill", "greet"])
async def test_a_queue_says_that_slots_of_some_of_its_tasks_are_taken(way: Way, in_child: str) -> None:
    """Whichever of them comes first."""
    await serve(way, handlers=4, children=1, tasks=["bill", "greet"], in_children=[in_child])
    await make_job(way, "running", task=in_child)
    for task in ("bill", "greet"):
        await make_job(way, task=task)

    assert await queue_codes(way) == ["workers_busy"]
    (reason,) = (await way.face.explain_queue("default")).reasons
    assert reason.text.startswith("the only slot for child processes of the workers of queue 'default' is taken")


async def test_a_queue_of_questions_is_not_unserved(way: Way, approve: Any) -> None:
    await way.face.start(approve(name="Ada"))

    assert await queue_codes(way, "people") == ["asks_a_person"]


async def test_a_queue_with_many_tasks_is_looked_at_in_part(way: Way) -> None:
    await serve(way)
    for number in range(explain.MOST_TASKS + 5):
        await make_job(way, task=f"task-{number:02}")

    assert await queue_codes(way) == ["unknown_task"] * explain.MOST_TASKS


def test_every_code_has_a_test_here_or_among_those_of_tenants() -> None:
    """I-57: one that makes it, and reads it."""
    here = Path(__file__)
    of_tenants = here.parents[1] / "tenants" / "test_explaining.py"
    text = here.read_text(encoding="utf-8") + of_tenants.read_text(encoding="utf-8")

    assert [code for code in CODES if f'"{code}"' not in text] == []


async def test_a_lane_that_passes_on_has_no_head_to_name(way: Way) -> None:
    """Its head has ended while somebody held the lane: admission comes round."""
    await serve(way)
    head, job = [(await way.face.start(greet(name=name), lane="ada")).id for name in "ab"]
    await engine.admit(way)
    await change_job(way, head, status="completed", head=0, place=None, gate="arrival")

    (reason,) = (await why(way, job)).reasons

    assert (reason.code, reason.facts["place"], reason.facts["head"]) == ("lane_behind", 1, None)
