"""Migrations: from nothing to the newest schema, by one or by two at once, whenever they are killed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import Holdfast, NotMigrated, Unique
from holdfast.database import migrations
from holdfast.database.dialect import PostgresDialect, SqliteDialect
from holdfast.database.migrations import MigrationStep, code_number, steps
from holdfast.database.postgres import AsyncPostgresTx, PostgresTx, migrating
from holdfast.database.sqlite.tx import SqliteTx
from holdfast.database.tx import Database
from tests.store.steps import take_steps
from tests.support.conditions import until
from tests.support.factories import TASKS, greet
from tests.support.processes import forked

ROOT = Path(__file__).parents[2]
DATABASES: tuple[Database, ...] = ("sqlite", "postgres")


@dataclass(frozen=True)
class Place:
    """Where a database of ours may come to be; there is nothing yet."""

    database: Database
    address: str
    schema: str

    def holdfast(self) -> Holdfast:
        """Make a face for it."""
        return Holdfast(self.address, schema_name=self.schema, tasks=[TASKS])

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement by hand; `{}` stands for the schema."""
        if self.database == "sqlite":
            with closing(sqlite3.connect(self.address)) as file, file:
                return file.execute(sql.replace("{}.", "")).fetchall()
        with psycopg.connect(self.address) as connection:
            cursor = connection.execute(sql.replace("{}", self.schema))
            return cursor.fetchall() if cursor.description else []

    def tables(self) -> list[str]:
        """Name the tables, views and indexes of ours."""
        names = {
            "sqlite": "SELECT name FROM sqlite_master WHERE name LIKE 'holdfast%' ORDER BY name",
            "postgres": "SELECT relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace"
            " WHERE nspname = '{}' ORDER BY relname",
        }
        return [name for (name,) in self.execute(names[self.database])]


