"""Subscriptions by name, and the webhook of the settings: said twice they are there once. PQ-6, PQ-46, PQ-71."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput
from holdfast.errors import InvalidAddress, InvalidSettings, SubscriptionNotFound
from holdfast.models import DEFAULT_TRIGGERS
from holdfast.settings import Settings
from holdfast.store import webhooks as subscriptions
from holdfast.store.webhooks import OF_SETTINGS
from tests.support.ways import Awaitable, Way

URL, OTHER = "https://example.com/hook", "https://example.org/hook"
DATABASES = ("sqlite", "postgres")


def webhooks(way: Way) -> Any:
    """The handle, whose every method is awaited."""
    return way.hf.webhooks if way.is_async else Awaitable(way.hf.sync.webhooks)


@pytest.mark.source("PQ-71")
async def test_subscribing_again_under_a_name_changes_that_subscription(way: Way) -> None:
    first = await webhooks(way).subscribe(URL, name="billing")
    same = await webhooks(way).subscribe(URL, name="billing")
    changed = await webhooks(way).subscribe(
        OTHER, name="billing", events=["job:failed"], tasks=["greet"], secrets=["s"]
    )
    another = await webhooks(way).subscribe(URL, name="books")

    assert same == first
    assert (changed.id, changed.created_at, changed.name) == (first.id, first.created_at, "billing")
    assert (changed.url, changed.events, changed.tasks, changed.secrets) == (OTHER, ("job:failed",), ("greet",), ("s",))
    assert await webhooks(way).list() == [changed, another]


async def test_without_a_name_each_subscription_is_another_one(way: Way) -> None:
    first, second = await webhooks(way).subscribe(URL), await webhooks(way).subscribe(URL)

    assert first.id != second.id
    assert (first.name, second.name) == (None, None)


async def test_a_disabled_subscription_stays_so_until_its_address_changes(way: Way) -> None:
    await webhooks(way).subscribe(URL, name="billing")
    await webhooks(way).disable("billing", why="moving house")

    repeated = await webhooks(way).subscribe(URL, name="billing", events=["job:failed"])
    moved = await webhooks(way).subscribe(OTHER, name="billing")

    assert (repeated.is_enabled, repeated.reason) == (False, "moving house")
    assert (moved.is_enabled, moved.reason) == (True, None)


async def test_a_subscription_can_be_named_wherever_its_id_can(way: Way) -> None:
    made = await webhooks(way).subscribe(URL, name="billing")

    assert await webhooks(way).get("billing") == made
    assert not (await webhooks(way).disable("billing")).is_enabled
    assert (await webhooks(way).enable("billing")).is_enabled
    assert list((await webhooks(way).deliveries(subscription="billing")).items) == []
    await webhooks(way).remove("billing")
    for verb in (webhooks(way).get, webhooks(way).remove, webhooks(way).enable, webhooks(way).disable):
        with pytest.raises(SubscriptionNotFound, match="billing"):
            await verb("billing")
        with pytest.raises(InvalidInput, match="pass the id of a subscription, or its name"):
            await verb("\ud800")


@pytest.mark.parametrize(
    "name", ["", "holdfast.settings", "01980f00-6e1c-7000-8000-5a1c2f9e0b77", "a\nb", "n" * 300, 7]
)
async def test_a_name_that_cannot_be_told_from_others_is_refused(way: Way, name: Any) -> None:
    with pytest.raises(InvalidInput):
        await webhooks(way).subscribe(URL, name=name)

    assert await webhooks(way).list() == []


async def test_a_name_can_be_repeated_when_there_are_as_many_as_may_be(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MOST_SUBSCRIPTIONS", 1)
    await webhooks(way).subscribe(URL, name="billing")

    assert (await webhooks(way).subscribe(OTHER, name="billing")).url == OTHER
    with pytest.raises(InvalidInput, match="remove one"):
        await webhooks(way).subscribe(URL, name="books")


# the webhook of the settings


@pytest.mark.parametrize("database", DATABASES)
async def test_the_webhook_of_the_settings_is_one_more_than_there_may_be(
    new_holdfast: Callable[..., Holdfast], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "MOST_SUBSCRIPTIONS", 2)
    async with new_holdfast(database, webhook=URL) as hf:
        for name in ("billing", "books"):
            await hf.webhooks.subscribe(OTHER, name=name)
        with pytest.raises(InvalidInput, match="remove one"):
            await hf.webhooks.subscribe(OTHER, name="shop")
        await hf.webhooks.remove(OF_SETTINGS)
    async with hf:
        names = [each.name for each in await hf.webhooks.list()]

    assert names == ["billing", "books", OF_SETTINGS]


@pytest.mark.source("PQ-6", "PQ-46", "PQ-71")
@pytest.mark.parametrize("database", DATABASES)
async def test_the_webhook_of_the_settings_is_one_however_many_programs_open(
    new_holdfast: Callable[..., Holdfast], database: str
) -> None:
    programs = [new_holdfast(database, webhook=URL, webhook_events=["job:failed"]) for _ in range(4)]

    await asyncio.gather(*(each.open() for each in programs))
    programs[0].sync.open()
    (found,) = await programs[0].webhooks.list()
    for each in programs:
        await each.close()

    assert (found.name, found.url, found.events, found.secrets) == (OF_SETTINGS, URL, ("job:failed",), ())


@pytest.mark.parametrize("database", DATABASES)
async def test_a_restart_with_the_same_webhook_writes_nothing(
    new_holdfast: Callable[..., Holdfast], database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with new_holdfast(database, webhook=URL):
        pass
    restarted = new_holdfast(database, webhook=URL)
    written: list[object] = []
    run = restarted.store.run

    async def spied(operation: Any, *args: Any, **options: Any) -> Any:
        written.append(operation)
        return await run(operation, *args, **options)

    monkeypatch.setattr(restarted.store, "run", spied)
    async with restarted:
        assert len(await restarted.webhooks.list()) == 1

    assert subscriptions.subscribe not in written


@pytest.mark.parametrize("database", DATABASES)
async def test_the_settings_change_their_webhook_leave_it_or_remove_it(
    new_holdfast: Callable[..., Holdfast], database: str
) -> None:
    found = []
    for webhook in (URL, OTHER, None, ""):
        async with new_holdfast(database, webhook=webhook) as hf:
            found.append([each.url for each in await hf.webhooks.list()])

    assert found == [[URL], [OTHER], [OTHER], []]


def test_a_blocking_program_writes_it_too(new_holdfast: Callable[..., Holdfast]) -> None:
    with new_holdfast("sqlite", webhook=URL).sync as face:
        (found,) = face.webhooks.list()

    assert (found.name, found.events) == (OF_SETTINGS, DEFAULT_TRIGGERS)


def test_a_webhook_that_cannot_work_is_refused_when_the_program_begins() -> None:
    with pytest.raises(InvalidAddress):
        Holdfast("never-opened.db", webhook="https://localhost/hook")
    with pytest.raises(InvalidSettings):
        Holdfast("never-opened.db", webhook=URL, webhook_events=["job:started"])  # type: ignore[list-item]


def test_the_webhook_can_come_from_the_environment() -> None:
    found = Settings.from_environment({"HOLDFAST_WEBHOOK": URL, "HOLDFAST_WEBHOOK_EVENTS": '["job:failed"]'})

    assert (found.webhook, found.webhook_events) == (URL, ("job:failed",))
    assert URL not in repr(found)
