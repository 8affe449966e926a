"""Webhooks: who gets a delivery of which event, what it says, and what its end leaves on the job.

How events become deliveries is in `test_outbox`; here that has always happened when a test looks.

I-02, I-12, I-47, I-48, I-62, I-70; PQ-46 … PQ-50, PQ-66.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import Holdfast, InvalidInput, JobNotFound, StatusConflict
from holdfast.database.tx import Tx
from holdfast.errors import Busy, DeliveryNotFound, InvalidAddress, SubscriptionNotFound
from holdfast.models import DELIVER, GONE, INTERNAL_QUEUE, TRIGGERS, EventName
from holdfast.outcomes import Kind, Outcome
from holdfast.store import webhooks as subscriptions
from holdfast.store.jobs import block_ends, settling
from holdfast.store.jobs.claiming import Claimed, Want
from holdfast.store.jobs.reaping import reap
from holdfast.store.jobs.settling import Settlement
from holdfast.store.log import events
from holdfast.wire.webhook_body import WebhookBody
from tests.store.engine import (
    CANCEL,
    DONE,
    FAIL,
    LEASE_MS,
    PAUSE,
    RETRY,
    admit,
    claim,
    claim_one,
    drain,
    expire,
    facts_of,
    lane_rows,
    make_deliveries,
    run,
    settle,
)
from tests.support.factories import TASKS, change_job, counted, events_of, greet, row_of, seq_of
from tests.support.ways import Awaitable, Way

URL = "https://example.com/hook"
HOUR_MS = 3_600_000
DELIVERIES = [Want(INTERNAL_QUEUE, DELIVER, LEASE_MS)]
TAKEN = Outcome(Kind.COMPLETE, output='{"status":200}')
REFUSED = Outcome(Kind.FAIL, error='{"type":"Refused"}', reason="the receiver answered 400")
AGAIN = Outcome(Kind.RETRY, error='{"type":"NotDelivered"}', delay_ms=60_000)


def webhooks(way: Way) -> Any:
    """The handle, whose every method is awaited."""
    return way.hf.webhooks if way.is_async else Awaitable(way.hf.sync.webhooks)


async def deliveries(way: Way, **wanted: Any) -> list[Any]:
    """List deliveries, the oldest first, when all are made."""
    await make_deliveries(way)
    return list(reversed((await webhooks(way).deliveries(**wanted)).items))


async def told(way: Way) -> list[str]:
    """Name the events that are to be delivered, in order."""
    return [each.event for each in await deliveries(way)]


async def body_of(way: Way, delivery_id: UUID) -> dict[str, Any]:
    """Read what is posted."""
    (text,) = await row_of(way, delivery_id, "input")
    return dict(json.loads(json.loads(text)["body"]))


async def claim_deliveries(way: Way, most: int = 100) -> list[Claimed]:
    """Claim what may be posted now, when all deliveries are made."""
    await make_deliveries(way)
    await admit(way, INTERNAL_QUEUE)
    return await claim(way, most, "posting", DELIVERIES)


async def post(way: Way, outcome: Outcome = TAKEN) -> UUID:
    """Post the one webhook that may be posted, with this outcome."""
    (delivery,) = await claim_deliveries(way)
    settled = await settle(way, (delivery.token, outcome), halts_lane=False)
    assert settled.done == [delivery.token]
    return UUID(delivery.id)


# ---- who is told


async def test_nobody_is_told_where_nobody_wants_to_know(way: Way) -> None:
    await way.face.start(greet(name="Ada"))

    await run(way, DONE)

    assert await deliveries(way) == []


@pytest.mark.source("PQ-46")
@pytest.mark.parametrize(
    ("outcome", "event"),
    [
        (DONE, "job:completed"),
        (FAIL, "job:failed"),
        (RETRY, "job:retrying"),
        (CANCEL, "job:cancelled"),
    ],
)
async def test_a_subscription_is_told_how_an_attempt_ended(way: Way, outcome: Outcome, event: str) -> None:
    subscription = await webhooks(way).subscribe(URL)
    chain = await way.face.start(greet(name="Ada"))

    await run(way, outcome)

    (delivery,) = await deliveries(way)
    assert (delivery.event, delivery.target, delivery.subscription) == (event, chain.id, subscription.id)
    assert (delivery.url, delivery.status, delivery.attempts) == (URL, "pending", 0)


async def test_a_plain_completion_on_the_short_way_is_told_as_well(way: Way) -> None:
    await webhooks(way).subscribe(URL, events=["chain:completed", "job:completed"])
    await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    await way.call(settling.settle, [Settlement(job.token, DONE, is_plain=True)])

    assert await told(way) == ["job:completed", "chain:completed"]


async def test_a_block_that_completes_is_told_as_well(way: Way) -> None:
    await way.face.start(greet(name="Ada"), webhook=URL)
    job = await claim_one(way)

    await way.call(block_ends.finish_block, Settlement(job.token, DONE, is_plain=True))

    assert await told(way) == ["job:completed"]


async def test_what_people_do_is_told(way: Way) -> None:
    await webhooks(way).subscribe(URL, events=TRIGGERS)
    first, second, third = await way.face.start_many([greet(name=name) for name in "abc"])

    await way.face.cancel(first)
    await way.face.pause(second)
    await way.face.complete(greet, third, "Hello")

    assert await told(way) == ["job:cancelled", "job:paused", "job:completed", "chain:completed"]


async def test_a_job_that_fails_by_its_blocker_is_told(way: Way) -> None:
    await webhooks(way).subscribe(URL, events=["job:failed"])
    blocker = await way.face.start(greet(name="Ada"))
    waiting = await way.face.start(greet(name="Bob"), blockers=[blocker])
    await admit(way)

    await way.face.cancel(blocker)

    (delivery,) = await deliveries(way)
    assert (delivery.event, delivery.target) == ("job:failed", waiting.id)


async def test_a_job_that_is_taken_back_is_told(way: Way) -> None:
    await webhooks(way).subscribe(URL, events=["job:reaped"])
    await way.face.start(greet(name="Ada"))
    job = await claim_one(way)
    await expire(way, job.token, lease_ms=1)

    await way.call(reap, LEASE_MS)

    assert await told(way) == ["job:reaped"]


async def test_events_of_others_come_the_same_way(way: Way) -> None:
    await webhooks(way).subscribe(URL, events=["job:stale", "job:phase:completed"])
    chain = await way.face.start(greet(name="Ada"))
    seq = await seq_of(way, chain.id)
    names: list[EventName] = ["job:phase:completed", "job:stale", "job:progress"]

    await way.call(events.append, [events.NewEvent(seq, name, version=2, attempt=1) for name in names])

    assert await told(way) == ["job:phase:completed", "job:stale"]


@pytest.mark.source("PQ-46")
async def test_only_the_events_and_tasks_that_were_asked_for_are_told(way: Way) -> None:
    await webhooks(way).subscribe(URL, events=["job:failed"])
    await webhooks(way).subscribe(URL, tasks=["gree", "GREET", "gre_t"])
    wanted = await webhooks(way).subscribe(URL, events=["job:completed"], tasks=["add", "greet"])
    await way.face.start(greet(name="Ada"))

    await run(way, DONE)

    (delivery,) = await deliveries(way)
    assert (delivery.event, delivery.subscription) == ("job:completed", wanted.id)


async def test_every_subscription_gets_a_delivery_of_its_own(way: Way) -> None:
    subscribed = [await webhooks(way).subscribe(f"{URL}/{n}", secrets=[f"key-{n}"]) for n in range(3)]
    chain = await way.face.start(greet(name="Ada"))

    await run(way, DONE)

    made = await deliveries(way, job=chain)
    assert [each.subscription for each in made] == [each.id for each in subscribed]
    inputs = [json.loads((await row_of(way, each.id, "input"))[0]) for each in made]
    assert [(each["url"], each["secrets"]) for each in inputs] == [(f"{URL}/{n}", [f"key-{n}"]) for n in range(3)]
    assert len({each["body"] for each in inputs}) == 1


@pytest.mark.source("PQ-66")
async def test_a_webhook_of_its_own_takes_the_place_of_the_subscriptions(way: Way) -> None:
    await webhooks(way).subscribe(f"{URL}/all", events=TRIGGERS)
    await way.face.start(greet(name="Ada"), webhook=f"{URL}/own")

    await run(way, DONE)

    (delivery,) = await deliveries(way)
    assert (delivery.event, delivery.url, delivery.subscription) == ("job:completed", f"{URL}/own", None)


@pytest.mark.source("PQ-66")
async def test_a_silenced_job_is_told_to_nobody(way: Way) -> None:
    await webhooks(way).subscribe(URL)
    await way.face.start(greet(name="Ada"), webhook=None)

    await run(way, FAIL)

    assert await deliveries(way) == []


@pytest.mark.parametrize(("webhook", "urls"), [(f"{URL}/own", [f"{URL}/own"] * 2), (None, [])])
async def test_a_continuation_inherits_its_webhook(way: Way, webhook: str | None, urls: list[str]) -> None:
    from tests.store.test_continuations import then

    await webhooks(way).subscribe(URL)
    await way.face.start(greet(name="Ada"), webhook=webhook)

    await run(way, then())
    await run(way, DONE)

    assert [each.url for each in await deliveries(way)] == urls


async def test_a_disabled_subscription_is_told_nothing_until_it_is_enabled(way: Way) -> None:
    subscription = await webhooks(way).subscribe(URL)
    disabled = await webhooks(way).disable(subscription, why="too loud")
    await way.face.start(greet(name="Ada"))
    await run(way, DONE)
    assert await deliveries(way) == []

    enabled = await webhooks(way).enable(subscription)
    await way.face.start(greet(name="Bob"))
    await run(way, DONE)

    assert (disabled.is_enabled, disabled.reason, enabled.is_enabled) == (False, "too loud", True)
    assert len(await deliveries(way)) == 1


# ---- it commits with its event, and rolls back with it


class Regretted(Exception):
    """Undoes a transaction."""


async def test_an_event_that_is_undone_makes_no_delivery(way: Way) -> None:
    await webhooks(way).subscribe(URL)
    await way.face.start(greet(name="Ada"))
    job = await claim_one(way)

    async def settle_and_regret(tx: Tx) -> None:
        await settling.settle(tx, [Settlement(job.token, DONE, is_plain=True)])
        assert await tx.fetch_all("SELECT job FROM holdfast_outbox") != []
        raise Regretted

    with pytest.raises(Regretted):
        await way.call(settle_and_regret)

    assert await deliveries(way) == []
    assert len(await way.face.list_jobs(internal=True)) == 1


async def test_its_id_and_body_follow_from_the_event_alone(way: Way) -> None:
    await webhooks(way).subscribe(URL)
    chain = await way.face.start(greet(name="Ada"))
    fact = events.NewEvent(await seq_of(way, chain.id), "job:failed", version=2, attempt=1)

    await way.call(events.append, [fact, fact])

    assert len(await deliveries(way)) == 1


# ---- what is posted


async def test_the_body_tells_the_job_as_it_stood(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), tags=["ä"], webhook=URL)
    await run(way, RETRY)
    await way.face.cancel(chain)

    first, second = await deliveries(way)
    retrying, cancelled = await body_of(way, first.id), await body_of(way, second.id)

    assert (retrying["type"], cancelled["type"]) == ("job:retrying", "job:cancelled")
    data, job = retrying["data"], retrying["data"]["job"]
    assert (data["status"], data["attempt"], data["version"]) == ("pending", 1, job["version"])
    assert data["facts"] == {"error": {"type": "OSError"}, "run_at": job["run_at"]}
    assert (job["id"], job["task"], job["input"], job["tags"]) == (str(chain.id), "greet", {"name": "Ada"}, ["ä"])
    assert (job["status"], job["state"], cancelled["data"]["job"]["state"]) == ("pending", "scheduled", "cancelled")
    for posted in (retrying, cancelled):
        assert WebhookBody.model_validate(posted, strict=True).model_dump() == posted


async def test_what_is_too_long_is_left_out_and_said_so(way: Way) -> None:
    await way.face.start(greet(name="A" * 70_000), webhook=URL)
    await run(way, DONE)

    (delivery,) = await deliveries(way)
    data = (await body_of(way, delivery.id))["data"]

    assert data["omitted"] == ["input", "output"]
    assert (data["job"]["input"], data["job"]["output"], data["job"]["task"]) == (None, None, "greet")


# ---- a delivery is no event


async def test_there_is_no_delivery_of_a_delivery(way: Way) -> None:
    await webhooks(way).subscribe(URL, events=TRIGGERS)
    await way.face.start(greet(name="Ada"))
    await run(way, DONE)

    await post(way, AGAIN)
    await change_job(way, (await deliveries(way))[0].id, run_at=0, wake_at=0)
    await post(way, REFUSED)
    await post(way, TAKEN)

    assert await told(way) == ["job:completed", "chain:completed"]
    assert await claim_deliveries(way) == []


async def test_deliveries_stay_out_of_lists_unless_asked_for(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, DONE)
    (delivery,) = await deliveries(way)

    assert [job.id for job in await way.face.list_jobs()] == [chain.id]
    assert [each.id for each in await way.face.list_chains()] == [chain.id]
    assert {job.id for job in await way.face.list_jobs(internal=True)} == {chain.id, delivery.id}
    assert {each.id for each in await way.face.list_chains(internal=True)} == {chain.id, delivery.id}
    assert [job.id for job in await way.face.list_jobs(queue=INTERNAL_QUEUE)] == [delivery.id]
    assert (await way.face.get_job(delivery.id)).task == DELIVER


async def test_the_engines_names_are_its_own(way: Way) -> None:
    for options in ({"queue": INTERNAL_QUEUE}, {"lane": "holdfast.webhook.x"}):
        with pytest.raises(InvalidInput, match="Holdfast keeps"):
            await way.face.start(greet(name="Ada"), **options)


# ---- order


async def test_deliveries_of_one_job_go_out_one_after_the_other(way: Way) -> None:
    await webhooks(way).subscribe(URL, events=TRIGGERS)
    chain = await way.face.start(greet(name="Ada"))
    await run(way, RETRY)
    await way.face.trigger(chain)
    await run(way, DONE)

    order = []
    for _ in range(3):
        (delivery,) = await claim_deliveries(way)
        order.append((await body_of(way, UUID(delivery.id)))["type"])
        await settle(way, (delivery.token, TAKEN), halts_lane=False)

    assert order == ["job:retrying", "job:completed", "chain:completed"]


async def test_a_receiver_that_does_not_answer_holds_up_nobody_else(way: Way) -> None:
    for n in range(2):
        await webhooks(way).subscribe(f"{URL}/{n}")
    chain = await way.face.start(greet(name="Ada"))
    await run(way, RETRY)
    dead, alive = await claim_deliveries(way)
    await settle(way, (dead.token, AGAIN), (alive.token, TAKEN), halts_lane=False)
    await way.face.trigger(chain)
    await run(way, DONE)

    (next_one,) = await claim_deliveries(way)

    assert json.loads(next_one.input)["url"] == json.loads(alive.input)["url"]
    assert json.loads(next_one.input)["event"] == "job:completed"


async def test_one_that_has_failed_does_not_halt_the_next(way: Way) -> None:
    await webhooks(way).subscribe(URL, events=TRIGGERS)
    await way.face.start(greet(name="Ada"))
    await run(way, DONE)

    await post(way, REFUSED)
    await post(way, TAKEN)

    assert [each.status for each in await deliveries(way)] == ["failed", "completed"]
    assert await lane_rows(way) == []


async def test_one_whose_worker_was_lost_goes_out_before_the_next(way: Way) -> None:
    await webhooks(way).subscribe(URL, events=TRIGGERS)
    await way.face.start(greet(name="Ada"))
    await run(way, DONE)
    (lost,) = await claim_deliveries(way)
    await expire(way, lost.token, lease_ms=1)

    await way.call(reap, LEASE_MS)

    (again,) = await claim_deliveries(way)
    assert (again.id, json.loads(again.input)["event"]) == (lost.id, "job:completed")


# ---- its end


@pytest.mark.source("PQ-40")
@pytest.mark.parametrize(
    ("outcome", "sent", "event"), [(TAKEN, True, "job:webhook:delivered"), (REFUSED, False, "job:webhook:failed")]
)
async def test_the_job_knows_what_came_of_its_webhook(way: Way, outcome: Outcome, sent: bool, event: str) -> None:
    chain = await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, DONE)
    before = await way.face.get_job(chain.id)

    delivery = await post(way, outcome)

    job = await way.face.get_job(chain.id)
    assert (before.webhook_sent, job.webhook_sent, job.version) == (None, sent, before.version + 1)
    assert (await events_of(way, chain.id))[-1] == event
    (facts,) = await facts_of(way, event)
    assert (facts["delivery"], facts["event"], facts.get("reason")) == (str(delivery), "job:completed", outcome.reason)


async def test_a_try_that_is_followed_by_another_says_nothing_of_the_job(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, DONE)

    await post(way, AGAIN)

    (delivery,) = await deliveries(way)
    assert (await way.face.get_job(chain.id)).webhook_sent is None
    assert (delivery.status, delivery.attempts, delivery.error, delivery.is_delivered) == (
        "pending", 1, {"type": "NotDelivered"}, False,
    )  # fmt: skip


async def test_a_delivery_that_people_end_is_told_too(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, DONE)
    (delivery,) = await deliveries(way)

    await way.face.cancel(delivery.id, why="no use")

    assert (await way.face.get_job(chain.id)).webhook_sent is False
    assert (await facts_of(way, "job:webhook:failed"))[0]["reason"] == "no use"


@pytest.mark.source("PQ-50", "DF-44")
async def test_a_deleted_job_is_borne(way: Way) -> None:
    """PQ-50, DF-44."""
    subscription = await webhooks(way).subscribe(URL)
    chain = await way.face.start(greet(name="Ada"))
    await run(way, DONE)
    (delivery,) = await claim_deliveries(way)
    await way.face.delete(chain)

    settled = await settle(way, (delivery.token, Outcome(Kind.FAIL, reason=GONE)), halts_lane=False)

    assert settled.done == [delivery.token]
    assert (await way.face.get_job(delivery.id)).status == "failed"
    assert await facts_of(way, "job:webhook:failed") == []
    assert not (await webhooks(way).get(subscription)).is_enabled


async def test_a_deleted_job_that_held_its_lane_is_borne(way: Way) -> None:
    """PQ-50: a tombstone stays until its lane has gone on, and is nobody's job any more."""
    chain = await way.face.start(greet(name="Ada"), lane="a", webhook=URL)
    await run(way, FAIL)
    (delivery,) = await claim_deliveries(way)
    await way.face.delete(chain)
    before = await way.rows("SELECT id, version FROM holdfast_job WHERE closed_as = 'deleted'")
    assert len(before) == 1

    await settle(way, (delivery.token, REFUSED), halts_lane=False)

    assert await way.rows("SELECT id, version FROM holdfast_job WHERE closed_as = 'deleted'") == before
    assert await facts_of(way, "job:webhook:failed") == []


