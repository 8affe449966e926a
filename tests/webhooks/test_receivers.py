"""Turns: how many posts a receiver gets at once, and that one in trouble keeps no other waiting. I-48."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random
from typing import TypeAlias

import pytest

from holdfast.webhooks import receivers
from holdfast.webhooks.addresses import receiver_of
from holdfast.webhooks.answers import NotPosted
from holdfast.webhooks.receivers import (
    HOST_TURNS,
    LONGEST_SECONDS,
    NEWCOMERS,
    PROBES,
    RECEIVER_TURNS,
    NoTurn,
    ReceiverHealth,
    Receivers,
    ReceiverTrouble,
    troubles_of,
)
from holdfast.worker.claiming import slot_group
from tests.support.conditions import until
from tests.support.log_lines import lines
from tests.webhooks.post_office import PostOffice
from tests.webhooks.receivers import Receiver, answers, hangs, receiver
from tests.webhooks.test_delivering import with_short_limits

Office: TypeAlias = Callable[..., Awaitable[PostOffice]]
JOBS = 200
HOOK, OTHER, ELSEWHERE = "example.com:443/hook", "example.com:443/other", "example.org:443/hook"


async def test_a_silent_receiver_delays_no_other(office: Office) -> None:
    """A2: 200 deliveries each; the good receiver gets all of its own while the silent one holds."""
    post = await office()
    async with receiver(hangs) as silent, receiver(answers()) as good, post.hf.worker(concurrency=4, grace=0) as worker:
        for each in (silent, good):
            await post.hf.webhooks.subscribe(each.url)
        await post.hf.start_many([post.greet() for _ in range(JOBS)])

        await until(lambda: len(good.received) >= JOBS, "the good receiver has got all of its deliveries")
        await until(lambda: bool(worker.health().receivers), "the worker tells which receiver it has put off")

        assert len(good.received) == JOBS
        assert len(silent.received) == 1
        assert any(each.put_off for each in worker.health().receivers)


async def test_many_silent_receivers_delay_none_that_answers(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """60 receivers hold what they are given for 15 seconds each, which is more than all slots there are."""
    monkeypatch.setattr(slot_group, "LEAST_WEBHOOKS", 8)
    monkeypatch.setattr(receivers, "NEWCOMER_TURNS", 4)
    post = await office()
    async with many_silent() as silent, receiver(answers()) as good, post.hf.worker(concurrency=4, grace=0):
        await post.hf.start(post.greet(), webhook=good.url)
        await until(lambda: len(good.received) == 1, "the good receiver has answered once")
        await post.hf.start_many([post.greet().options(webhook=each.url) for each in silent * 3])
        await until(lambda: sum(len(each.received) for each in silent) >= 4, "as many are posted to as may be")

        await post.hf.start_many([post.greet().options(webhook=good.url) for _ in range(40)])

        await until(lambda: len(good.received) == 41, "the good receiver has got all of its deliveries")


@asynccontextmanager
async def many_silent() -> AsyncIterator[list[Receiver]]:
    """Run 60 servers that take what they are sent and never answer."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(receiver(hangs)) for _ in range(60)]


