"""Webhooks from the event to the receiver: a worker, both databases, a real server that may not behave."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

import pytest

from holdfast import Context, Holdfast
from holdfast.models import DELIVER, INTERNAL_QUEUE, TRIGGERS
from holdfast.runtime import Runtime
from holdfast.store import admission, reads
from holdfast.store.jobs import claiming, reaping
from holdfast.store.jobs.claiming import Want
from holdfast.webhooks.addresses import AddressRules
from holdfast.webhooks.answers import Answer, NotPosted
from holdfast.webhooks.posting import Poster
from holdfast.worker.builtin.webhook import NotDelivered, Refused, _Sender, make_delivery
from holdfast.worker.upkeep.reaper import Upkeep
from tests.support.conditions import until
from tests.support.log_lines import lines, named
from tests.webhooks.post_office import SECRET, PostOffice, said
from tests.webhooks.receivers import Received, answers, hangs, receiver

Office: TypeAlias = Callable[..., Awaitable[PostOffice]]


@pytest.mark.source("PQ-49")
async def test_a_webhook_is_posted_signed_and_told(office: Office) -> None:
    post = await office()
    async with receiver(answers(200, b"thanks")) as server, post.hf.worker():
        chain = await post.hf.start(post.greet(), webhook=server.url)
        (delivery,) = await post.until_ended(1)

    (request,) = server.received
    body = said(request)
    assert (body["type"], body["data"]["job"]["id"]) == ("job:completed", str(chain.id))
    assert request.headers["webhook-id"] == str(delivery.message_id) == str(delivery.id)
    assert (delivery.answer["status"], delivery.answer["answer"], delivery.attempts) == (200, "thanks", 1)
    assert (await post.hf.get_job(chain.id)).webhook_sent is True
    assert [name for name, _ in await post.facts(chain.id)][-1] == "job:webhook:delivered"


async def test_a_subscription_is_signed_by_the_secrets_that_it_names(office: Office) -> None:
    other = "whsec_" + "A" * 40
    post = await office(webhook_secrets={"default": SECRET, "shop": [other, SECRET]})
    async with receiver(answers()) as server, post.hf.worker():
        await post.hf.webhooks.subscribe(server.url, secrets=["shop"])
        await post.hf.start(post.greet())
        await post.until_ended(1)

    assert said(server.received[0], SECRET) == said(server.received[0], other)


@pytest.mark.source("PQ-6", "PQ-46")
async def test_two_programs_with_the_same_webhook_post_each_event_once(office: Office) -> None:
    async with receiver(answers()) as server:
        post, _ = await office(webhook=server.url), await office(webhook=server.url)
        async with post.hf.worker():
            chain = await post.hf.start(post.greet())
            await post.until_ended(1)

    (request,) = server.received
    assert said(request)["data"]["job"]["id"] == str(chain.id)


async def test_without_any_secret_it_goes_unsigned_and_a_missing_one_is_waited_for(office: Office) -> None:
    post = await office(webhook_secrets={})
    async with receiver(answers()) as server, post.hf.worker():
        await post.hf.start(post.greet(), webhook=server.url)
        await post.until_ended(1)
        subscription = await post.hf.webhooks.subscribe(server.url, secrets=["shop"])
        await post.hf.start(post.greet())

        async def waits() -> bool:
            found = await post.deliveries(subscription=subscription)
            return bool(found) and found[0].attempts > 0 and (found[0].error or {}).get("problem") == "secret"

        await until(waits, "the second one has no secret to be signed with")

    (unsigned,) = server.received
    assert "webhook-signature" not in unsigned.headers
    assert "webhook-id" in unsigned.headers


async def test_deliveries_of_a_job_come_in_order_whatever_becomes_of_each(office: Office) -> None:
    """I-48."""
    post = await office()
    fails = iter([503, 200, 500, 503, 200, 200])

    async def moody(request: Received, writer: asyncio.StreamWriter) -> None:
        await answers(next(fails, 200))(request, writer)

    async with receiver(moody) as server, post.hf.worker():
        await post.hf.start(post.struggle(number=1, times=3), webhook=server.url)
        ended = await post.until_ended(4)

    told = ["job:retrying", "job:retrying", "job:retrying", "job:completed"]
    assert [each.event for each in ended] == told
    assert list(dict.fromkeys(each.headers["webhook-id"] for each in server.received)) == [
        str(each.id) for each in ended
    ]
    assert [said(each)["data"]["job"]["used"] for each in server.received][-1] == 4


async def test_every_try_has_the_same_id_and_stands_in_the_history(office: Office) -> None:
    """F-45, I-47."""
    post = await office()
    statuses = iter([500, 503, 429])

    async def recovers(request: Received, writer: asyncio.StreamWriter) -> None:
        await answers(next(statuses, 204), b"not now")(request, writer)

    async with receiver(recovers) as server, post.hf.worker():
        await post.hf.start(post.greet(), webhook=server.url)
        (delivery,) = await post.until_ended(1)

    assert {each.headers["webhook-id"] for each in server.received} == {str(delivery.id)}
    assert [said(each)["type"] for each in server.received] == ["job:completed"] * 4
    tries = [facts["error"] for name, facts in await post.facts(delivery.id) if name == "job:retrying"]
    assert [(each["status"], each["answer"]) for each in tries] == [
        (500, "not now"),
        (503, "not now"),
        (429, "not now"),
    ]
    assert all(0 <= each["seconds"] < 15 for each in tries)
    assert (delivery.attempts, delivery.answer["status"]) == (4, 204)


@pytest.mark.parametrize("status", [307, 404])
async def test_another_answer_is_final(office: Office, status: int) -> None:
    """F-45."""
    post = await office()
    async with receiver(answers()) as elsewhere, receiver(answers(status, Location="/")) as server, post.hf.worker():
        server.behave = answers(status, b"no", Location=elsewhere.url)
        chain = await post.hf.start(post.greet(), webhook=server.url)
        (delivery,) = await post.until_ended(1)

    assert len(server.received) == 1
    assert not elsewhere.received
    assert str(delivery.status) == "failed"
    assert (delivery.reason, delivery.error["status"]) == (f"the receiver answered {status}", status)
    assert (await post.hf.get_job(chain.id)).webhook_sent is False
    assert [name for name, _ in await post.facts(chain.id)][-1] == "job:webhook:failed"


async def test_a_receiver_that_is_gone_is_told_no_more_and_the_log_says_who_and_of_what(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    post = await office()
    async with receiver(answers(410)) as server, post.hf.worker():
        subscription = await post.hf.webhooks.subscribe(server.url)
        chain = await post.hf.start(post.greet())
        (delivery,) = await post.until_ended(1)
        await (await post.hf.start(post.greet())).result(timeout=10)
        found = await post.hf.webhooks.get(subscription)

    assert (delivery.reason, delivery.attempts) == ("gone", 1)
    assert not found.is_enabled
    assert len(server.received) == len(await post.deliveries()) == 1
    (line,) = named(caplog, "webhook_failed")
    assert f"{delivery.id}, which tells 127.0.0.1 of job:completed of job {chain.id}, failed for good" in line.message
    assert f"holdfast webhooks redeliver {delivery.id}" in line.message


@pytest.mark.parametrize("status", [429, 503])
async def test_a_receiver_that_says_when_is_left_alone_until_then(office: Office, status: int) -> None:
    """F-45."""
    post = await office()
    async with receiver(answers(status, Retry_After="3600")) as server, post.hf.worker():
        await post.hf.start(post.greet(), webhook=server.url)
        waiting = await post.until_tried(1)
        server.behave = answers()
        await post.hf.trigger(waiting.id)
        await post.until_ended(1)

    assert waiting.next_at is not None
    assert 3500 < (waiting.next_at - waiting.created_at).total_seconds() < 3700
    assert len(server.received) == 2


async def test_tries_come_to_an_end(office: Office) -> None:
    post = await office(webhook_attempts=3, webhook_retry_seconds=0.01)
    async with receiver(answers(500)) as server, post.hf.worker():
        chain = await post.hf.start(post.greet(), webhook=server.url)
        (delivery,) = await post.until_ended(1)

    assert len(server.received) == delivery.attempts == 3
    assert delivery.reason == "attempts used up"
    assert (await post.hf.get_job(chain.id)).webhook_sent is False


async def test_what_was_delivered_is_delivered_again_under_the_same_id(office: Office) -> None:
    post = await office()
    async with receiver(answers()) as server, post.hf.worker():
        await post.hf.start(post.greet(), webhook=server.url)
        (first,) = await post.until_ended(1)
        again = await post.hf.webhooks.redeliver(first)
        await post.until_ended(2)

    one, other = server.received
    assert again.id != first.id
    assert one.headers["webhook-id"] == other.headers["webhook-id"] == str(first.id)
    assert one.body == other.body


async def test_what_is_delivered_again_is_not_tried_for_ever(office: Office) -> None:
    """A receiver that stays silent ends it, too; else it would keep its job from retention as long as that is so."""
    post, now = await office(), [100.0]
    runtime = Runtime(monotonic=lambda: now[0])
    delivery = make_delivery(post.hf.store, post.hf.settings, runtime, Silent(now))
    at = await post.hf.store.read(reads.now_ms) - delivery.receivers.give_up_ms
    given: dict[str, Any] = {"url": "https://example.com/", "body": "{}", "event": "job:failed", "target": ""}
    given |= {"subscription": None, "secrets": [], "at": at, "message": "as it was posted first"}

    post_once = delivery.task.function
    assert post_once is not None

    with pytest.raises(NotDelivered):
        await post_once(None, **given)
    with pytest.raises(Refused, match="has not answered"):
        await post_once(None, **given)


class Silent:
    """Posts to nobody, for longer than a moment."""

    def __init__(self, now: list[float]) -> None:
        self._now = now

    async def post(self, address: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Get no answer."""
        self._now[0] += 15
        raise NotPosted("timeout", "no answer", 15.0)