async def test_a_receiver_that_is_gone_is_told_no_more(way: Way) -> None:
    gone, other = await webhooks(way).subscribe(f"{URL}/gone"), await webhooks(way).subscribe(f"{URL}/other")
    await way.face.start(greet(name="Ada"))
    await run(way, DONE)
    first, second = await claim_deliveries(way)

    await settle(way, (first.token, Outcome(Kind.FAIL, reason=GONE)), (second.token, REFUSED), halts_lane=False)

    assert [each.is_enabled for each in await webhooks(way).list()] == [False, True]
    assert "410" in ((await webhooks(way).get(gone)).reason or "")
    await way.face.start(greet(name="Bob"))
    await run(way, DONE)
    assert (await deliveries(way))[-1].subscription == other.id
    assert len(await deliveries(way)) == 3


async def test_of_several_that_end_together_the_last_one_counts(way: Way) -> None:
    for n in range(2):
        await webhooks(way).subscribe(f"{URL}/{n}")
    chain = await way.face.start(greet(name="Ada"))
    await run(way, DONE)
    first, second = await claim_deliveries(way)

    await settle(way, (first.token, REFUSED), (second.token, TAKEN), halts_lane=False)

    assert (await way.face.get_job(chain.id)).webhook_sent is True
    assert (await events_of(way, chain.id))[-2:] == ["job:webhook:failed", "job:webhook:delivered"]


