"""Brings the schema up to date: numbered SQL files per database, one transaction each, safe with two processes at once.

The row `schema` of `holdfast_meta` holds the number of the last step taken and is the lock: whoever takes a step
locks it first, reads it again and only then acts, in the step's own transaction; so a kill -9 leaves a step whole or
absent. A step's file says in its first line which is the oldest code that still suits the schema it makes. Code is
numbered by the last step that it knows. A release thus serves a newer schema for as long as that allows: a rolling
deploy migrates first and restarts afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

from holdfast.database.dialect import TABLES, Dialect
from holdfast.database.tx import Database, Row, SchemaVersion, Tx
from holdfast.errors import NotMigrated, TenantInUse, WrongConnection

__all__ = [
    "LEASES", "LOCK_MILLISECONDS", "SchemaVersion", "check", "code_number", "drop", "drop_unused", "identity", "judge",
    "pending_sql", "refuse_running", "sql_of", "standing", "step", "steps",
]  # fmt: skip

LOCK_MILLISECONDS = 1500
"""How long a step waits for a table, with everybody who comes later behind it: less than the deadline of these (5 s).

More than the second after which a server has its own autovacuum give way.
"""
GIVE_WAY = {"sqlite": (), "postgres": (f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}",)}

HEADER = re.compile(r"-- oldest_code: (\d+)\n")


class MigrationStep(NamedTuple):
    """One numbered file."""

    number: int
    name: str
    oldest_code: int
    statements: tuple[str, ...]


@cache
def steps(database: Database) -> Sequence[MigrationStep]:
    """Read the steps for *database*, in order."""
    from importlib.resources import files  # it imports much, and is needed once

    folder = files("holdfast.database.migrations") / database
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    return [_read_step(name, (folder / name).read_text(encoding="utf-8")) for name in names]


def code_number(database: Database) -> int:
    """Give the number of this code: that of the last step it knows."""
    return steps(database)[-1].number


def pending_sql(database: Database, dialect: Dialect, schema: int) -> str:
    """Write out what a database that stands at *schema* still needs, as a script to read or to run by hand."""
    statements = [text for each in steps(database) if each.number > schema for text in sql_of(each, dialect)]
    if not statements:
        return ""
    return "\n".join(f"{each};" for each in ("BEGIN", *GIVE_WAY[database], *statements, "COMMIT"))


def sql_of(step: MigrationStep, dialect: Dialect) -> list[str]:
    """Write *step* out as statements for one transaction; the first step also makes the row that steps are kept in."""
    first = [CREATE_SCHEMA] if dialect.fragments["schema"] not in ("'public'", "'main'") else []
    before = [*first, CREATE_META, FIRST_ROWS] if step.number == 1 else []
    return [dialect.compile(each).text for each in (*before, *step.statements, _record(step))]


FIND_SCHEMA = "SELECT 1 FROM pg_catalog.pg_namespace WHERE nspname = $schema"
CREATE_SCHEMA = "CREATE SCHEMA IF NOT EXISTS $schema_name"
CREATE_META = """CREATE TABLE IF NOT EXISTS holdfast_meta (key text PRIMARY KEY, value text NOT NULL)"""
FIRST_ROWS = """INSERT INTO holdfast_meta (key, value) VALUES ('schema', '0'), ('oldest_code', '0')
    ON CONFLICT DO NOTHING"""
LOCK = """SELECT CAST(value AS bigint) FROM holdfast_meta WHERE key = 'schema' $locked"""


async def step(tx: Tx, database: Database, last: int | None = None, *, anew: bool = True) -> str | None:
    """Take the next step, up to number *last*, and name it; None when there is none to take.

    Run it in a transaction of its own. Its statements carry no values, so that they can also be written out. Unless
    *anew*, it raises `NotMigrated` where there are no tables of ours: they were removed.
    """
    if (found := await standing(tx, database)).schema == 0:
        if not anew:
            judge(found, code_number(database))
        if database == "postgres" and not await tx.fetch_all(FIND_SCHEMA):
            await tx.execute(CREATE_SCHEMA)
        await tx.execute(CREATE_META)
        await tx.execute(FIRST_ROWS)
    ((number,),) = await tx.fetch_all(LOCK)
    todo = next((each for each in steps(database) if each.number > number), None)
    if todo is None or (last is not None and todo.number > last):
        return None
    for statement in (*todo.statements, _record(todo)):
        await tx.execute(statement)
    return todo.name


def _record(step: MigrationStep) -> str:
    return f"""UPDATE holdfast_meta
        SET value = CASE key WHEN 'schema' THEN '{step.number}' ELSE '{step.oldest_code}' END
        WHERE key IN ('schema', 'oldest_code')"""


DROPS = (
    "DROP VIEW IF EXISTS holdfast_jobs",
    *(f"DROP TABLE IF EXISTS holdfast_{name}" for name in TABLES if name != "jobs"),
)


async def drop(tx: Tx) -> None:
    """Drop every table of ours, and all jobs with them."""
    for each in DROPS:
        await tx.execute(each)


# a lease that is over is that of a worker that is gone: in a suspended tenant nobody takes its job over
LEASES = "SELECT count(*) FROM holdfast_job WHERE lease_until > $now"


def refuse_running(name: str, found: Sequence[Row]) -> None:
    """Raise `TenantInUse` if jobs run in the place of the tenant *name*, by what `LEASES` has *found* there."""
    ((number,),) = found
    if number:
        jobs = "a job runs" if number == 1 else f"{number} jobs run"
        raise TenantInUse(name, f"{jobs} in it; wait until they have ended")


async def refuse_used(tx: Tx, name: str) -> None:
    """Raise `TenantInUse` if jobs run here, in the place of the tenant *name*."""
    refuse_running(name, await tx.fetch_all(LEASES))


def refuse_strangers(name: str, found: Sequence[str]) -> None:
    """Raise `TenantInUse` if there is something in the place of the tenant *name* that is not ours."""
    if found:
        raise TenantInUse(name, f"it also holds {', '.join(found)}, which Holdfast has not made; move or drop it first")


STRANGERS = """
    SELECT name FROM sqlite_master
    WHERE type IN ('table', 'view') AND substr(name, 1, 7) <> 'sqlite_' AND NOT name $any(ours: text)
    ORDER BY name LIMIT 5"""


async def find_strangers(tx: Tx) -> list[str]:
    """Name tables and views in this file that are not ours; five at most."""
    return [name for (name,) in await tx.fetch_all(STRANGERS, ours=[f"holdfast_{each}" for each in TABLES])]


async def has_anything(tx: Tx) -> bool:
    """Tell whether anything was ever made in this file."""
    return bool(await tx.fetch_all("SELECT 1 FROM sqlite_master LIMIT 1"))


async def drop_unused(tx: Tx, name: str) -> None:
    """Drop every table of ours here, in the file of the tenant *name*; raise `TenantInUse` if jobs run.

    Or if somebody else has tables there: the file is removed after this.
    """
    refuse_strangers(name, await find_strangers(tx))
    if await tx.fetch_all(FIND_META["sqlite"]):
        refuse_running(name, await tx.fetch_all(LEASES))
    await drop(tx)


FIND_META = {
    "sqlite": "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'holdfast_meta'",
    "postgres": """
    SELECT 1 FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relname = 'holdfast_meta' AND nspname = $schema""",
}
STANDING = "SELECT key, CAST(value AS bigint) FROM holdfast_meta WHERE key IN ('schema', 'oldest_code')"


async def standing(tx: Tx, database: Database) -> SchemaVersion:
    """Tell how far the database has been brought, with statements that cannot fail on an empty one."""
    if not await tx.fetch_all(FIND_META[database]):
        return SchemaVersion(0, 0)
    # no rows, if a migration of the user's was undone whose driver had made the table before it began a transaction
    found: dict[str, int] = dict(await tx.fetch_all(STANDING))
    return SchemaVersion(found.get("schema", 0), found.get("oldest_code", 0))


FIND_READABLE_META = {  # on a caller's connection not even a missing right may break the transaction
    "sqlite": FIND_META["sqlite"],
    "postgres": f"""{FIND_META["postgres"]}
        AND pg_catalog.has_schema_privilege(pg_namespace.oid, 'USAGE')
        AND pg_catalog.has_table_privilege(pg_class.oid, 'SELECT')""",
}
# an expression has no declared type, by which SQLite's driver would look for a converter of the caller's
IDENTITY = {
    "sqlite": """
    SELECT holdfast_meta.value || '', holdfast_meta.value, declared.seq, declared.job
    FROM holdfast_meta, (SELECT 1 AS seq, 2 AS job UNION ALL SELECT seq, job FROM holdfast_event WHERE 0) AS declared
    WHERE holdfast_meta.key = 'identity'""",
    "postgres": "SELECT value, current_setting('array_nulls') FROM holdfast_meta WHERE key = 'identity'",
}


async def identity(tx: Tx, database: Database) -> str | None:
    """Give the name by which a database of ours is known from another; None where there is none to be read.

    Raises `WrongConnection` if what is read comes out as something else than what is stored.
    """
    if not await tx.fetch_all(FIND_READABLE_META[database]):
        return None
    rows = await tx.fetch_all(IDENTITY[database])
    if rows and rows[0][1:] == ("off",):
        raise WrongConnection(
            "this connection has array_nulls off, so a missing value in our lists would become the text NULL; connect "
            'with options="-c array_nulls=on", or write `SET array_nulls = on` before the transaction'
        )
    if rows and rows[0][1:] not in (("on",), (rows[0][0], 1, 2)):
        raise WrongConnection(
            "this connection turns the values of our columns into others: it has detect_types, and a converter is "
            "registered for text, integer or bigint; pass a connection without detect_types"
        )
    return rows[0][0] if rows else None


async def check(tx: Tx, database: Database) -> None:
    """Raise `NotMigrated` unless schema and code suit each other."""
    judge(await standing(tx, database), code_number(database))


def judge(found: SchemaVersion, code: int) -> None:
    """Raise `NotMigrated` unless code number *code* suits a database that stands at *found*."""
    if found.schema < code:
        what = f"schema {found.schema}, and this release needs {code}"
        raise NotMigrated(
            f"the database {f'is at {what}' if found.schema else f'has no Holdfast tables yet ({what})'}; run "
            "`holdfast migrate` on it, or call hf.migrate()",
            found=found.schema,
            needed=code,
        )
    if code < found.oldest_code:
        raise NotMigrated(
            f"the database is at schema {found.schema}, which needs code {found.oldest_code} or newer, and this "
            f"release is {code}; install a newer release of holdfast",
            found=found.schema,
            needed=code,
        )


def _read_step(file_name: str, text: str) -> MigrationStep:
    header = HEADER.match(text)
    if header is None:
        raise ValueError(f"{file_name} must begin with `-- oldest_code: N`")
    plain = re.sub(r"--[^\n]*", "", text)
    statements = tuple(part.strip() for part in plain.split(";\n") if part.strip())
    return MigrationStep(int(file_name[:4]), file_name.removesuffix(".sql"), int(header[1]), statements)
