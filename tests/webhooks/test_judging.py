"""What an answer means, when the next try comes, and when a worker looks for deliveries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from random import Random
from typing import cast

import pytest

from holdfast import Holdfast
from holdfast.outcomes import Facts, Kind, judge
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.store.jobs.claiming import LOWEST, Claimed, Claims
from holdfast.tasks.task import Task
from holdfast.webhooks.answers import Answer
from holdfast.webhooks.receivers import NoTurn
from holdfast.worker.builtin.webhook import (
    Delivered,
    DeliveryTask,
    NotDelivered,
    Refused,
    judged,
    make_delivery,
    put_off,
    retry_after,
)
from holdfast.worker.claiming.slot_group import LOOK_SECONDS, SlotGroup, webhook_slots

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def answer(status: int, **headers: str) -> Answer:
    return Answer(status, 0.25, "words", {name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_2xx_is_delivered(status: int) -> None:
    assert judged(answer(status), NOW) == Delivered(status, 0.25, "words")


@pytest.mark.source("PQ-48")
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 599])
def test_what_may_pass_is_tried_again(status: int) -> None:
    """F-45."""
    with pytest.raises(NotDelivered, match=f"answered {status}") as caught:
        judged(answer(status), NOW)

    assert caught.value.facts == {"status": status, "seconds": 0.25, "answer": "words"}


@pytest.mark.source("PQ-48")
@pytest.mark.parametrize(
    "status", [101, 300, 301, 302, 303, 304, 307, 308, 400, 401, 403, 404, 408, 410, 413, 422, 451]
)
def test_everything_else_is_final_a_redirect_too(status: int) -> None:
    """F-45."""
    with pytest.raises(Refused) as caught:
        judged(answer(status), NOW)

    outcome = judge(caught.value, Facts(1, 1, "worker"), task_of(Settings()).policy.retry, Random(1))
    assert outcome.kind is Kind.FAIL
    assert outcome.reason == ("gone" if status == 410 else f"the receiver answered {status}")


@pytest.mark.parametrize(
    ("said", "date", "seconds"),
    [
        ("120", None, 120),
        (" 0 ", None, 0),
        ("999999999", None, 86_400),
        ("9" * 400, None, 86_400),
        (format_datetime(NOW + timedelta(minutes=5), usegmt=True), None, 300),
        (format_datetime(NOW - timedelta(minutes=5), usegmt=True), None, 0),
        (format_datetime(NOW + timedelta(days=400), usegmt=True), None, 86_400),
        # its own clock is what it goes by
        (format_datetime(NOW + timedelta(hours=3), usegmt=True), NOW + timedelta(hours=2, minutes=59), 60),
        ("Mon, 04 May 2026 12:01:00 -0000", None, 60),
        ("", None, None),
        ("soon", None, None),
        ("-5", None, None),
        ("1.5", None, None),
        ("١٢", None, None),
        ("Mon, 99 Foo 2026 12:01:00 GMT", None, None),
        (f"Mon, 04 May {'9' * 20} 12:01:00 GMT", None, None),
        (f"Mon, 04 May 2026 12:01:00 +{'9' * 20}", None, None),
    ],
)
def test_retry_after_is_read_in_both_forms(said: str, date: datetime | None, seconds: float | None) -> None:
    """F-45."""
    headers = {"retry-after": said} | ({} if date is None else {"date": format_datetime(date, usegmt=True)})

    assert retry_after(headers, NOW) == seconds


def delivery_of(settings: Settings) -> DeliveryTask:
    return make_delivery(Holdfast("never-opened.db").store, settings, Runtime(chance=Random(1)))


def task_of(settings: Settings) -> Task[..., object]:
    return delivery_of(settings).task


def test_twelve_tries_come_over_hours() -> None:
    retry = task_of(Settings()).policy.retry
    delays = [retry.delay(attempt, OSError(), Random(1)) for attempt in range(1, 12)]

    assert retry.attempts == 12
    for found, usual in zip(delays, [5, 15, 45, 135, 405, 1215, 3645, 10935, 14400, 14400, 14400], strict=True):
        assert usual * 0.8 <= found <= usual * 1.2
    assert 12 * 3600 < sum(delays) < 24 * 3600


def test_a_receiver_may_ask_for_more_time_but_not_for_less() -> None:
    retry = task_of(Settings()).policy.retry

    assert retry.delay(1, NotDelivered("", {}, 3600.0), Random(1)) == 3600
    assert retry.delay(8, NotDelivered("", {}, 1.0), Random(1)) > 3600
    assert retry.delay(1, NotDelivered("", {}, None), Random(1)) < 6


def test_a_delivery_waits_for_a_silent_receiver_an_hour_longer_than_its_tries_take() -> None:
    give_up_ms = delivery_of(Settings()).receivers.give_up_ms
    waits, is_given_up = (put_off(NoTurn(7.0, True), age_ms, give_up_ms) for age_ms in (give_up_ms - 1, give_up_ms))
    slow = put_off(NoTurn(7.0, False), give_up_ms, give_up_ms)

    assert 17 * 3600 < give_up_ms / 1000 < 18 * 3600
    assert [getattr(each, "after", None) for each in (waits, slow)] == [7.0] * 2
    assert isinstance(is_given_up, Refused)
    assert is_given_up.reason == "the receiver has not answered, and this has waited for 17 hours"


def test_a_delivery_never_halts_its_lane() -> None:
    assert not task_of(Settings()).policy.halts_lane


# when a worker looks for them


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def slots(concurrency: int = 160) -> tuple[SlotGroup, Clock]:
    clock = Clock()
    return webhook_slots(delivery_of(Settings()), concurrency, clock), clock


def look(deliveries: SlotGroup, claims: Claims) -> None:
    most = deliveries.room(0)
    deliveries.begin(most)
    deliveries.reserved -= most
    deliveries.note(claims, len(claims.jobs) + 1, LOWEST, 0.0)


@pytest.mark.parametrize(("concurrency", "most"), [(1, 128), (512, 128), (1000, 250)])
def test_they_have_a_quarter_as_many_slots_and_at_least_128(concurrency: int, most: int) -> None:
    deliveries, _ = slots(concurrency)

    assert deliveries.room(0) == most
    assert deliveries.room(most) == 0
    deliveries.begin(most)
    assert deliveries.room(0) == 0


def test_a_worker_that_delivers_nothing_wants_nothing() -> None:
    nothing = webhook_slots(None, 100, Clock())

    assert (nothing.wants, nothing.room(0)) == ([], 0)


def test_where_there_are_none_a_busy_worker_looks_twice_a_second() -> None:
    deliveries, clock = slots()
    look(deliveries, Claims([], more=False))

    before = deliveries.room(0)
    clock.now += LOOK_SECONDS

    assert (before, deliveries.room(0)) == (0, 128)
    assert not deliveries.is_wanted


def test_ends_are_followed_by_a_claim_only_where_deliveries_were_found() -> None:
    deliveries, _ = slots()
    look(deliveries, Claims([], more=False))
    deliveries.has_settled()
    without = deliveries.is_wanted
    look(deliveries, Claims([cast("Claimed", object())], more=False))
    deliveries.has_settled()

    assert (without, deliveries.is_wanted) == (False, True)


def test_where_there_may_be_more_the_next_look_comes_at_once() -> None:
    deliveries, _ = slots()
    look(deliveries, Claims([], more=True))

    assert deliveries.is_wanted
    assert deliveries.room(0) == 128


def test_the_next_one_that_is_due_is_not_forgotten() -> None:
    deliveries, clock = slots()
    look(deliveries, Claims([], more=False, next_ms=5000))

    assert [deliveries.sooner(each) for each in (None, 8000, 700)] == [5000, 5000, 700]
    clock.now += 6
    assert deliveries.sooner(700) == 700
    assert deliveries.is_wanted
    assert deliveries.sooner(None) is None
