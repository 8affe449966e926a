"""The places of tenants on a server: a schema each, beside that of the control place."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import psycopg

from holdfast.database.dialect import TABLES
from holdfast.database.migrations import LEASES, refuse_running
from holdfast.database.postgres.store import PostgresStore
from holdfast.database.tx import Tx
from holdfast.errors import MissingRight, StoreError, TenantInUse
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.tenancy import schema_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.database.tx import Operation, RemovePlace
    from holdfast.tenancy import TenantInfo

ADVICE = (
    "give a role that may, by migrations_url=; such a role needs `GRANT CREATE ON DATABASE`, and owns the schemas that "
    "it makes"
)


class PostgresPlaces:
    """The schemas of tenants beside that of *control*; they are made and removed by the role of `migrations_url`."""

    def __init__(self, control: PostgresStore, settings: Settings, runtime: Runtime) -> None:
        self._control = control
        self._settings = settings
        self._runtime = runtime

    def place(self, name: str) -> str:
        """Name the schema of a tenant."""
        return schema_of(self._settings.schema_name, name)

    def settings(self, name: str) -> Settings:
        """Give the settings of a tenant's face."""
        return self._settings.model_copy(update={"schema_name": self.place(name), "tenants": False})

    def store(self, name: str) -> PostgresStore:
        """Make a store for a tenant, on the connections of the control place."""
        return self._control.for_schema(self.place(name))

    @contextmanager
    def maker(self) -> Iterator[SchemaMaker]:
        """Have what makes and removes places, for as long as the block lasts."""
        if self._settings.migrations_url is None:
            yield SchemaMaker(self._control, None, self.place)
            return
        chosen = {"database": self._settings.migrations_url, "migrations_url": None}
        migrator = PostgresStore(self._settings.model_copy(update=chosen), self._runtime)
        try:
            yield SchemaMaker(migrator, self._control, self.place)
        finally:
            migrator.close_sync()


class SchemaMaker:
    """Makes and removes places over *migrator*; what it makes, the role of *user* may then use."""

    def __init__(self, migrator: PostgresStore, user: PostgresStore | None, place: Callable[[str], str]) -> None:
        self._migrator = migrator
        self._user = user
        self._place = place

    def make(self, name: str, *, anew: bool = True) -> list[str]:
        """Make the schema of a tenant, if *anew*, or bring it up to date; return the names of the steps taken."""
        return self._migrate(self._migrator.for_schema(self._place(name)), anew=anew)

    def migrate_control(self) -> list[str]:
        """Bring the control place up to date; return the names of the steps taken."""
        return self._migrate(self._migrator)

    def _migrate(self, place: PostgresStore, *, anew: bool = True) -> list[str]:
        try:
            taken = place.migrate_sync(anew=anew)
            if self._user is not None:
                place.run_sync(grant, self._user.role_sync())
        except MissingRight as error:
            raise MissingRight(f"the schema cannot be made or changed by this role ({error}); {ADVICE}") from error
        return taken

    def strangers(self, name: str) -> list[str]:
        """Name what is in the schema of a tenant and not ours."""
        return self._migrator.read_sync(find_strangers, self._place(name))

    def is_taken(self, name: str) -> bool:
        """Tell whether there is a schema with something in it; somebody may have made an empty one for us."""
        return self._migrator.read_sync(has_content, self._place(name))

    def remove(self, name: str, end_dropping: Operation[[TenantInfo, RemovePlace], None], dropped: TenantInfo) -> None:
        """Drop our tables and then the schema, in one transaction; what is not ours there forbids it."""
        try:
            self._migrator.run_sync(end_dropping, dropped, partial(remove_schema, schema=self._place(name), name=name))
        except MissingRight as error:
            raise MissingRight(f"the schema cannot be removed by this role ({error}); {ADVICE}") from error
        except StoreError as error:
            if isinstance(error.__cause__, psycopg.errors.DependentObjectsStillExist):
                what = (error.__cause__.diag.message_detail or "").partition("\n")[0]
                raise TenantInUse(name, f"something else is in its schema: {what}; remove it first") from error
            raise


