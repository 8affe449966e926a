"""Our tables in a real Alembic environment: online and as a script, on both databases, over every driver."""

from __future__ import annotations

import io
import secrets
import sqlite3
import textwrap
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy
from alembic import command
from alembic.config import Config

from holdfast import Holdfast, InvalidSettings, Misuse
from holdfast.database import migrations
from holdfast.database.migrations import MigrationStep, code_number, steps
from holdfast.integrations import alembic
from tests.support.factories import TASKS, greet

ENVIRONMENT = '''
"""An Alembic environment as its templates make it, for blocking and async engines."""

import asyncio

from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, pool
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast.integrations.alembic import include_name

url = context.config.get_main_option("sqlalchemy.url")
metadata = MetaData()
Table("shop_order", metadata, Column("id", Integer, primary_key=True))
options = {"target_metadata": metadata}
if context.config.get_main_option("filtered") != "no":
    options["include_name"] = include_name


def run(connection=None):
    if connection is None:
        context.configure(url=url, literal_binds=True, dialect_opts={"paramstyle": "named"}, **options)
    else:
        context.configure(connection=connection, **options)
    with context.begin_transaction():
        context.run_migrations()


async def run_async():
    engine = create_async_engine(url, poolclass=pool.NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(run)
    await engine.dispose()


if context.is_offline_mode():
    run()
elif make_url(url).get_dialect().is_async:
    asyncio.run(run_async())
else:
    engine = create_engine(url, poolclass=pool.NullPool)
    with engine.connect() as connection:
        run(connection)
    engine.dispose()
'''

TEMPLATE = '''
"""${message}"""
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}

import sqlalchemy as sa
from alembic import op

def upgrade() -> None:
    ${upgrades if upgrades else "pass"}

def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
'''

REVISION = '''
"""{revision}"""

import sqlalchemy
from alembic import op
from holdfast.integrations import alembic as holdfast_tables

revision = "{revision}"
down_revision = {before!r}


def upgrade() -> None:
{upgrade}


def downgrade() -> None:
{downgrade}
'''


@dataclass(frozen=True)
class Shop:
    """A database with an Alembic environment, and a face of ours on it."""

    directory: Path
    url: str
    """As SQLAlchemy reads it, with the driver."""
    address: str
    """As we read it."""

    def config(self, **options: str) -> Config:
        """Make the configuration that `alembic.ini` would hold."""
        config = Config(stdout=io.StringIO())
        config.set_main_option("script_location", str(self.directory / "alembic"))
        config.set_main_option("path_separator", "os")
        config.set_main_option("sqlalchemy.url", self.url.replace("%", "%%"))
        for name, value in options.items():
            config.set_main_option(name, value)
        return config

    def revise(self, revision: str, upgrade: str, downgrade: str = "pass", before: str | None = None) -> None:
        """Write a revision by hand."""
        text = REVISION.format(
            revision=revision,
            before=before,
            upgrade=textwrap.indent(upgrade, "    "),
            downgrade=textwrap.indent(downgrade, "    "),
        )
        (self.directory / "alembic" / "versions" / f"{revision}.py").write_text(text)

    def upgrade(self, to: str = "head") -> None:
        """Run `alembic upgrade`."""
        command.upgrade(self.config(), to)

    def script(self, to: str = "head", *, is_down: bool = False) -> str:
        """Run `alembic upgrade --sql`, or `downgrade`, and give what it printed."""
        config = self.config()
        config.output_buffer = printed = io.StringIO()
        (command.downgrade if is_down else command.upgrade)(config, to, sql=True)
        return printed.getvalue()

    def run(self, script: str) -> None:
        """Run a script by hand."""
        if self.url.startswith("sqlite"):
            with closing(sqlite3.connect(self.address)) as connection:
                connection.executescript(script)
            return
        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute(script.encode())

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Look into the database."""
        engine = sqlalchemy.create_engine(
            self.url.replace("+asyncpg", "+psycopg").replace("+aiosqlite", ""), poolclass=sqlalchemy.NullPool
        )
        with engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sqlalchemy.text(sql))]

    def tables(self) -> list[str]:
        """Name what is there, but Alembic's own table."""
        if self.url.startswith("sqlite"):
            sql = "SELECT name FROM sqlite_master WHERE type IN ('table', 'view', 'index')"
        else:
            sql = """SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
                WHERE nspname NOT LIKE 'pg\\_%' AND nspname <> 'information_schema'"""
        return sorted(name for (name,) in self.query(sql) if not name.startswith(("alembic", "sqlite_")))

    def face(self) -> Holdfast:
        """Make a face on the database."""
        return Holdfast(self.address, tasks=[TASKS])

    def migrate(self) -> list[str]:
        """Run `holdfast migrate`."""
        face = self.face().sync
        taken = face.migrate()
        face.close()
        return taken


