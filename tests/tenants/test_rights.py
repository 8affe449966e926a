"""Roles on PostgreSQL: who may make schemas, what the other is granted, and that nobody reaches another's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
import pytest

from holdfast import Holdfast, MissingRight
from tests.support.factories import greet
from tests.support.ways import Way
from tests.tenants.conftest import CONTROL

OWNER, USER = (
    f'{name} "{uuid4().hex[:8]}' for name in ("owner", "user")
)  # roles belong to the server, not to a database


@pytest.fixture
def roles(control_url: str) -> Iterator[Callable[[str], str]]:
    """One role that may make schemas, and one that may do nothing; give the address of either."""
    address = urlsplit(control_url)
    with psycopg.connect(control_url, autocommit=True) as boss:
        database = boss.info.dbname
        for role in (OWNER, USER):
            quoted = psycopg.sql.Identifier(role)
            boss.execute(psycopg.sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'of-a-test'").format(quoted))
        grant = psycopg.sql.SQL("GRANT CREATE ON DATABASE {} TO {}")
        boss.execute(grant.format(psycopg.sql.Identifier(database), psycopg.sql.Identifier(OWNER)))

        def address_of(role: str) -> str:
            name = role.replace(" ", "%20").replace('"', "%22")
            return address._replace(netloc=f"{name}:of-a-test@{address.hostname}:{address.port}").geturl()

        yield address_of
        for role in (OWNER, USER):
            quoted = psycopg.sql.Identifier(role)
            boss.execute(psycopg.sql.SQL("DROP OWNED BY {} CASCADE").format(quoted))
            boss.execute(psycopg.sql.SQL("DROP ROLE {}").format(quoted))


async def test_a_role_that_may_make_no_schema_is_told_what_to_do(
    new_control: Callable[..., Holdfast], roles: Callable[[str], str]
) -> None:
    """S-33."""
    owner = new_control("postgres", url=roles(USER), migrations_url=roles(OWNER))
    await owner.migrate()
    user = new_control("postgres", url=roles(USER))

    with pytest.raises(MissingRight, match=r"permission denied for database .* give a role that may") as raised:
        await user.tenants.create("acme")
    assert (raised.value.code, raised.value.exit_code) == ("missing_right", 5)
    assert "migrations_url=" in str(raised.value)
    assert [(each.name, each.state) for each in await user.tenants.list()] == [("acme", "creating")]
    await owner.tenants.create("acme")  # it goes on where the other had to stop
    await owner.close()
    await user.close()


async def test_the_role_of_the_program_is_granted_what_it_needs_and_no_more(
    new_control: Callable[..., Holdfast], roles: Callable[[str], str]
) -> None:
    """S-33."""
    hf = new_control("postgres", url=roles(USER), migrations_url=roles(OWNER))
    await hf.migrate()
    await hf.tenants.create("acme")
    acme = hf.tenant("acme")
    async with acme.worker(poll=0.1):
        assert await (await acme.start(greet(name="Ada"))).result(timeout=20) == "Hello, Ada"
        blocking = await asyncio.to_thread(acme.sync.start, greet(name="Bob"))
        assert await asyncio.to_thread(blocking.result, 20) == "Hello, Bob"
    assert (await hf.tenants.migrate()).failed == {}
    await acme.retain()
    with psycopg.connect(roles(USER), autocommit=True) as connection:
        for sql in (
            f"DROP TABLE {CONTROL}_t_acme.holdfast_job",
            f"CREATE TABLE {CONTROL}_t_acme.mine (id int)",
            f"TRUNCATE {CONTROL}_t_acme.holdfast_job",
            f"DROP SCHEMA {CONTROL}_t_acme CASCADE",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(sql)
    await hf.tenants.suspend("acme")
    await hf.tenants.drop("acme", confirm="acme")
    assert await hf.tenants.list() == []
    await hf.close()


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "blocking"])
async def test_one_tenant_works_where_the_schemas_of_others_are_forbidden(
    new_control: Callable[..., Holdfast], roles: Callable[[str], str], is_async: bool
) -> None:
    """I-52."""
    hf = new_control("postgres", url=roles(USER), migrations_url=roles(OWNER))
    await hf.migrate()
    for name in ("acme", "beta"):
        await hf.tenants.create(name)
    acme, beta = Way(hf.tenant("acme"), is_async), Way(hf.tenant("beta"), is_async)
    for way in (acme, beta):
        await way.face.start(greet(name="Ada"))
    with psycopg.connect(roles(OWNER), autocommit=True) as owner:
        quoted = psycopg.sql.Identifier(USER)
        owner.execute(psycopg.sql.SQL("REVOKE ALL ON SCHEMA control_t_beta FROM {}").format(quoted))

    async with acme.hf.worker(poll=0.1):
        chain = await acme.face.start(greet(name="Bob"))
        assert await (await acme.hf.get_chain(chain.id)).result(timeout=20) == "Hello, Bob"
    for call in (
        acme.face.list_jobs(),
        acme.face.overview(),
        acme.face.list_workers(),
        acme.face.retain(),
        acme.face.explain(chain.id),
        acme.face.inbox(),
        acme.face.stats(),
    ):
        await call
    with pytest.raises(MissingRight, match="lacks a right"):
        await beta.face.list_jobs()
    await hf.close()
