"""Tokens and links of tenants stand in the control place, and each tenant's face shows and revokes its own alone."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast import ChainNotFound, InvalidInput, TenantNotFound
from holdfast.access import ALL_TENANTS, hash_of
from holdfast.errors import LinkNotFound, TokenNotFound
from holdfast.store import access
from tests.support.factories import make_job
from tests.support.ways import Awaitable
from tests.tenants.conftest import Control


def tokens(control: Control, tenant: str | None = None) -> Any:
    """The handle of tokens of the control place or of a tenant, whose every method is awaited."""
    hf = control.hf if tenant is None else control.hf.tenant(tenant)
    return hf.tokens if control.is_async else Awaitable(hf.sync.tokens)


def links(control: Control, tenant: str | None = None) -> Any:
    """The handle of links, the same way."""
    hf = control.hf if tenant is None else control.hf.tenant(tenant)
    return hf.links if control.is_async else Awaitable(hf.sync.links)


@pytest.fixture(autouse=True)
async def two_tenants(control: Control) -> None:
    """Two tenants."""
    for name in ("acme", "zeta"):
        await control.tenants.create(name)


async def test_a_tenants_tokens_and_links_stand_in_the_control_place(control: Control) -> None:
    chain = await make_job(control.way("acme"))

    token = await tokens(control, "acme").create("ada")
    link = await links(control, "acme").create(chain)

    assert (token.info.tenant, link.link.tenant) == ("acme", "acme")
    for made in (token.token, link.token):
        assert control.hf.store.read_sync(access.find, hash_of(made)) is not None
        assert control.hf.tenant("acme").store.read_sync(access.find, hash_of(made)) is None


async def test_a_face_lists_what_is_its_tenants_alone_and_the_control_place_all(control: Control) -> None:
    made = {name: (await tokens(control, name).create("ada")).info.id for name in ("acme", "zeta")} | {
        name: (await tokens(control).create("ada", tenant=name)).info.id for name in (ALL_TENANTS, None)
    }
    linked = (await links(control, "acme").create(await make_job(control.way("acme")))).link.id

    assert {each.id for each in (await tokens(control).list()).items} == set(made.values())
    assert [each.id for each in (await tokens(control, "acme").list()).items] == [made["acme"]]
    assert [each.id for each in (await links(control).list()).items] == [linked]
    assert (await links(control, "zeta").list()).items == ()


async def test_a_face_revokes_what_is_its_tenants_alone(control: Control) -> None:
    token = (await tokens(control, "acme").create("ada")).info.id
    link = (await links(control, "acme").create(await make_job(control.way("acme")))).link.id

    with pytest.raises(TokenNotFound):
        await tokens(control, "zeta").revoke(token)
    with pytest.raises(LinkNotFound):
        await links(control, "zeta").revoke(link)
    assert (await tokens(control, "acme").revoke(token)).revoked_at is not None
    assert (await links(control).revoke(link)).revoked_at is not None


async def test_a_chain_is_looked_for_where_the_link_is_made(control: Control) -> None:
    chain = await make_job(control.way("acme"))

    for elsewhere in (None, "zeta"):
        with pytest.raises(ChainNotFound):
            await links(control, elsewhere).create(chain)


async def test_the_control_place_makes_tokens_for_a_tenant_that_there_is(control: Control) -> None:
    made = await tokens(control).create("ada", tenant="acme")

    assert [each.id for each in (await tokens(control, "acme").list()).items] == [made.info.id]
    with pytest.raises(TenantNotFound):
        await tokens(control).create("ada", tenant="nobody")
    with pytest.raises(InvalidInput, match="the name of a tenant"):
        await tokens(control).create("ada", tenant="No Name")


async def test_the_face_of_a_tenant_makes_tokens_for_no_other(control: Control) -> None:
    for other in ("zeta", ALL_TENANTS):
        with pytest.raises(InvalidInput, match="this is the face of tenant 'acme', which makes tokens for it alone"):
            await tokens(control, "acme").create("ada", tenant=other)
    assert (await tokens(control, "acme").create("ada", tenant="acme")).info.tenant == "acme"


async def test_what_was_for_a_dropped_tenant_leads_nowhere_when_its_name_is_used_again(control: Control) -> None:
    link = await links(control, "acme").create(await make_job(control.way("acme")))
    token, other = await tokens(control, "acme").create("ada"), await tokens(control, "zeta").create("bob")

    await control.tenants.suspend("acme")
    await control.tenants.drop("acme", confirm="acme")
    await control.tenants.create("acme")

    for gone in (token.token, link.token):
        assert control.hf.store.read_sync(access.find, hash_of(gone)) is None
    assert control.hf.store.read_sync(access.find, hash_of(other.token)) is not None


async def test_a_face_that_has_not_heard_of_the_drop_makes_no_token(control: Control) -> None:
    await tokens(control, "acme").create("ada")

    other = control.again().sync
    other.tenants.suspend("acme")
    other.tenants.drop("acme", confirm="acme")

    with pytest.raises(TenantNotFound):
        await tokens(control, "acme").create("bob")
    assert (await tokens(control).list()).items == ()