async def test_a_delivery_makes_no_deliveries(office: Office) -> None:
    """I-70."""
    post = await office(webhook_attempts=2, webhook_retry_seconds=0.01)
    async with receiver(answers(500)) as server, post.hf.worker():
        await post.hf.webhooks.subscribe(server.url, events=TRIGGERS)
        await post.hf.start(post.greet())
        ended = await post.until_ended(2)

    assert sorted(each.event for each in ended) == ["chain:completed", "job:completed"]
    assert await post.count_jobs() == 3
    assert len((await post.hf.list_jobs()).items) == 1


# its slots


def with_short_limits(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Have workers of this test wait for receivers no longer than *seconds*."""
    rules = AddressRules(allows_http=True, ports=None, private=True)
    made = lambda self: Poster(rules, time.monotonic, total_seconds=seconds)  # noqa: E731
    monkeypatch.setattr(_Sender, "_make_poster", made)


async def test_receivers_that_hang_take_no_slot_from_handlers(office: Office) -> None:
    """F-45, I-48."""
    post = await office()
    async with receiver(hangs) as first, receiver(hangs) as second, post.hf.worker(concurrency=1, poll=0.1, grace=0):
        for server in (first, second):
            await (await post.hf.start(post.greet(), webhook=server.url)).result(timeout=10)
        await until(lambda: len(first.received) == len(second.received) == 1, "the deliveries are under way")

        await (await post.hf.start(post.greet())).result(timeout=10)


async def test_handlers_that_take_long_hold_up_no_delivery(office: Office) -> None:
    post = await office()
    begun, gate = asyncio.Event(), asyncio.Event()

    @post.hf.task(name="long")
    async def long(ctx: Context) -> None:
        begun.set()
        await gate.wait()

    async with receiver(answers()) as server, post.hf.worker(concurrency=1, poll=0.1) as worker:
        await (await post.hf.start(post.greet())).result(timeout=10)
        if post.hf.store.database == "postgres":
            await until(
                lambda: worker._wakeups._rest.is_marked, "the worker sleeps, so that a hint brings the next job"
            )
        await post.hf.start(long())
        await begun.wait()
        subscription = await post.hf.webhooks.subscribe(server.url)
        waiting = await post.hf.start(post.greet(), paused=True)
        await post.hf.cancel(waiting)  # which needs no slot

        await until(lambda: bool(server.received), "the delivery is made while the only slot is taken")
        gate.set()

    assert said(server.received[0])["data"]["job"]["id"] == str(waiting.id)
    assert (await post.hf.webhooks.get(subscription)).is_enabled


async def test_a_receiver_that_hangs_is_tried_again(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-45."""
    with_short_limits(monkeypatch, 0.2)
    post = await office()
    async with receiver(hangs) as server, post.hf.worker():
        await post.hf.start(post.greet(), webhook=server.url)
        hung = await post.until_tried(1)
        server.behave = answers()
        (delivery,) = await post.until_ended(1)

    assert (hung.error["problem"], hung.error["message"]) == ("timeout", "no answer in time")
    assert "traceback" not in hung.error
    assert str(delivery.status) == "completed"


async def test_middleware_is_for_handlers_only(office: Office) -> None:
    post = await office()
    seen: list[str] = []

    async def watch(ctx: Any, inner: Any) -> Any:
        seen.append(ctx.job.task)
        return await inner()

    async with receiver(answers()) as server, post.hf.worker(middleware=[watch]):
        await post.hf.start(post.greet(), webhook=server.url)
        await post.until_ended(1)

    assert seen == ["greet"]


# who delivers


async def test_a_worker_that_is_not_to_deliver_leaves_them_to_others(
    office: Office, caplog: pytest.LogCaptureFixture
) -> None:
    post = await office()
    async with receiver(answers()) as server:
        async with post.hf.worker(webhooks=False):
            await (await post.hf.start(post.greet(), webhook=server.url)).result(timeout=10)
        before = (await post.backlog(), await post.deliveries())
        async with post.hf.worker():
            await post.until_ended(1)

    assert before == (1, [])
    assert "webhooks_not_delivered" not in lines(caplog)


async def test_a_worker_without_the_extra_says_at_its_start_that_the_setting_needs_it(
    new_holdfast: Callable[..., Holdfast], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("holdfast.worker.builtin.webhook.has_extra", lambda: False)
    async with new_holdfast("sqlite") as hf, hf.worker():
        await until(lambda: lines(caplog).count("worker_started") == 1, "it has started")
    async with new_holdfast("sqlite", webhook="https://example.com/") as hf, hf.worker(), hf.worker(webhooks=False):
        await until(lambda: lines(caplog).count("worker_started") == 3, "both have started")

    assert lines(caplog).count("webhooks_need_the_extra") == 1


@pytest.mark.parametrize("are_made", [False, True])
async def test_a_worker_without_the_extra_says_so_once_if_webhooks_wait(
    office: Office, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, are_made: bool
) -> None:
    monkeypatch.setattr("holdfast.worker.builtin.webhook.has_extra", lambda: False)
    post = await office()
    upkeep = Upkeep(post.hf.store, Runtime(), [], lacks_extra=True)
    async with receiver(answers()) as server:
        async with post.hf.worker():
            await (await post.hf.start(post.greet(), webhook=server.url)).result(timeout=10)
        if are_made:
            await post.make_deliveries()
        await post.hf.store.run(_have_waited_a_minute)
        quiet = caplog.text
        async with post.hf.worker():
            await until(lambda: "webhooks_not_delivered" in lines(caplog), "it says that webhooks wait")
        before = lines(caplog).count("webhooks_not_delivered")
        await upkeep._look_for_undelivered()
        await upkeep._look_for_undelivered()

    assert "webhooks_not_delivered" not in quiet
    assert (before, lines(caplog).count("webhooks_not_delivered")) == (1, 2)
    assert not server.received
    assert ([str(each.status) for each in await post.deliveries()] == ["pending"]) == are_made


async def _have_waited_a_minute(tx: Any) -> None:
    await admission.admit(tx, INTERNAL_QUEUE)
    await tx.execute("UPDATE holdfast_job SET run_at = run_at - 60000 WHERE queue = :queue", queue=INTERNAL_QUEUE)
    await tx.execute("UPDATE holdfast_outbox SET at = at - 60000")


async def test_a_worker_without_tasks_delivers(office: Office) -> None:
    post = await office()
    async with receiver(answers()) as server:
        async with post.hf.worker(webhooks=False):
            await (await post.hf.start(post.greet(), webhook=server.url)).result(timeout=10)
        stranger = await office(has_tasks=False)
        async with stranger.hf.worker():
            await post.until_ended(1)
            later = await post.hf.start(post.greet(), webhook=server.url, paused=True)
            await post.hf.cancel(later)
            await post.until_ended(2)

    assert [said(each)["type"] for each in server.received] == ["job:completed", "job:cancelled"]


async def test_the_timestamp_is_the_databases_and_not_this_machines(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-40, I-17."""
    wrong = Runtime(wall_ms=lambda: time.time_ns() // 1_000_000 + 3 * 3_600_000)
    post = await office(runtime=wrong)
    async with receiver(answers()) as server, post.hf.worker():
        await post.hf.start(post.greet(), webhook=server.url)
        await post.until_ended(1)

    assert abs(int(server.received[0].headers["webhook-timestamp"]) - time.time()) < 60


async def test_a_delivery_that_was_lost_is_given_back_and_blamed_for_nothing(office: Office) -> None:
    """I-47: however often its worker dies."""
    post = await office(webhook_attempts=2)
    store, want = post.hf.store, [Want(INTERNAL_QUEUE, DELIVER, 1)]
    async with receiver(answers()) as server:
        async with post.hf.worker(webhooks=False):
            await (await post.hf.start(post.greet(), webhook=server.url)).result(timeout=10)
        await post.make_deliveries()
        for turn in range(5):
            await _until_claimed(store, want, f"nonce-{turn}")
            await _until_reaped(store)
        async with post.hf.worker():
            (delivery,) = await post.until_ended(1)

    job = await post.hf.get_job(delivery.id)
    assert (str(job.status), job.used, job.crashes, job.interrupted, job.attempt) == ("completed", 1, 0, 5, 6)
    assert server.received[0].headers["webhook-id"] == str(delivery.id)


async def _until_claimed(store: Any, want: list[Want], nonce: str) -> None:
    async def claimed() -> bool:
        return bool((await store.run(claiming.admit_and_claim, want, 1, "dead", nonce)).jobs)

    await until(claimed, "the delivery is claimed by somebody who dies")


async def _until_reaped(store: Any) -> None:
    async def reaped() -> bool:
        return bool((await store.run(reaping.reap, 2**53)).count)

    await until(reaped, "the delivery is taken back")


# what must not be seen


@pytest.mark.parametrize("status", [200, 500])
async def test_no_secret_is_in_logs_tables_or_errors(
    office: Office, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """S-23."""
    caplog.set_level(logging.DEBUG)
    canary = "whsec_" + "Y2FuYXJ5" * 5  # the base64 of canary, again and again
    post = await office(webhook_secrets={"default": canary, "shop": [canary]}, webhook_attempts=2)
    async with receiver(answers(status, b"no")) as server, post.hf.worker():
        await post.hf.webhooks.subscribe(server.url, secrets=["shop"])
        await post.hf.start(post.greet())
        await post.until_ended(1)

    shown = [
        caplog.text,
        await _dump(post.hf),
        repr(post.hf.settings),
        str(post.hf.settings.model_dump()),
        repr(post.hf),
    ]
    assert len(server.received) == (2 if status == 500 else 1)
    for text in shown:
        assert "Y2FuYXJ5" not in text
        assert "canary" not in text


async def _dump(hf: Holdfast) -> str:
    tables = ("job", "event", "delivery", "subscription", "task", "worker", "meta")

    async def read(tx: Any) -> str:
        return repr([await tx.fetch_all(f"SELECT * FROM holdfast_{table}") for table in tables])

    return await hf.store.read(read)