OURS = [f"holdfast_{name}" for name in TABLES]
STRANGERS = """
    SELECT relname FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = :schema AND relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT relname $any(ours: text)
    UNION ALL
    SELECT proname FROM pg_catalog.pg_proc JOIN pg_catalog.pg_namespace ON pg_namespace.oid = pronamespace
    WHERE nspname = :schema
    LIMIT 5"""


async def find_strangers(tx: Tx, schema: str) -> list[str]:
    """Name tables, views and functions in *schema* that are not ours; five at most."""
    return [str(name) for (name,) in await tx.fetch_all(STRANGERS, schema=schema, ours=OURS)]


FIND_JOBS = """
    SELECT 1 FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
    WHERE relname = 'holdfast_job' AND nspname = :schema"""


CONTENT = """
    SELECT 1 FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = :schema LIMIT 1"""


async def has_content(tx: Tx, schema: str) -> bool:
    """Tell whether there is anything in *schema*."""
    return bool(await tx.fetch_all(CONTENT, schema=schema))


async def remove_schema(tx: Tx, schema: str, name: str) -> None:
    """Drop our tables in *schema*, and the schema: never with what others have there, and not while jobs run.

    Nobody can claim between the look and the end: the lock is kept.
    """
    jobs = f'"{schema}"."holdfast_job"'
    if await tx.fetch_all(FIND_JOBS, schema=schema):
        await tx.execute(f"LOCK TABLE {jobs} IN ACCESS EXCLUSIVE MODE")
        refuse_running(name, await tx.fetch_all(LEASES.replace("holdfast_job", jobs)))
    await tx.execute(f'DROP VIEW IF EXISTS "{schema}"."holdfast_jobs"')
    for table in TABLES:
        if table != "jobs":
            await tx.execute(f'DROP TABLE IF EXISTS "{schema}"."holdfast_{table}"')
    await tx.execute(f'DROP SCHEMA IF EXISTS "{schema}" RESTRICT')


RIGHTS = "SELECT, INSERT, UPDATE, DELETE"
LACKING = """
    SELECT pg_class.relname, pg_class.relkind
    FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = $schema AND starts_with(relname, 'holdfast_')
        AND (relkind = 'S' AND NOT has_sequence_privilege(CAST(:role AS name), pg_class.oid, 'USAGE')
            OR relkind IN ('r', 'v') AND relname $any(ours: text) AND NOT (
                has_table_privilege(CAST(:role AS name), pg_class.oid, 'SELECT')
                AND has_table_privilege(CAST(:role AS name), pg_class.oid, 'INSERT')
                AND has_table_privilege(CAST(:role AS name), pg_class.oid, 'UPDATE')
                AND has_table_privilege(CAST(:role AS name), pg_class.oid, 'DELETE')))"""


async def grant(tx: Tx, role: str) -> None:
    """Let *role* use the tables here; of what it may do already, nothing is granted again."""
    ((is_own, quoted),) = await tx.fetch_all(
        "SELECT current_user = CAST(:role AS text), CAST(quote_ident(CAST(:role AS text)) AS text)", role=role
    )
    if is_own:
        return
    lacking = await tx.fetch_all(LACKING, ours=OURS, role=role)
    await tx.execute(f"GRANT USAGE ON SCHEMA $schema_name TO {quoted}")
    tables = [f"$schema_name.{name}" for name, kind in lacking if kind != "S"]
    sequences = [f"$schema_name.{name}" for name, kind in lacking if kind == "S"]
    if tables:
        await tx.execute(f"GRANT {RIGHTS} ON {', '.join(tables)} TO {quoted}")
    if sequences:
        await tx.execute(f"GRANT USAGE ON SEQUENCE {', '.join(sequences)} TO {quoted}")