# ---- once more


async def test_a_delivery_that_has_ended_can_be_delivered_again(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, DONE)
    first = await post(way, REFUSED)

    again = await webhooks(way).redeliver(first, by="eve", why="mended")
    assert await body_of(way, again.id) == await body_of(way, first)
    second = await post(way, TAKEN)
    third = await webhooks(way).redeliver(second)

    assert (again.id, again.status, again.target) == (second, "pending", chain.id)
    assert (again.message_id, third.message_id) == (first, first)
    assert (await way.face.get_job(chain.id)).webhook_sent is True
    assert {"again": str(first), "by": "eve", "reason": "mended"} in await facts_of(way, "job:enqueued")
    assert [each.id for each in await deliveries(way, job=chain)] == [first, second, third.id]


async def test_a_delivery_that_is_delivered_again_waits_for_its_receiver_from_then_on(way: Way) -> None:
    """Neither is it given up because its event is old, nor is it tried for ever."""
    await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, DONE)
    await way.call(_let_outbox_grow_old, HOUR_MS)
    first = await post(way, REFUSED)

    again = await webhooks(way).redeliver(first)

    (at, *_), (then, *_) = [await row_of(way, each, "input, created_at") for each in (again.id, first)]
    (created_at,) = await row_of(way, again.id, "created_at")
    assert 0 <= created_at - json.loads(at)["at"] < HOUR_MS / 2
    assert json.loads(then)["at"] <= created_at - HOUR_MS