@pytest.fixture(params=DATABASES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty place on either database."""
    if request.param == "sqlite":
        yield Place("sqlite", str(tmp_path / "jobs.db"), "public")
        return
    place = Place("postgres", request.getfixturevalue("postgres_url"), f"m_{uuid4().hex[:12]}")
    yield place
    place.execute("DROP SCHEMA IF EXISTS {} CASCADE")


@pytest.fixture
def hf(place: Place) -> Iterator[Holdfast]:
    """A face on the empty place."""
    hf = place.holdfast()
    yield hf
    hf.sync.close()


def meta(place: Place, **values: object) -> None:
    """Write down another standing of the schema."""
    for key, value in values.items():
        place.execute(f"UPDATE {{}}.holdfast_meta SET value = '{value}' WHERE key = '{key}'")


def test_an_empty_database_is_brought_to_the_newest_schema(place: Place, hf: Holdfast) -> None:
    taken = hf.sync.migrate()

    assert taken == [step.name for step in steps(place.database)]
    assert place.execute("SELECT value FROM {}.holdfast_meta WHERE key = 'schema'") == [(str(len(taken)),)]
    assert hf.sync.start(greet(name="Ada")).task == "greet"


async def test_the_async_face_migrates_too(place: Place, hf: Holdfast) -> None:
    taken = await hf.migrate()

    assert taken == [step.name for step in steps(place.database)]
    assert (await hf.start(greet(name="Ada"))).task == "greet"
    await hf.close()


@pytest.mark.source("JC-102")
def test_a_second_migration_does_nothing(place: Place, hf: Holdfast) -> None:
    hf.sync.migrate()
    chain = hf.sync.start(greet(name="Ada"))
    before = place.tables(), place.execute("SELECT * FROM {}.holdfast_meta ORDER BY key")
    hf.sync.close()

    taken = hf.sync.migrate()

    assert taken == []
    assert (place.tables(), place.execute("SELECT * FROM {}.holdfast_meta ORDER BY key")) == before
    assert hf.sync.get_chain(chain) == chain


def test_every_database_has_an_identity_of_its_own(place: Place, hf: Holdfast, tmp_path: Path) -> None:
    other = Holdfast(str(tmp_path / "other.db")).sync
    hf.sync.migrate()
    other.migrate()

    identities = {face.store.read_sync(migrations.identity, face.store.database) for face in (hf.sync, other)}

    assert len(identities - {None}) == 2
    other.close()


def test_an_empty_sqlite_file_migrates_itself(new_holdfast: Callable[..., Holdfast]) -> None:
    hf = new_holdfast("sqlite", tasks=[TASKS])

    assert hf.sync.start(greet(name="Ada")).task == "greet"


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_an_empty_postgresql_is_refused_with_the_command_to_run(place: Place, hf: Holdfast) -> None:
    """F-25."""
    with pytest.raises(NotMigrated, match="run `holdfast migrate`") as refused:
        hf.sync.start(greet(name="Ada"))

    assert (refused.value.found, refused.value.needed) == (0, code_number("postgres"))
    assert place.tables() == []


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_the_async_face_refuses_an_empty_postgresql_too(place: Place, hf: Holdfast) -> None:
    with pytest.raises(NotMigrated, match="run `holdfast migrate`"):
        await hf.open()
    await hf.close()


@pytest.mark.source("JC-102")
def test_a_newer_schema_is_served_while_it_suits_this_code(place: Place, hf: Holdfast) -> None:
    """F-39, F-50, I-74."""
    hf.sync.migrate()
    hf.sync.close()

    meta(place, schema=code_number(place.database) + 1, oldest_code=code_number(place.database))

    assert hf.sync.start(greet(name="Ada")).task == "greet"
    assert hf.sync.migrate() == []


def test_a_newer_schema_that_does_not_suit_this_code_is_refused(place: Place, hf: Holdfast) -> None:
    """F-39, I-74."""
    hf.sync.migrate()
    hf.sync.close()
    newer = code_number(place.database) + 1

    meta(place, schema=newer, oldest_code=newer)

    with pytest.raises(NotMigrated, match="install a newer release of holdfast") as refused:
        hf.sync.start(greet(name="Ada"))
    assert (refused.value.found, refused.value.needed) == (newer, newer - 1)
    assert place.execute("SELECT count(*) FROM {}.holdfast_job") == [(0,)]


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_schemas_of_one_postgresql_know_nothing_of_each_other(place: Place, hf: Holdfast) -> None:
    other = Place("postgres", place.address, f"{place.schema}_other")
    theirs = other.holdfast().sync
    hf.sync.migrate()
    theirs.migrate()

    hf.sync.start(greet(name="Ada"), unique="same")

    assert theirs.start(greet(name="Ada"), unique="same").deduplicated is False
    assert (len(hf.sync.list_jobs()), len(theirs.list_jobs())) == (1, 1)
    theirs.close()
    other.execute("DROP SCHEMA {} CASCADE")


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_a_migration_touches_nothing_outside_its_schema(place: Place, hf: Holdfast) -> None:
    elsewhere = "SELECT count(*) FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname <> '{}'"
    elsewhere += " AND nspname NOT LIKE 'pg_toast%'"
    before = place.execute(elsewhere)

    hf.sync.migrate()

    assert place.execute(elsewhere) == before


def test_the_script_to_run_by_hand_makes_the_same_schema(place: Place, hf: Holdfast) -> None:
    hf.sync.migrate()
    expected = place.tables()
    schema = f"{place.schema}_hand"
    by_hand = Place(place.database, place.address + ("-hand" if place.database == "sqlite" else ""), schema)
    script = migrations.pending_sql(place.database, by_hand.holdfast().store.dialect, 0)

    if place.database == "sqlite":
        with closing(sqlite3.connect(by_hand.address)) as file:
            file.executescript(script)
    else:
        with psycopg.connect(by_hand.address, autocommit=True) as connection:
            connection.execute(script)

    assert by_hand.tables() == expected
    face = by_hand.holdfast().sync
    assert face.migrate() == []
    assert face.start(greet(name="Ada")).task == "greet"
    face.close()
    if place.database == "postgres":
        by_hand.execute("DROP SCHEMA {} CASCADE")


def test_the_script_asks_for_a_schema_once_and_not_for_the_public_one() -> None:
    def lines(schema: str) -> list[str]:
        script = migrations.pending_sql("postgres", PostgresDialect(schema), 0)
        return [line for line in script.splitlines() if line.startswith("CREATE SCHEMA")]

    assert lines("shop") == ['CREATE SCHEMA IF NOT EXISTS "shop";']
    assert lines("public") == []  # it needs the right to create schemas, also where there is one


# ---- the steps themselves


def test_both_databases_have_steps_of_the_same_names() -> None:
    sqlite, postgres = (steps(database) for database in DATABASES)

    assert [(step.number, step.name, step.oldest_code) for step in sqlite] == [
        (step.number, step.name, step.oldest_code) for step in postgres
    ]


@pytest.mark.parametrize("database", DATABASES)
def test_steps_are_numbered_without_a_gap_and_suit_no_code_that_is_newer(database: Database) -> None:
    numbers = [step.number for step in steps(database)]

    assert numbers == list(range(1, len(numbers) + 1))
    assert all(1 <= step.oldest_code <= step.number for step in steps(database))


# ---- two at once, and kill -9

MIGRATE = """
import sys
from holdfast import Holdfast
hf = Holdfast(sys.argv[1], schema_name=sys.argv[2]).sync
print("ready", flush=True)
sys.stdin.readline()
print(len(hf.migrate()), flush=True)
hf.close()
"""


@pytest.mark.source("DF-16")
def test_processes_that_migrate_at_once_all_succeed_and_each_step_is_taken_once(place: Place, hf: Holdfast) -> None:
    """F-25, F-39."""
    processes = [
        forked.Popen(
            [sys.executable, "-W", "error", "-c", MIGRATE, place.address, place.schema],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ended = [process.communicate(timeout=60) for process in processes]

    told = [line for _, error in ended for line in error.splitlines()]
    assert [line for line in told if not line.startswith("The migration waits")] == []
    assert sum(int(taken) for taken, _ in ended) == len(steps(place.database))
    assert hf.sync.start(greet(name="Ada")).task == "greet"


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_who_comes_second_waits_for_the_step_that_is_under_way_and_finds_it_taken(
    place: Place, hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-25."""
    hf.sync.migrate()
    next_step = MigrationStep(code_number("postgres") + 1, "the next one", 1, ("SELECT 1",))
    monkeypatch.setattr(migrations, "steps", lambda database: [*steps(database), next_step])
    async with AsyncExitStack() as resources:
        connections = [
            await resources.enter_async_context(await psycopg.AsyncConnection.connect(place.address)) for _ in range(3)
        ]
        first, second, observer = (AsyncPostgresTx(each, PostgresDialect(place.schema)) for each in connections)

        async def second_waits() -> bool:
            pid = connections[1].info.backend_pid
            ((waits,),) = await observer.fetch_all("SELECT cardinality(pg_blocking_pids(:pid))", pid=pid)
            return bool(waits)

        taken = await migrations.step(first, "postgres")
        waiting = asyncio.create_task(migrations.step(second, "postgres"))
        await until(second_waits, "the second step waits for the first")
        await connections[0].commit()

        assert (taken, await waiting) == ("the next one", None)


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
async def test_starts_succeed_while_a_migration_waits_for_an_open_transaction(
    place: Place, hf: Holdfast, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "SHORTEST_WAY", 0.1)
    stand_at(place, 3)

    def start() -> None:  # as a program of the release before does, by its deadline
        with psycopg.connect(place.address, options="-c lock_timeout=4500") as connection:
            connection.execute(START_OF_STEP_3.replace("{}", place.schema), [str(uuid4())] * 2)

    def waits() -> bool:
        return any(vars(each).get("event_name") == "migration_waits" for each in caplog.records)

    async with await psycopg.AsyncConnection.connect(place.address) as application:
        await application.execute(START_OF_STEP_3.replace("{}", place.schema), [str(uuid4())] * 2)
        migration = asyncio.create_task(hf.migrate())
        while not waits():
            await asyncio.to_thread(start)
        await asyncio.to_thread(start)
        assert not migration.done()
        said = next(each for each in caplog.records if vars(each).get("event_name") == "migration_waits")
        assert vars(said)["pid"] == application.info.backend_pid
        await application.commit()

    assert await migration == [step.name for step in steps("postgres")[3:]]
    await hf.close()


START_OF_STEP_3 = """INSERT INTO {}.holdfast_job (id, chain_id, task, queue, status, run_at, input, created_at)
    VALUES (%s, %s, 'greet', 'default', 'pending', 5, '[]', 5)"""


def test_the_script_for_postgresql_gives_way_too() -> None:
    script = migrations.pending_sql("postgres", PostgresDialect("public"), 3)

    assert script.splitlines()[:2] == ["BEGIN;", "SET LOCAL lock_timeout = 1500;"]


def test_a_migration_that_is_killed_at_any_statement_leaves_nothing_and_can_be_run_again(
    place: Place, hf: Holdfast
) -> None:
    """F-39."""
    died = forked.run(
        [sys.executable, "-m", "tests.store.dying", place.address, place.schema],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )

    found = json.loads(died.stdout)

    for step, (before, *after) in zip(steps(place.database), found, strict=True):
        assert len(after) > len(step.statements)  # each of them, those around them, and the COMMIT
        assert before[0] == step.number - 1
        assert {tuple(each) for each in after} == {tuple(before)}
    assert hf.sync.migrate() == []
    assert hf.sync.start(greet(name="Ada")).task == "greet"


# ---- from the release before


def stand_at(place: Place, number: int) -> None:
    """Bring the database to step *number*, as an older release left it."""
    if place.database == "sqlite":
        with closing(sqlite3.connect(place.address)) as file:
            take_steps(SqliteTx(file, SqliteDialect()), number)
            file.commit()
        return
    with psycopg.connect(place.address) as connection:
        take_steps(PostgresTx(connection, PostgresDialect(place.schema)), number)


# written as the first release wrote them
OLD_ROWS = (
    """INSERT INTO {}.holdfast_job (id, chain_id, task, queue, status, gate, run_at, sort_key, input, created_at)
    VALUES ('00000000-0000-7000-8000-000000000001', '00000000-0000-7000-8000-000000000001', 'greet', 'default',
        'pending', 'ready', 5, 5, '{"name":"Ada"}', 5)""",
    """INSERT INTO {}.holdfast_job (id, chain_id, task, queue, status, run_at, attempt, used, nonce, input, output,
        created_at, started_at, finished_at, closed_as, closed_at, version, unique_key)
    VALUES ('00000000-0000-7000-8000-000000000002', '00000000-0000-7000-8000-000000000002', 'greet', 'default',
        'completed', 5, 1, 1, 'n', '{"name":"Bob"}', '"Hello"', 5, 6, 7, 'completed', 7, 3, 'bob')""",
    """INSERT INTO {}.holdfast_job (id, chain_id, task, queue, status, run_at, input, created_at)
    VALUES ('00000000-0000-7000-8000-000000000003', '00000000-0000-7000-8000-000000000003', 'greet', 'default',
        'blocked', 5, '{"name":"Cid"}', 5)""",
    """INSERT INTO {}.holdfast_blocker VALUES (3, 0, '00000000-0000-7000-8000-000000000001', 'armed')""",
    """INSERT INTO {}.holdfast_unique
    VALUES ('greet', 'bob', 0, '00000000-0000-7000-8000-000000000002', 'any', NULL)""",
    """INSERT INTO {}.holdfast_event (job, name, at, status, version, attempt)
    VALUES (1, 'job:enqueued', 5, 'pending', 1, 0), (2, 'job:completed', 7, 'completed', 3, 1)""",
    """INSERT INTO {}.holdfast_lane (key, paused_at) VALUES ('vm-7', 5)""",
)


def test_a_database_of_the_first_release_is_brought_up_to_date_with_nothing_lost(place: Place, hf: Holdfast) -> None:
    """F-50, I-74."""
    stand_at(place, 1)
    for sql in OLD_ROWS:
        place.execute(sql)
    tables = ("job", "blocker", "unique", "event", "lane")
    before = {table: place.execute(f"SELECT * FROM {{}}.holdfast_{table} ORDER BY 1, 2") for table in tables}

    taken = hf.sync.migrate()

    after = {table: place.execute(f"SELECT * FROM {{}}.holdfast_{table} ORDER BY 1, 2") for table in tables}
    assert taken == [step.name for step in steps(place.database)[1:]]
    assert {**after, "job": [row[: len(before["job"][0])] for row in after["job"]]} == before
    assert place.execute("SELECT DISTINCT history, webhook_sent FROM {}.holdfast_job") == [(1, None)]
    assert [job.status for job in hf.sync.list_jobs(order="oldest")] == ["pending", "completed", "blocked"]
    assert hf.sync.cancel(UUID("00000000-0000-7000-8000-000000000003")) == "cancelled"
    assert hf.sync.start(greet(name="Bob"), unique=Unique("bob", scope="any")).deduplicated


def test_an_old_database_of_several_steps_ends_as_a_new_one_does(place: Place, hf: Holdfast) -> None:
    """F-50."""
    hf.sync.migrate()
    expected = place.tables()
    schema = f"{place.schema}_old"
    old = Place(place.database, place.address + ("-old" if place.database == "sqlite" else ""), schema)
    stand_at(old, 1)
    face = old.holdfast().sync

    face.migrate()

    assert old.tables() == expected
    face.close()
    if place.database == "postgres":
        old.execute("DROP SCHEMA {} CASCADE")