async def test_a_backlog_is_delivered_once_its_receiver_answers(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with_short_limits(monkeypatch, 0.3)
    monkeypatch.setattr(receivers, "MOMENT_SECONDS", 0.1)
    post = await office(webhook_retry_seconds=0.5)
    async with receiver(hangs) as server, post.hf.worker() as worker:
        await post.hf.webhooks.subscribe(server.url)
        await post.hf.start_many([post.greet() for _ in range(40)])
        await until(lambda: silent_ones(worker.health().receivers), "the receiver is known to be silent")
        waiting = [each for each in await post.deliveries() if each.status == "pending"]
        server.behave = answers()

        ended = await post.until_ended(40)

        assert {str(each.status) for each in ended} == {"completed"}
        assert any(each.attempts == 0 for each in waiting)
        await until(lambda: not worker.health().receivers, "no receiver is in trouble any more")
        told = [name for name in lines(caplog) if name.startswith("webhook_receiver")]
        assert told[:2] == ["webhook_receiver_silent", "webhook_receiver_answers"]


def silent_ones(found: tuple[ReceiverHealth, ...]) -> bool:
    return any(each.is_silent and each.receiver.startswith("127.0.0.1:") for each in found)


# turns, by a clock of their own


class Turns:
    """Receivers with a clock that stands still, and posts that end when they are told to."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.all = Receivers(lambda: self.now, Random(1), give_up_seconds=100.0)

    async def post(self, name: str = HOOK, *, seconds: float = 15.0, is_answered: bool = False) -> None:
        """Have a turn for *seconds*."""
        with suppress(NotPosted):
            async with self.all.turn(name):
                self.now += seconds
                if not is_answered:
                    raise NotPosted("timeout", "no answer in time", seconds)

    async def take(self, stack: AsyncExitStack, number: int, name: str = HOOK) -> None:
        for _ in range(number):
            await stack.enter_async_context(self.all.turn(name))

    async def prove(self, *names: str) -> None:
        """Have receivers answer, so that they have all their turns."""
        for name in names:
            await self.post(name, seconds=0.0, is_answered=True)

    def troubles(self) -> dict[str, ReceiverTrouble]:
        return {each.key: each for each in self.all.troubles()}


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have nobody wait for long."""
    monkeypatch.setattr(receivers, "MOMENT_SECONDS", 0.02)


@pytest.mark.usefixtures("moment")
async def test_a_receiver_and_a_host_have_so_many_turns_and_no_more() -> None:
    turns = Turns()
    await turns.prove(HOOK, OTHER)
    async with AsyncExitStack() as stack:
        await turns.take(stack, RECEIVER_TURNS)
        with pytest.raises(NoTurn):
            await turns.post()
        await turns.take(stack, HOST_TURNS - RECEIVER_TURNS, OTHER)
        with pytest.raises(NoTurn):
            await turns.post("example.com:443/third")
        await turns.post(ELSEWHERE, is_answered=True)

    assert not turns.troubles()


@pytest.mark.usefixtures("moment")
async def test_before_its_first_answer_a_receiver_gets_one_post_at_a_time_and_a_host_two() -> None:
    turns = Turns()
    async with AsyncExitStack() as stack:
        await turns.take(stack, 1)
        with pytest.raises(NoTurn):
            await turns.post()
        await turns.take(stack, 1, OTHER)
        with pytest.raises(NoTurn):
            await turns.post("example.com:443/third")

    assert not turns.troubles()


@pytest.mark.usefixtures("moment")
async def test_newcomers_share_their_turns_and_who_has_answered_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "NEWCOMER_TURNS", 2)
    turns = Turns()
    await turns.prove(ELSEWHERE)
    async with AsyncExitStack() as stack:
        for number in range(2):
            await turns.take(stack, 1, f"host{number}.example:443/hook")
        with pytest.raises(NoTurn):
            await turns.post()
        await turns.take(stack, RECEIVER_TURNS, ELSEWHERE)
        known = turns.troubles()

    assert [each.turns for each in troubles_of(HOOK, known)] == [0]
    assert troubles_of(ELSEWHERE, known) == []
    assert troubles_of("example.org:443/new", known) == []
    assert known[NEWCOMERS].turns == 0
    assert not turns.troubles()


@pytest.mark.usefixtures("moment")
async def test_all_silent_receivers_share_the_turns_for_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receivers, "PROBE_TURNS", 2)
    turns = Turns()
    silent = [f"host{number}.example:443/hook" for number in range(3)]
    for each in silent:
        await turns.post(each)
    turns.now += 60
    async with AsyncExitStack() as stack:
        for each in silent[:2]:
            await turns.take(stack, 1, each)
        with pytest.raises(NoTurn):
            await turns.post(silent[2])
        known = turns.troubles()
        await turns.prove(HOOK)

    assert known[silent[2]].turns == 1
    assert known[PROBES] in troubles_of(silent[2], known)
    assert troubles_of(HOOK, known) == []


