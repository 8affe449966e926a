"""When a host looks at a tenant, and when it opens a worker for it."""

from __future__ import annotations

import asyncio
from math import inf
from typing import Any

import pytest

from holdfast.database.hints import STATEMENT_SECONDS, Horizon, SleepMark
from holdfast.database.tx import SchemaVersion
from holdfast.store.glance import Glimpse
from holdfast.worker.hosts.tenant import (
    IN_VAIN_SECONDS,
    LEAST_SECONDS,
    SURE_SECONDS,
    VISIT_SECONDS,
    HostedTenant,
    period,
)  # fmt: skip

NOTHING = Glimpse(None, None, None, None, None, None, SchemaVersion(6, 4), Horizon(5, 5))
PERIOD = 4.0


class Ear:
    """A listener that is told whether it hears."""

    is_listening = True


class Tenant(HostedTenant):
    """A tenant with a clock that is moved by hand."""

    def __init__(self, **given: Any) -> None:
        self.now = 100.0
        nobody: Any = None
        fields: dict[str, Any] = {"name": "acme", "place": "control_t_acme", "created_at": nobody, "slots": 1}
        super().__init__(
            **fields
            | {"store": nobody, "prepare": nobody, "make_worker": nobody, "monotonic": lambda: self.now}
            | given
        )


def test_who_is_left_out_is_not_due_also_if_its_worker_is_about_to_be_closed() -> None:
    """It is looked at alone then, so that it could never be done with in the group that is due."""
    tenant = Tenant(mark=SleepMark(Ear(), lambda: 100.0, PERIOD))
    tenant.is_leaving = True
    tenant.leave_out()

    assert tenant.due_at() == inf


def test_statements_stay_below_two_a_second_however_many_tenants_there_are() -> None:
    assert period(1) == PERIOD
    assert all(statements / period(statements) < 1.5 for statements in range(1, 1000))


def test_a_tenant_without_work_is_looked_at_after_the_period() -> None:
    tenant = Tenant()

    assert not tenant.note_look(NOTHING, PERIOD)
    assert tenant.due_at() == tenant.now + PERIOD


@pytest.mark.parametrize("name", ["arrival_ms", "lease_ms", "tick_ms", "pause_ms"])
def test_it_is_looked_at_when_the_next_thing_is_due(name: str) -> None:
    tenant = Tenant()

    assert not tenant.note_look(NOTHING._replace(**{name: 1500}), PERIOD)

    assert tenant.due_at() == tenant.now + 1.5


@pytest.mark.parametrize(
    "found",
    [{"ready": 7}, {"outbox": 3}, {"arrival_ms": 0}, {"lease_ms": -20}, {"tick_ms": -1}],
)
def test_a_tenant_with_work_is_served(found: dict[str, int]) -> None:
    assert Tenant().note_look(NOTHING._replace(**found), PERIOD)


def test_a_tenant_is_not_served_twice_nor_while_it_is_suspended() -> None:
    work = NOTHING._replace(ready=7)
    loop = asyncio.new_event_loop()

    assert not Tenant(is_active=False).note_look(work, PERIOD)
    assert not Tenant(serving=loop.create_future()).note_look(work, PERIOD)
    loop.close()


def test_what_a_worker_could_not_do_opens_no_other_until_it_changes() -> None:
    tenant, work = Tenant(), NOTHING._replace(lease_ms=-5)
    assert tenant.note_look(work, PERIOD)
    tenant.note_closed(has_worked=False)

    later = NOTHING._replace(lease_ms=-5_000, now_ms=4_995)
    assert not tenant.note_look(later, PERIOD)
    assert tenant.note_look(later._replace(ready=8), PERIOD)
    tenant.now += IN_VAIN_SECONDS
    assert tenant.note_look(NOTHING._replace(lease_ms=-600_000, now_ms=599_995), PERIOD)


