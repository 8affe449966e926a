"""The audit and tenants: what is done to a tenant stands in the control place, what is done in it stands there."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import InvalidInput, TenantInUse
from tests.support.factories import greet
from tests.support.ways import Awaitable
from tests.tenants.conftest import Control


def tenants_of(control: Control) -> Any:
    """The handle of an acting face, whose every method is awaited."""
    face = control.hf.acting(by="ann", why="asked for", request="r-1")
    return face.tenants if control.is_async else Awaitable(face.sync.tenants)


def rows(control: Control) -> list[tuple[str, str]]:
    found = control.hf.sync.audit()
    assert {(each.who, each.request) for each in found} <= {("ann", "r-1")}
    return [(each.action, each.subject) for each in reversed(found)]


async def test_what_is_done_to_a_tenant_is_in_the_audit(control: Control) -> None:
    tenants = tenants_of(control)
    await tenants.create("acme")
    await tenants.suspend("acme")
    await tenants.resume("acme")
    await tenants.suspend("acme")
    await tenants.drop("acme", confirm="acme")

    verbs = ["create", "suspend", "resume", "suspend", "drop"]
    assert rows(control) == [(f"tenant.{verb}", "acme") for verb in verbs]


async def test_a_drop_that_is_refused_leaves_no_row(control: Control) -> None:
    await control.tenants.create("acme")

    with pytest.raises(TenantInUse):
        await tenants_of(control).drop("acme", confirm="acme")
    with pytest.raises(InvalidInput):
        await tenants_of(control).drop("acme", confirm="other")

    assert rows(control) == []


async def test_what_is_done_in_a_tenant_is_in_its_own_audit(control: Control) -> None:
    await control.tenants.create("acme")
    face: Any = control.hf.acting(by="ann").tenant("acme")
    acme = face if control.is_async else Awaitable(control.hf.sync.acting(by="ann").tenant("acme"))

    chain = await acme.start(greet(name="Ada"))

    (entry,) = (await acme.audit()).items
    assert (entry.who, entry.action, entry.subject) == ("ann", "start", str(chain.id))
    assert rows(control) == []