NEWEST = code_number("sqlite")
NEXT = NEWEST + 1
DRIVERS = ("sqlite", "sqlite+aiosqlite", "postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg")


@pytest.fixture(params=["sqlite", "postgresql+psycopg"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    """An empty database and an environment without revisions."""
    (tmp_path / "alembic" / "versions").mkdir(parents=True)
    (tmp_path / "alembic" / "env.py").write_text(ENVIRONMENT)
    (tmp_path / "alembic" / "script.py.mako").write_text(TEMPLATE)
    if request.param.startswith("sqlite"):
        yield Shop(tmp_path, f"{request.param}:///{tmp_path}/shop.db", str(tmp_path / "shop.db"))
        return
    server, name = request.getfixturevalue("postgres_server"), f"holdfast_alembic_{secrets.token_hex(6)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    address = urlsplit(server)._replace(path=f"/{name}")
    yield Shop(tmp_path, address._replace(scheme=request.param).geturl(), address.geturl())
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def take_our_steps(shop: Shop, **options: str) -> None:
    """Write the revision that a shop begins with: its own table, and our tables."""
    given = "".join(f", {name}={value!r}" for name, value in options.items())
    shop.revise(
        "a1",
        'op.create_table("shop_order", sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True))\n'
        + "\n".join(f"holdfast_tables.upgrade({number}{given})" for number in range(1, NEXT)),
        f"holdfast_tables.downgrade({given.removeprefix(', ')})\n" + 'op.drop_table("shop_order")',
    )


@pytest.mark.parametrize("shop", DRIVERS, indirect=True)
def test_a_revision_makes_our_tables_with_its_own(shop: Shop) -> None:
    take_our_steps(shop)

    shop.upgrade()

    assert shop.migrate() == []
    with shop.face().sync as hf:
        assert hf.start(greet(name="Ada")).task == "greet"
    assert "shop_order" in shop.tables()


def test_it_makes_what_our_own_command_makes(shop: Shop, tmp_path: Path) -> None:
    shop.revise("a1", f"holdfast_tables.upgrade({NEWEST})", "holdfast_tables.downgrade()")
    shop.migrate()
    expected = shop.tables()
    command.stamp(shop.config(), "a1")
    command.downgrade(shop.config(), "base")
    gone = shop.tables()

    shop.upgrade()

    assert (gone, shop.tables()) == ([], expected)


def test_what_our_command_has_done_is_not_done_again(shop: Shop) -> None:
    take_our_steps(shop)
    shop.migrate()
    with shop.face().sync as hf:
        chain = hf.start(greet(name="Ada"))
    identity = shop.query("SELECT value FROM holdfast_meta WHERE key = 'identity'")

    shop.upgrade()

    assert shop.query("SELECT value FROM holdfast_meta WHERE key = 'identity'") == identity
    with shop.face().sync as hf:
        assert hf.get_chain(chain.id).id == chain.id


def test_a_revision_that_fails_leaves_nothing_of_ours_half_done(shop: Shop) -> None:
    shop.revise("a1", f"holdfast_tables.upgrade({NEWEST})\nraise RuntimeError('out of paper')")

    with pytest.raises(RuntimeError, match="out of paper"):
        shop.upgrade()

    # SQLite's driver begins a transaction with the first row, and so keeps the table that is made before it
    assert [name for name in shop.tables() if name != "holdfast_meta"] == []
    assert shop.migrate() == [step.name for step in steps("sqlite")]


def test_the_script_of_offline_mode_makes_the_same(shop: Shop) -> None:
    take_our_steps(shop)

    shop.run(shop.script())

    assert shop.migrate() == []
    with shop.face().sync as hf:
        assert hf.start(greet(name="Ada")).task == "greet"
    shop.upgrade()  # finds its own version, and nothing to do
    assert shop.query("SELECT count(*) FROM holdfast_jobs") == [(1,)]


def test_the_tables_go_with_a_downgrade_and_can_be_made_anew(shop: Shop) -> None:
    take_our_steps(shop)
    shop.upgrade()

    command.downgrade(shop.config(), "base")
    gone = shop.tables()
    shop.upgrade()

    assert gone == []
    with shop.face().sync as hf:
        assert hf.start(greet(name="Ada")).task == "greet"


def test_a_downgrade_can_be_written_out_too(shop: Shop) -> None:
    take_our_steps(shop)
    shop.upgrade()

    shop.run(shop.script("a1:base", is_down=True))

    assert shop.tables() == []


@pytest.fixture
def next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A next release, with a step more; its text has what SQLAlchemy reads otherwise than a database does."""
    statements = ("CREATE TABLE holdfast_tag (name text DEFAULT '100% :sure')",)
    tags = MigrationStep(NEXT, "a_next_one", 1, statements)
    known = {database: [*steps(database), tags] for database in ("sqlite", "postgres")}
    monkeypatch.setattr(migrations, "steps", known.__getitem__)


@pytest.mark.usefixtures("next_step")
def test_a_revision_takes_its_own_step_and_no_more(shop: Shop) -> None:
    take_our_steps(shop)

    shop.upgrade()

    assert standing(shop) == str(NEWEST)


@pytest.mark.usefixtures("next_step")
@pytest.mark.parametrize("shop", DRIVERS, indirect=True)
def test_the_next_release_is_a_revision_more(shop: Shop) -> None:
    take_our_steps(shop)
    shop.upgrade()
    shop.revise("b2", f"holdfast_tables.upgrade({NEXT})", before="a1")

    shop.upgrade()

    assert standing(shop) == str(NEXT)
    shop.query("SELECT name FROM holdfast_tag")
    assert default_of_tag(shop) == "100% :sure"


@pytest.mark.usefixtures("next_step")
def test_a_script_of_both_revisions_takes_each_step_once(shop: Shop) -> None:
    take_our_steps(shop)
    shop.revise("b2", f"holdfast_tables.upgrade({NEXT})", before="a1")

    script = shop.script()
    shop.run(script)

    assert standing(shop) == str(NEXT)
    assert default_of_tag(shop) == "100% :sure"


@pytest.mark.usefixtures("next_step")
def test_a_revision_takes_also_the_steps_before_it_that_nobody_took(shop: Shop) -> None:
    shop.revise("b2", f"holdfast_tables.upgrade({NEXT})")

    shop.upgrade()

    assert standing(shop) == str(NEXT)


def standing(shop: Shop) -> str:
    ((found,),) = shop.query("SELECT value FROM holdfast_meta WHERE key = 'schema'")
    return str(found)


def default_of_tag(shop: Shop) -> str:
    shop.run("INSERT INTO holdfast_tag DEFAULT VALUES")
    ((found,),) = shop.query("SELECT name FROM holdfast_tag")
    return str(found)


def test_a_step_that_this_release_does_not_know_is_refused(shop: Shop) -> None:
    unknown = code_number("sqlite") + 7
    shop.revise("a1", f"holdfast_tables.upgrade({unknown})")

    with pytest.raises(Misuse, match=f"not step {unknown}; install the release"):
        shop.upgrade()

    assert shop.tables() == []


@pytest.mark.parametrize("shop", ["postgresql+psycopg"], indirect=True)
def test_the_tables_may_be_in_a_schema_of_their_own(shop: Shop) -> None:
    take_our_steps(shop, schema_name="jobs")

    shop.upgrade()

    assert shop.query("SELECT schemaname FROM pg_tables WHERE tablename = 'holdfast_job'") == [("jobs",)]
    command.downgrade(shop.config(), "base")
    assert shop.tables() == []


@pytest.mark.parametrize("shop", ["postgresql+psycopg"], indirect=True)
def test_a_script_makes_that_schema_too(shop: Shop) -> None:
    take_our_steps(shop, schema_name="jobs")

    shop.run(shop.script())

    with Holdfast(shop.address, schema_name="jobs", tasks=[TASKS]).sync as hf:
        assert hf.migrate() == []


def test_a_name_that_is_none_is_refused(shop: Shop) -> None:
    take_our_steps(shop, schema_name="Robert'); DROP TABLE shop_order; --")

    with pytest.raises(InvalidSettings, match="schema_name"):
        shop.upgrade()


def test_another_database_is_refused(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.integrations.alembic.DATABASES", {})
    take_our_steps(shop)

    with pytest.raises(Misuse, match="PostgreSQL or SQLite"):
        shop.upgrade()


def generated(shop: Shop, **options: str) -> str:
    command.revision(shop.config(**options), autogenerate=True, rev_id="c3")
    return (shop.directory / "alembic" / "versions" / "c3_.py").read_text()


def test_autogenerate_leaves_our_tables_alone(shop: Shop) -> None:
    take_our_steps(shop)
    shop.upgrade()

    assert "drop" not in generated(shop)


def test_without_the_filter_it_would_drop_them(shop: Shop) -> None:
    take_our_steps(shop)
    shop.upgrade()

    assert "op.drop_table('holdfast_job')" in generated(shop, filtered="no")


@pytest.mark.parametrize(
    ("name", "kind", "is_included"),
    [
        ("holdfast_job", "table", False),
        ("shop_order", "table", True),
        ("holdfast_notes", "column", True),
        (None, "schema", True),
    ],
)
def test_only_our_tables_are_left_out(name: str | None, kind: str, is_included: bool) -> None:
    assert alembic.include_name(name, kind, {}) is is_included
