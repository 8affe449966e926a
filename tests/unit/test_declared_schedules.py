"""Schedules that code declares: by a decorator or by name, and what is refused before any database is there."""

from __future__ import annotations

import pytest

from holdfast import InvalidRule, Misuse, Tasks


def test_a_decorator_declares_a_schedule_of_the_tasks_name() -> None:
    tasks = Tasks()

    @tasks.task(name="nightly", cron="0 3 * * *", timezone="Europe/Rome", missed="skip", jitter=5)
    async def nightly(depth: int = 2) -> None: ...

    declared = tasks.schedules["nightly"]
    assert declared.schedule.call == ("nightly", '{"depth":2}', "{}")
    assert str(declared.schedule.rule) == "0 3 * * * Europe/Rome"
    assert (declared.schedule.missed, declared.schedule.jitter_ms, declared.for_tenants) == ("skip", 5000, False)


def test_a_task_that_needs_arguments_has_no_schedule_of_its_own() -> None:
    tasks = Tasks()

    with pytest.raises(Misuse, match=r"hf\.schedule\('report', report\(argument=…\), cron=…\)"):

        @tasks.task(name="report", every=60)
        async def report(team: int) -> None: ...

    assert "report" not in tasks


def test_a_wrong_rule_is_refused_where_it_is_written() -> None:
    tasks = Tasks()

    with pytest.raises(InvalidRule, match="column 1"):

        @tasks.task(name="nightly", cron="@daily")
        async def nightly() -> None: ...

    with pytest.raises(InvalidRule, match="give cron= or every="):

        @tasks.task(name="nightly", timezone="UTC")
        async def nightly_too() -> None: ...

    assert not tasks.schedules


def test_a_name_is_declared_once_and_registries_hand_theirs_on() -> None:
    tasks, app = Tasks(), Tasks()

    @tasks.task(name="sync")
    async def sync(source: str) -> None: ...

    tasks.schedule("crm", sync(source="crm").options(unique="crm"), every=300, tenants=True)
    tasks.schedule("crm", sync(source="crm").options(unique="crm"), every=300, tenants=True)
    app.merge(tasks, tasks)
    assert app.schedules["crm"].for_tenants
    with pytest.raises(Misuse, match="'crm' is declared twice"):
        tasks.schedule("crm", sync(source="crm"), every=301)


def test_the_fingerprint_changes_with_all_that_is_declared() -> None:
    tasks = Tasks()

    @tasks.task(name="sync")
    async def sync(source: str) -> None: ...

    tasks.schedule("a", sync(source="crm"), every=300)
    tasks.schedule("b", sync(source="erp"), every=300)
    tasks.schedule("c", sync(source="crm"), every=301)
    tasks.schedule("d", sync(source="crm"), every=300, missed="all")
    tasks.schedule("e", sync(source="crm"), every=300, jitter=1)
    tasks.schedule("f", sync(source="crm").options(lane="x"), every=300)
    tasks.schedule("g", sync(source="crm"), every=300)

    prints = {name: each.schedule.fingerprint for name, each in tasks.schedules.items()}
    assert prints["a"] == prints["g"]
    assert len(set(prints.values())) == 6