async def _let_outbox_grow_old(tx: Tx, milliseconds: int) -> None:
    await tx.execute("UPDATE holdfast_outbox SET at = at - :milliseconds", milliseconds=milliseconds)


async def test_what_is_still_tried_is_not_delivered_again(way: Way) -> None:
    await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, DONE)
    (delivery,) = await deliveries(way)

    with pytest.raises(StatusConflict, match="trigger"):
        await webhooks(way).redeliver(delivery)


async def test_a_delivery_is_not_started_again_for_its_message_would_have_another_id(way: Way) -> None:
    await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, DONE)
    first = await post(way, TAKEN)

    with pytest.raises(InvalidInput, match=r"hf\.webhooks\.redeliver"):
        await way.face.start_again(first)


async def test_what_is_no_delivery_cannot_be_delivered_again(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"))

    with pytest.raises(DeliveryNotFound):
        await webhooks(way).redeliver(chain)


# ---- asking


async def test_deliveries_are_listed_by_job_and_by_subscription(way: Way) -> None:
    first, second = [await webhooks(way).subscribe(f"{URL}/{n}") for n in range(2)]
    chains = await way.face.start_many([greet(name=name) for name in "abc"])
    await drain(way)
    await make_deliveries(way)

    page = await webhooks(way).deliveries(subscription=first, limit=2)
    rest = await webhooks(way).deliveries(subscription=first, cursor=page.next_cursor)

    assert [each.target for each in (*page, *rest)] == [each.id for each in reversed(chains)]
    assert [each.subscription for each in await deliveries(way, job=chains[1])] == [first.id, second.id]
    assert [each.target for each in await deliveries(way, job=chains[1], subscription=second)] == [chains[1].id]
    with pytest.raises(JobNotFound):
        await webhooks(way).deliveries(job=uuid4())


async def test_subscriptions_are_listed_read_and_removed(way: Way) -> None:
    first = await webhooks(way).subscribe(URL, tasks=["greet"], secrets=["mine"])
    second = await webhooks(way).subscribe(URL)

    assert await webhooks(way).list() == [first, second]
    assert await webhooks(way).get(str(first.id)) == first
    assert (first.tasks, first.secrets, second.tasks, second.events) == (("greet",), ("mine",), None, TRIGGERS[:5])
    await webhooks(way).remove(first)
    assert await webhooks(way).list() == [second]
    for verb in (webhooks(way).get, webhooks(way).remove, webhooks(way).enable, webhooks(way).disable):
        with pytest.raises(SubscriptionNotFound):
            await verb(first)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"url": "http://example.com"}, InvalidAddress),
        ({"url": "https://127.0.0.1/"}, InvalidAddress),
        ({"events": ["job:started"]}, InvalidInput),
        ({"events": []}, InvalidInput),
        ({"events": "job:failed"}, InvalidInput),
        ({"tasks": []}, InvalidInput),
        ({"tasks": ["a\0"]}, InvalidInput),
        ({"secrets": "mine"}, InvalidInput),
    ],
)
async def test_a_subscription_that_cannot_work_is_refused(
    way: Way, given: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await webhooks(way).subscribe(**({"url": URL} | given))

    assert await webhooks(way).list() == []


async def test_there_are_not_too_many_subscriptions(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MOST_SUBSCRIPTIONS", 1)
    await webhooks(way).subscribe(URL)

    with pytest.raises(InvalidInput, match="remove one"):
        await webhooks(way).subscribe(URL)


async def test_an_address_that_webhooks_may_not_go_to_is_refused_at_the_start(way: Way) -> None:
    with pytest.raises(InvalidAddress):
        await way.face.start(greet(name="Ada"), webhook="https://localhost/hook")


# ---- what it costs


async def test_events_that_are_wanted_take_the_same_statements_for_1_10_and_100(way: Way) -> None:
    """I-62."""
    await webhooks(way).subscribe(URL, events=TRIGGERS)
    await webhooks(way).subscribe(URL, events=["chain:completed"])
    counts = {count: await statements_of_a_mix(way, count) for count in (1, 10, 100)}

    assert len(set(counts.values())) == 1, counts


async def statements_of_a_mix(way: Way, count: int) -> tuple[int, int]:
    """Settle *count* jobs of every kind and *count* of their deliveries; tell how many statements each took."""
    plain = greet(name="x")
    own = plain.options(webhook=URL)
    await way.face.start_many([own if n % 2 else plain for n in range(5 * count)])
    jobs = await claim(way, 5 * count)
    kinds = (DONE, RETRY, FAIL, PAUSE, CANCEL)
    ends = [Settlement(job.token, kinds[n % 5], is_plain=True) for n, job in enumerate(jobs)]
    settled = await way.call(counted, settling.settle, ends)
    posted = await claim_deliveries(way, 2 * count)
    assert len(posted) == 2 * count
    outcomes = (TAKEN, REFUSED)
    ended = [Settlement(job.token, outcomes[n % 2], halts_lane=False) for n, job in enumerate(posted)]
    statements = await way.call(counted, settling.settle, ended)
    while left := await claim_deliveries(way):
        await settle(way, *[(job.token, TAKEN) for job in left], halts_lane=False)
    return len(settled), len(statements)


async def test_who_wants_no_webhook_pays_one_question_at_most(way: Way) -> None:
    plain, failing = [await claim_after(way, name) for name in ("plain", "failing")]

    completed = await way.call(counted, settling.settle, [Settlement(plain.token, DONE, is_plain=True)])
    failed = await way.call(counted, settling.settle, [Settlement(failing.token, FAIL)])

    assert len(completed) == (1 if way.database == "postgres" else 2)
    assert len([sql for sql in failed if "holdfast_subscription" in sql]) == 1


async def claim_after(way: Way, name: str) -> Claimed:
    await way.face.start(greet(name=name))
    return await claim_one(way, name)


# ---- rows that somebody has locked


@pytest.fixture
async def postgres(new_holdfast: Callable[..., Holdfast]) -> Way:
    """PostgreSQL, for async code."""
    way = Way(new_holdfast("postgres", tasks=[TASKS]), is_async=True)
    await way.hf.open()
    return way


LOCK = "SELECT 1 FROM contract.holdfast_job WHERE id = %s FOR UPDATE"


async def test_a_delivery_whose_job_is_locked_is_settled_later(postgres: Way) -> None:
    way = postgres
    chain = await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, DONE)
    (delivery,) = await claim_deliveries(way)

    with psycopg.connect(way.hf.settings.database) as stranger:
        stranger.execute(LOCK, [str(chain.id)])
        busy = await settle(way, (delivery.token, TAKEN), halts_lane=False)
        assert [each.token for each in busy.busy] == [delivery.token]
    settled = await settle(way, (delivery.token, TAKEN), halts_lane=False)

    assert settled.done == [delivery.token]
    assert (await way.face.get_job(chain.id)).webhook_sent is True


async def test_a_delivery_whose_job_is_locked_cannot_be_cancelled_just_then(postgres: Way) -> None:
    way = postgres
    chain = await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, DONE)
    (delivery,) = await deliveries(way)

    with psycopg.connect(way.hf.settings.database) as stranger:
        stranger.execute(LOCK, [str(chain.id)])
        with pytest.raises(Busy):
            await way.face.cancel(delivery.id)

    assert (await way.face.get_job(delivery.id)).status == "pending"


async def test_a_delivery_does_not_overtake_one_that_somebody_has_locked(postgres: Way) -> None:
    """I-48: admission passes over what is locked, and a lane keeps the order in which jobs join it."""
    way = postgres
    chain = await way.face.start(greet(name="Ada"), webhook=URL)
    await run(way, RETRY)
    (first,) = await deliveries(way)
    with psycopg.connect(way.hf.settings.database) as stranger:
        stranger.execute(LOCK, [str(first.id)])
        await way.face.cancel(chain)
        await make_deliveries(way)
        assert await claim(way, 10, "early", DELIVERIES) == []
    second = (await deliveries(way))[-1]
    await change_job(way, second.id, wake_at=0)

    (claimed,) = await claim_deliveries(way)

    assert UUID(claimed.id) == first.id