async def test_whoever_waits_gets_the_turn_that_comes_free(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    await turns.prove(HOOK)
    monkeypatch.setattr(receivers, "MOMENT_SECONDS", 30.0)
    async with AsyncExitStack() as stack:
        await turns.take(stack, RECEIVER_TURNS)
        waiting = asyncio.create_task(turns.post(is_answered=True))
        await until(lambda: turns.all._lines[HOOK].users > RECEIVER_TURNS, "it waits for a turn")

    await waiting
    assert not turns.all._lines


@pytest.mark.usefixtures("moment")
async def test_a_crowded_receiver_keeps_its_turns() -> None:
    turns = Turns()
    await turns.prove(HOOK)
    async with AsyncExitStack() as stack:
        await turns.take(stack, RECEIVER_TURNS)
        with pytest.raises(NoTurn) as first:
            await turns.post()
        turns.now += 10
        crowded = turns.troubles()[HOOK]
        with pytest.raises(NoTurn):
            await turns.post()

    assert not first.value.is_silent
    assert (crowded.turns, crowded.delay_ms, crowded.spread_ms, crowded.give_up_ms) == (0, 0, 10_000, None)
    assert not turns.troubles()


async def test_a_silent_receiver_gets_one_post_at_a_time_until_it_answers() -> None:
    turns = Turns()
    await turns.post()
    with pytest.raises(NoTurn) as put_off:
        await turns.post()
    before = turns.troubles()[HOOK]
    turns.now += 15
    due = turns.troubles()[HOOK]
    async with turns.all.turn(HOOK):
        probing = turns.troubles()[HOOK]

    assert put_off.value.is_silent
    assert 15 <= put_off.value.seconds <= 30
    assert (before.turns, before.delay_ms, before.spread_ms, before.give_up_ms) == (0, 15_000, 15_000, 100_000)
    assert (due.turns, probing.turns) == (1, 0)
    assert not turns.troubles()


async def test_the_longer_it_is_silent_the_later_the_next_probe_up_to_a_minute() -> None:
    turns = Turns()
    pauses = []
    for _ in range(6):
        await turns.post()
        trouble = turns.troubles()[HOOK]
        pauses.append((trouble.delay_ms // 1000, trouble.spread_ms // 1000))
        turns.now += trouble.delay_ms / 1000

    assert pauses == [(15, 15), (45, 45), (60, 105), (60, 180), (60, 255), (60, round(LONGEST_SECONDS))]


async def test_a_connection_that_is_refused_at_once_is_no_silence() -> None:
    turns = Turns()
    await turns.post(seconds=0.001)

    assert not turns.troubles()


async def test_a_receiver_that_answers_others_meanwhile_is_not_silent() -> None:
    turns = Turns()
    await turns.prove(HOOK)
    async with turns.all.turn(HOOK):
        with suppress(NotPosted):
            async with turns.all.turn(HOOK):
                await turns.post(is_answered=True)
                raise NotPosted("timeout", "no answer in time", 15.0)

    assert not turns.troubles()


async def test_one_silent_path_does_not_silence_its_host() -> None:
    turns = Turns()
    for _ in range(3):
        await turns.post()
        turns.now += 60
    alone = set(turns.troubles())
    await turns.post(OTHER, is_answered=True)

    assert alone == {HOOK}
    assert set(turns.troubles()) == {HOOK}


async def test_a_host_is_silent_when_two_of_its_paths_are() -> None:
    turns = Turns()
    await turns.post()
    await turns.post(OTHER)

    assert set(turns.troubles()) == {"example.com:443", HOOK, OTHER}
    with pytest.raises(NoTurn):
        await turns.post("example.com:443/third")


async def test_what_nothing_has_come_for_in_ten_minutes_is_forgotten() -> None:
    turns = Turns()
    await turns.post()
    turns.now += 2 * LONGEST_SECONDS + 1

    assert not turns.troubles()
    assert not turns.all._lines


async def test_only_so_many_receivers_in_trouble_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns()
    monkeypatch.setattr(receivers, "MOST_TROUBLES", 4)
    for number in range(9):
        await turns.post(f"host{number}.example:443/hook", seconds=1)
        turns.troubles()

    assert len(turns.all._lines) <= 4
    assert "host8.example:443/hook" in turns.all._lines


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("https://Example.com/hook?to=7", "example.com:443/hook"),
        ("http://example.com", "example.com:80/"),
        ("https://[2001:db8::1]:8443/a", "[2001:db8::1]:8443/a"),
        ("no address", "unreadable/"),
    ],
)
def test_a_receiver_is_named_by_host_port_and_path(address: str, name: str) -> None:
    assert receiver_of(address) == name
