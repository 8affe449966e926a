"""The store of one tenant: it looks the tenant up before each operation, and runs it in the tenant's place.

What the registry says is kept for five seconds in a process. The place follows from the name by a rule, so nothing that
the registry says becomes part of SQL or of a path: a row that says another place is refused.

While a tenant is suspended nothing is claimed there: whoever asks for jobs by this store is given none. All else goes
on, so what runs ends as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from holdfast.database.hints import HintListener, OnHint
from holdfast.database.tx import Database, First, ListOperation, OpenTx, Operation, P, R, SchemaVersion, Store, T, Tx
from holdfast.errors import HoldfastError, NotMigrated, StoreError, TenantNotFound, TenantSuspended, Unavailable
from holdfast.runtime import Runtime
from holdfast.store import schedules, tenants
from holdfast.store.jobs import claiming, exchanging
from holdfast.store.jobs.claiming import Claims
from holdfast.store.schedules import Ticked
from holdfast.store.tenants import TenantView
from holdfast.tenancy import TenantInfo

if TYPE_CHECKING:
    from holdfast.database import PlaceMaker, TenantPlaces
    from holdfast.database.dialect import Dialect

KEPT_SECONDS = 5.0
NO_TABLE = ("42P01", "3F000")
"""What PostgreSQL says of a table or a schema that is not there."""


class Registry:
    """What this process knows of the tenants in the control place *store*."""

    def __init__(self, store: Store, places: TenantPlaces, runtime: Runtime) -> None:
        self.store = store
        self.places = places
        self.threads = runtime.threads
        self._monotonic = runtime.monotonic
        self._chance = runtime.chance
        self._known: dict[str, tuple[TenantInfo, float]] = {}

    def new_creator(self) -> str:
        """Name one call that creates a tenant, unlike any other."""
        return f"{self._chance.getrandbits(64):016x}"

    async def look(self, name: str, *, is_fresh: bool = False) -> TenantInfo:
        """Give a tenant that can be used, or raise `TenantNotFound`; *is_fresh* asks for what is there now."""
        known = None if is_fresh else self._kept(name)
        return known or self.note(name, await self.store.read(tenants.find_tenant, name))

    def look_sync(self, name: str, *, is_fresh: bool = False) -> TenantInfo:
        """Do the same, blocking."""
        known = None if is_fresh else self._kept(name)
        return known or self.note(name, self.store.read_sync(tenants.find_tenant, name))

    async def view(self, name: str) -> TenantView:
        """Read a tenant as it is now, and who serves it; or raise `TenantNotFound`."""
        return self._noted(name, await self.store.read(tenants.view, name))

    def view_sync(self, name: str) -> TenantView:
        """Do the same, blocking."""
        return self._noted(name, self.store.read_sync(tenants.view, name))

    def _noted(self, name: str, found: TenantView | None) -> TenantView:
        info = self.note(name, None if found is None else found.info)
        return TenantView(info, [] if found is None else found.hosts)

    def note(self, name: str, found: TenantInfo | None) -> TenantInfo:
        """Keep what was found, if it can be used; else raise `TenantNotFound`."""
        self._known.pop(name, None)
        if found is None:
            raise TenantNotFound(name)
        tenants.require_usable(found)
        if found.place != self.places.place(name):
            raise StoreError(
                f"the registry says that tenant {name!r} is in {found.place!r}, and its place can only be "
                f"{self.places.place(name)!r}; mend the row of holdfast_tenant"
            )
        self._known[name] = found, self._monotonic()
        return found

    def forget(self, name: str | None = None) -> None:
        """Forget one tenant, or all."""
        if name is None:
            self._known.clear()
        else:
            self._known.pop(name, None)

    def made_at(self, name: str) -> datetime | None:
        """Say when the tenant of this name was made, by what was last heard of it; None if nothing is kept."""
        known = self._known.get(name)
        return None if known is None else known[0].created_at

    def _kept(self, name: str) -> TenantInfo | None:
        known = self._known.get(name)
        if known is None or self._monotonic() - known[1] >= KEPT_SECONDS:
            return None
        return known[0]


class TenantStore:
    """The store of the tenant *name*, in the shape of any other."""

    dialect: Dialect
    database: Database

    def __init__(self, name: str, registry: Registry) -> None:
        self.name = name
        self.place = registry.places.store(name)
        """The store of its place, which looks nothing up."""
        self.dialect = self.place.dialect
        self.database = self.place.database
        self.control = registry.store
        """The store of the control place."""
        self._registry = registry
        self._made_at: datetime | None = None
        self._opened: datetime | None = None
        """When the tenant was made whose place is open: one that was dropped and made again has another."""

    async def admit(self) -> None:
        """Raise `TenantSuspended` if nothing may be started here; by what is known, if that is new enough."""
        _refuse_suspended(await self._registry.look(self.name))

    def admit_sync(self) -> None:
        """Do the same, blocking."""
        _refuse_suspended(self._registry.look_sync(self.name))

    async def row(self) -> TenantInfo:
        """Read the tenant's row as it is now, or raise `TenantNotFound`."""
        return await self._registry.look(self.name, is_fresh=True)

    def row_sync(self) -> TenantInfo:
        """Do the same, blocking."""
        return self._registry.look_sync(self.name, is_fresh=True)

    async def view(self) -> TenantView:
        """Read the tenant's row as it is now, and who serves it; or raise `TenantNotFound`."""
        return await self._registry.view(self.name)

    def view_sync(self) -> TenantView:
        """Do the same, blocking."""
        return self._registry.view_sync(self.name)

    async def run(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction."""
        found = await self._look()
        if operation in HELD and found.state == "suspended":
            found = await self.row()  # it may have been resumed, of which a hint has told
        try:
            return await self.place.run(_allowed(operation, found), *args, **kwargs)
        except Exception as error:
            await self._explain(error)
            raise

    def run_sync(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation* in a write transaction, blocking."""
        found = self._look_sync()
        if operation in HELD and found.state == "suspended":
            found = self.row_sync()
        try:
            return self.place.run_sync(_allowed(operation, found), *args, **kwargs)
        except Exception as error:
            self._explain_sync(error)
            raise

    async def read(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation*, which only reads, over one consistent view."""
        await self._look()
        try:
            return await self.place.read(operation, *args, **kwargs)
        except Exception as error:
            await self._explain(error)
            raise

    def read_sync(self, operation: Operation[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run *operation*, which only reads, over one consistent view, blocking."""
        self._look_sync()
        try:
            return self.place.read_sync(operation, *args, **kwargs)
        except Exception as error:
            self._explain_sync(error)
            raise

    async def gather(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation on *items*, sharing its commit with whoever else waits."""
        await self._look()
        try:
            return await self.place.gather(operation, items)
        except Exception as error:
            await self._explain(error)
            raise

    def gather_sync(self, operation: ListOperation[T, R], items: Sequence[T]) -> Sequence[R]:
        """Run a list operation on *items*, blocking."""
        self._look_sync()
        try:
            return self.place.gather_sync(operation, items)
        except Exception as error:
            self._explain_sync(error)
            raise

    async def begin(self, lease_seconds: float, first: First | None = None) -> OpenTx:
        """Open a transaction that stays open around a user's code."""
        await self._look()
        return await self.place.begin(lease_seconds, first)

    def begin_sync(self, lease_seconds: float, first: First | None = None) -> OpenTx:
        """Open a transaction that stays open around a user's code, blocking."""
        self._look_sync()
        return self.place.begin_sync(lease_seconds, first)

    async def open(self) -> None:
        """Look the tenant up, connect and check its schema."""
        found = await self._registry.look(self.name)
        if self._opened is not None:
            await self.place.close()
        try:
            await self.place.open()
        except NotMigrated as error:
            raise not_migrated(error, self.name) from error
        self._opened = found.created_at

    def open_sync(self) -> None:
        """Look the tenant up, connect and check its schema, blocking."""
        found = self._registry.look_sync(self.name)
        if self._opened is not None:
            self.place.close_sync()
        try:
            self.place.open_sync()
        except NotMigrated as error:
            raise not_migrated(error, self.name) from error
        self._opened = found.created_at

    async def close(self) -> None:
        """Let go of what is this tenant's alone; the next use opens it again."""
        self._opened = None
        await self.place.close()

    def close_sync(self) -> None:
        """Let go of what is this tenant's alone, blocking."""
        self._opened = None
        self.place.close_sync()

    async def migrate(self) -> list[str]:
        """Bring this tenant's place up to date; return the names of the steps taken."""
        await self._registry.look(self.name)
        return await self._registry.threads.call(self._make)

    def migrate_sync(self) -> list[str]:
        """Bring this tenant's place up to date, blocking."""
        self._registry.look_sync(self.name)
        return self._make()

    def _make(self) -> list[str]:
        with self._registry.places.maker() as maker:
            return bring_up_to_date(self._registry.places, maker, self.name)

    def watch(self, on_hint: OnHint, *, follows_log: bool = False) -> HintListener:
        """Have *on_hint* called whenever something may have grown here."""
        return self.place.watch(on_hint, follows_log=follows_log)

    def tidy(self) -> None:
        """Keep the files of the database small, where that is ours to do."""
        self.place.tidy()

    def standing_sync(self) -> SchemaVersion:
        """Tell how far the schema has been brought."""
        return self.place.standing_sync()

    @property
    def made_at(self) -> datetime | None:
        """When the tenant was made that has this name now, by what is known; one made anew has none of our rows."""
        self._made_at = self._registry.made_at(self.name) or self._made_at
        return self._made_at

    async def _look(self) -> TenantInfo:
        try:
            found = await self._registry.look(self.name)
        except TenantNotFound:
            if self._opened is not None:
                await self.close()
            raise
        if found.created_at != self._opened:
            await self.open()
        return found

    def _look_sync(self) -> TenantInfo:
        try:
            found = self._registry.look_sync(self.name)
        except TenantNotFound:
            if self._opened is not None:
                self.close_sync()
            raise
        if found.created_at != self._opened:
            self.open_sync()
        return found

    async def _explain(self, error: Exception) -> None:
        """Raise what *error* means, if it may come of a place that was removed; else leave it to the caller."""
        if self._may_be_gone(error):
            await self.row()
            self._refuse_gone(error)

    def _explain_sync(self, error: Exception) -> None:
        """Do the same, blocking."""
        if self._may_be_gone(error):
            self.row_sync()
            self._refuse_gone(error)

    def _refuse_gone(self, error: Exception) -> None:
        if (meant := in_words(error, self.name)) is not error:
            raise meant from error

    def _may_be_gone(self, error: Exception) -> bool:
        """Tell whether *error* may come of a place that was removed after we had looked."""
        return not isinstance(error, HoldfastError) or (self.database == "sqlite" and isinstance(error, Unavailable))


def tables_gone(name: str, detail: str = "") -> StoreError:
    """Say that somebody has removed the tables of a tenant, or some of them, as *detail* tells."""
    return StoreError(
        f"the tables of tenant {name!r} are gone{detail and f' ({detail})'}; put its schema or file back from a "
        "backup, or drop the tenant and create it again"
    )


def not_migrated(error: NotMigrated, name: str) -> StoreError:
    """Give what *error* means in the place of the tenant *name*, and what to do."""
    if error.found == 0:
        return tables_gone(name)
    if error.found is not None and error.found > error.needed:
        return NotMigrated(f"tenant {name!r} is not served: {error}", error.found, error.needed)
    return NotMigrated(
        f"tenant {name!r} is not served: its tables are at schema {error.found}, and this release needs "
        f"{error.needed}; run `holdfast migrate --tenants`, or call hf.tenants.migrate()",
        found=error.found,
        needed=error.needed,
    )


def in_words(error: Exception, name: str) -> Exception:
    """Give what *error* means in the place of the tenant *name*; itself, if it says that well enough."""
    if getattr(error, "sqlstate", None) not in NO_TABLE:
        return error
    return tables_gone(name, str(error).partition("\n")[0])


def bring_up_to_date(places: TenantPlaces, maker: PlaceMaker, name: str) -> list[str]:
    """Migrate a tenant; never make anew what is gone, or its jobs could not be put back any more."""
    store = places.store(name)
    try:
        found = store.standing_sync()
    finally:
        store.close_sync()
    if found.schema == 0:
        raise tables_gone(name)
    try:
        return maker.make(name, anew=False)  # it may be dropped after that look
    except NotMigrated as error:
        raise not_migrated(error, name) from error


def _refuse_suspended(found: TenantInfo) -> None:
    if found.state == "suspended":
        raise TenantSuspended(found.name, found.changed_by, found.reason)


async def _claim_nothing(tx: Tx, *args: Any, **kwargs: Any) -> list[Any]:
    return []


async def _admit_nothing(tx: Tx, *args: Any, **kwargs: Any) -> Claims:
    return Claims([], more=False)


async def _tick_nothing(tx: Tx, *args: Any, **kwargs: Any) -> Ticked:
    return Ticked(is_suspended=True)


async def _only_settle(tx: Tx, request: exchanging.Request) -> exchanging.Exchanged:
    return await exchanging.exchange(tx, replace(request, free=0, ahead=0))


HELD: dict[Callable[..., Coroutine[Any, Any, Any]], Callable[..., Coroutine[Any, Any, Any]]] = {
    claiming.claim: _claim_nothing,
    claiming.admit_and_claim: _admit_nothing,
    exchanging.exchange: _only_settle,
    exchanging.exchange_patiently: _only_settle,
    schedules.tick: _tick_nothing,
    schedules.tick_one: _tick_nothing,
}
"""What is done in a suspended tenant in the place of operations that would claim, or start the jobs of schedules."""


def _allowed(operation: Operation[P, R], found: TenantInfo) -> Operation[P, R]:
    return operation if found.state != "suspended" else HELD.get(operation, operation)