def test_what_is_found_after_a_worker_had_something_to_do_opens_another() -> None:
    tenant, work = Tenant(), NOTHING._replace(lease_ms=-5)
    assert tenant.note_look(work, PERIOD)

    tenant.note_closed(has_worked=True)

    assert tenant.note_look(work, PERIOD)


def test_a_tenant_without_work_is_visited_once_a_day() -> None:
    tenant = Tenant(visit_at=200.0)
    assert not tenant.note_look(NOTHING, PERIOD)
    tenant.now = 200.0
    assert tenant.note_look(NOTHING, PERIOD)

    tenant.note_closed(has_worked=False)

    assert not tenant.note_look(NOTHING, PERIOD)
    assert tenant.visit_at == 200.0 + VISIT_SECONDS


def test_where_hints_are_heard_it_is_marked_twice_and_then_seldom_looked_at() -> None:
    tenant = Tenant()
    ear: Any = Ear()
    tenant.mark = SleepMark(ear, tenant.monotonic, PERIOD)
    assert tenant.wants_mark

    tenant.mark.has_marked()
    tenant.note_look(NOTHING, PERIOD)
    assert not tenant.is_sure
    assert not tenant.wants_mark
    tenant.now += STATEMENT_SECONDS
    assert tenant.wants_mark
    assert tenant.due_at() <= tenant.now
    tenant.mark.has_marked()
    tenant.note_look(NOTHING, PERIOD)

    assert tenant.is_sure
    assert tenant.due_at() == tenant.now + SURE_SECONDS


def test_a_transaction_older_than_the_mark_keeps_the_short_period() -> None:
    tenant = Tenant()
    ear: Any = Ear()
    tenant.mark = SleepMark(ear, tenant.monotonic, PERIOD)
    tenant.mark.has_marked()
    tenant.now += STATEMENT_SECONDS
    tenant.mark.has_marked()

    tenant.note_look(NOTHING._replace(horizon=Horizon(3, 5)), PERIOD)

    assert not tenant.is_sure
    assert tenant.due_at() == tenant.now + PERIOD


def test_a_worker_is_not_closed_before_the_hosts_mark_is_sure() -> None:
    tenant = Tenant()
    ear: Any = Ear()
    tenant.mark = SleepMark(ear, tenant.monotonic, PERIOD)
    loop = asyncio.new_event_loop()
    tenant.serving = loop.create_future()
    loop.close()
    assert not tenant.wants_mark

    tenant.is_leaving = True
    assert tenant.wants_mark
    tenant.mark.has_marked()
    tenant.note_look(NOTHING, PERIOD)
    assert not tenant.is_ready_to_leave
    tenant.now += STATEMENT_SECONDS
    tenant.mark.has_marked()
    tenant.note_look(NOTHING, PERIOD)

    assert tenant.is_ready_to_leave


def test_where_no_hint_is_heard_a_worker_is_closed_without_a_mark() -> None:
    tenant = Tenant()
    ear: Any = Ear()
    ear.is_listening = False
    tenant.mark = SleepMark(ear, tenant.monotonic, PERIOD)

    assert not tenant.wants_mark
    assert tenant.is_ready_to_leave


def test_looks_at_one_tenant_are_never_closer_than_a_quarter_of_a_second() -> None:
    tenant = Tenant()
    tenant.note_look(NOTHING, PERIOD)

    tenant.look_soon()

    assert tenant.due_at() == tenant.now + LEAST_SECONDS


@pytest.mark.parametrize("name", ["arrival_ms", "lease_ms", "tick_ms"])
def test_what_is_due_anew_is_not_taken_for_what_its_worker_could_do_nothing_about(name: str) -> None:
    tenant = Tenant()
    due = NOTHING._replace(now_ms=50_000, **{name: 0})
    assert tenant.note_look(due, PERIOD)
    tenant.note_closed(has_worked=False)

    tenant.now += 5
    assert not tenant.note_look(due._replace(now_ms=55_000, **{name: -5_000}), PERIOD)
    assert tenant.note_look(due._replace(now_ms=55_000, **{name: -1_000}), PERIOD)
