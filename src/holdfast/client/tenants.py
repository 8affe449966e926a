"""`hf.tenants`: makes, suspends, drops, lists and migrates tenants.

What makes or removes a place is blocking and rare: the async handle calls it in a thread. Each of its steps is a commit
of its own, and may be done twice: whoever was interrupted calls the same again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from holdfast import current_block
from holdfast.client.handles import write_alone
from holdfast.client.tenant_faces import F, TenantFaces
from holdfast.client.tenant_store import bring_up_to_date
from holdfast.client.verbs import asked_by
from holdfast.database import migrations
from holdfast.database.tx import Blocking, Runner, Store, drive
from holdfast.errors import HoldfastError, InvalidInput, TenantExists, TenantInUse, TenantNotFound, got
from holdfast.logging import reason_of
from holdfast.models import Asked
from holdfast.runtime import Runtime
from holdfast.store import tenants
from holdfast.tenancy import MigrationProgress, TenantInfo, TenantsMigrated, check_host, check_tenant_name
from holdfast.threads import ThreadPool

if TYPE_CHECKING:
    from holdfast.database import PlaceMaker

MOST_PARALLEL = 50


class TenantVerbs:
    """What both handles do, written once; *runner* is the control place, *runner_of* gives a tenant's own."""

    def __init__(self, faces: TenantFaces[F], runner: Runner, runner_of: Callable[[Store], Runner]) -> None:
        self._faces = faces
        self._runner = runner
        self._runner_of = runner_of

    async def get(self, name: str) -> TenantInfo:
        """Read one."""
        return await self._runner.read(tenants.get_tenant, self._checked(name))

    async def list_all(self) -> list[TenantInfo]:
        """Read all."""
        self._faces.registry  # noqa: B018 - refuses where there are no tenants
        return await self._runner.read(tenants.list_tenants)

    async def suspend(self, name: str, by: str | None, why: str | None) -> TenantInfo:
        """Suspend one."""
        asked = asked_by(by, why)
        found = await write_alone(self._runner, "hf.tenants.suspend", tenants.suspend, self._checked(name), asked)
        return self._faces.registry.note(name, found)

    async def resume(self, name: str, by: str | None, why: str | None) -> TenantInfo:
        """Resume one, and have its workers look."""
        asked = asked_by(by, why)
        found = await write_alone(self._runner, "hf.tenants.resume", tenants.resume, self._checked(name), asked)
        self._faces.registry.note(name, found)
        with suppress(Exception):  # its place may be broken; its workers look by themselves, a little later
            await self._runner_of(self._faces.store(name).place).run(tenants.wake)
        return found

    def _checked(self, name: str) -> str:
        self._faces.registry  # noqa: B018 - refuses where there are no tenants
        return check_tenant_name(name)


class TenantMaker:
    """Makes, removes and migrates tenants, whose list is in *store*; blocking."""

    def __init__(self, faces: TenantFaces[F], store: Store) -> None:
        self._faces = faces
        self._store = store

    def create(self, name: str, host: str | None, asked: Asked) -> TenantInfo:
        """Write the tenant down, make its place, and let it be used: three commits, each of which may be the last."""
        registry, store = self._faces.registry, self._store
        place, creator = registry.places.place(name), registry.new_creator()
        with registry.places.maker() as maker:
            self._refuse_taken(maker, name, place)
            store.run_sync(tenants.begin_creating, name, place, creator, host, asked)
            maker.make(name)
        return registry.note(name, store.run_sync(tenants.end_creating, name, creator, asked))

    def _refuse_taken(self, maker: PlaceMaker, name: str, place: str) -> None:
        """Raise `TenantExists` if something is in the place and no tenant has it: it may be somebody else's jobs."""
        store = self._faces.registry.store
        is_new = store.read_sync(tenants.find_tenant, name) is None
        # the second look: another call may just have made it
        if is_new and maker.is_taken(name) and store.read_sync(tenants.find_tenant, name) is None:
            raise TenantExists(
                name, f"tenant {name!r} was not created: {place!r} is there already, and no tenant's; move or remove it"
            )

    def drop(self, name: str, asked: Asked) -> None:
        """Let the tenant be used no more, remove its place, and forget it: three commits, as above."""
        registry, store = self._faces.registry, self._store
        before = store.read_sync(tenants.get_tenant, name)
        with registry.places.maker() as maker:
            if before.state == "suspended":
                migrations.refuse_strangers(name, maker.strangers(name))
                self._refuse_used(name)
            try:
                dropped = store.run_sync(tenants.begin_dropping, name, asked)
            finally:
                registry.forget(name)
            self._faces.store(name).close_sync()
            try:
                maker.remove(name, tenants.end_dropping, dropped)
            except HoldfastError:
                if before.state == "suspended" and self._standing(name):
                    store.run_sync(tenants.stop_dropping, before)
                raise

    def _refuse_used(self, name: str) -> None:
        """Raise `TenantInUse` if jobs run; it is looked at again later, but by then workers know of the drop."""
        place = self._faces.registry.places.store(name)
        try:
            place.read_sync(migrations.refuse_used, name)
        except TenantInUse:
            raise
        except Exception:  # noqa: BLE001 - what is broken can be dropped
            return
        finally:
            place.close_sync()

    def _standing(self, name: str) -> bool:
        """Tell whether its tables are still there, all of them."""
        place = self._faces.registry.places.store(name)
        try:
            return place.standing_sync().schema > 0
        except Exception:  # noqa: BLE001 - whatever it is, nobody knows
            return False
        finally:
            place.close_sync()

    def migrate(
        self, names: Sequence[str] | None, parallel: int, on_progress: Callable[[MigrationProgress], object] | None
    ) -> TenantsMigrated:
        """Bring tenants up to date, *parallel* at a time; one that fails keeps no other from it."""
        registry = self._faces.registry
        wanted = self._wanted(names)
        result = TenantsMigrated()
        with registry.places.maker() as maker, ThreadPool(parallel, "holdfast-migrate") as pool:
            under_way = {pool.submit(self._migrate_one, maker, name): name for name in wanted}
            for future in as_completed(under_way):
                name = under_way[future]
                error = future.exception()
                if error is None:
                    result.taken[name] = tuple(future.result())
                else:
                    result.failed[name] = str(error) if isinstance(error, HoldfastError) else reason_of(error)
                if on_progress is not None:
                    done = len(result.taken) + len(result.failed)
                    taken, failure = result.taken.get(name, ()), result.failed.get(name)
                    on_progress(MigrationProgress(name, taken, failure, done, len(wanted)))
        return result

    def _migrate_one(self, maker: PlaceMaker, name: str) -> list[str]:
        return bring_up_to_date(self._faces.registry.places, maker, name)

    def _wanted(self, names: Sequence[str] | None) -> list[str]:
        found = {each.name: each for each in self._faces.registry.store.read_sync(tenants.list_tenants)}
        if names is None:
            return [each.name for each in found.values() if each.state in ("active", "suspended")]
        wanted = list(dict.fromkeys(map(check_tenant_name, names)))
        for name in wanted:
            if name not in found:
                raise TenantNotFound(name)
            tenants.require_usable(found[name])
        return wanted


def _check_create(name: str, host: str | None, by: str | None, why: str | None) -> tuple[str, str | None, Asked]:
    current_block.refuse_alone("hf.tenants.create")
    return check_tenant_name(name), None if host is None else check_host(host), asked_by(by, why)


def _check_drop(name: str, confirm: str, by: str | None, why: str | None) -> tuple[str, Asked]:
    current_block.refuse_alone("hf.tenants.drop")
    if check_tenant_name(name) != confirm:
        raise InvalidInput(
            f"confirm must be the name of the tenant again, {got(confirm)}; write hf.tenants.drop({name!r}, "
            f"confirm={name!r}): all its jobs are lost",
            "confirm",
        )
    return name, asked_by(by, why)


def _check_migrate(names: Iterable[str] | None, parallel: object) -> tuple[list[str] | None, int]:
    current_block.refuse_alone("hf.tenants.migrate")
    if isinstance(parallel, bool) or not isinstance(parallel, int) or not 1 <= parallel <= MOST_PARALLEL:
        raise InvalidInput(f"parallel must be a whole number from 1 to {MOST_PARALLEL}, {got(parallel)}", "parallel")
    if isinstance(names, str):
        raise InvalidInput(f"names must be a list; write names=[{names!r}]", "names")
    if names is not None and not isinstance(names, Iterable):
        raise InvalidInput(f"names must be a list of names, {got(names)}; leave it out for all tenants", "names")
    return None if names is None else list(names), parallel


class TenantsHandle:
    """The tenants: a schema or a file for each; as `hf.tenants`."""

    def __init__(self, faces: TenantFaces[F], store: Store, runtime: Runtime) -> None:
        self._verbs = TenantVerbs(faces, store, lambda each: each)
        self._maker = TenantMaker(faces, store)
        self._runtime = runtime

    async def create(
        self, name: str, *, host: str | None = None, by: str | None = None, why: str | None = None
    ) -> TenantInfo:
        """Make a tenant: its schema or file, with all tables; *host* is the host name by which HTTP finds it.

        If it was interrupted, call it again with the same name. Raises `TenantExists`, and `MissingRight` if the role
        may make no schema: see `migrations_url`.
        """
        return await self._runtime.threads.call(partial(self._maker.create, *_check_create(name, host, by, why)))

    async def suspend(self, name: str, *, by: str | None = None, why: str | None = None) -> TenantInfo:
        """Have nothing started and nothing claimed in a tenant until it is resumed; what runs ends, and reads work.

        Other processes notice it within five seconds. Raises `TenantNotFound`.
        """
        return await self._verbs.suspend(name, by, why)

    async def resume(self, name: str, *, by: str | None = None, why: str | None = None) -> TenantInfo:
        """Take `suspend` back; jobs that wait are claimed again. Raises `TenantNotFound`."""
        return await self._verbs.resume(name, by, why)

    async def drop(self, name: str, *, confirm: str, by: str | None = None, why: str | None = None) -> None:
        """Remove a suspended tenant with all its jobs; *confirm* is its name again.

        If it was interrupted, call it again. Raises `TenantInUse` if it is not suspended, if jobs run in it, or if its
        schema or file holds tables that Holdfast has not made.
        """
        await self._runtime.threads.call(partial(self._maker.drop, *_check_drop(name, confirm, by, why)))

    async def list(self) -> Tenants:
        """List all tenants by name, those that are being made or dropped too."""
        return await self._verbs.list_all()

    async def get(self, name: str) -> TenantInfo:
        """Read a tenant, or raise `TenantNotFound`."""
        return await self._verbs.get(name)

    async def migrate(
        self,
        names: Iterable[str] | None = None,
        *,
        parallel: int = 4,
        on_progress: Callable[[MigrationProgress], object] | None = None,
    ) -> TenantsMigrated:
        """Migrate all tenants, or those of *names*, to this release, *parallel* at a time; migrate `hf` itself first.

        One that fails is in `failed`, with the reason, and keeps no other from being migrated; call it again to try
        these. *on_progress* is called after each tenant, in another thread.
        """
        wanted, most = _check_migrate(names, parallel)
        return await self._runtime.threads.call(partial(self._maker.migrate, wanted, most, on_progress))


Tenants = list[TenantInfo]


class BlockingTenantsHandle:
    """The tenants: a schema or a file for each; as `hf.sync.tenants`."""

    def __init__(self, faces: TenantFaces[F], store: Store) -> None:
        self._verbs = TenantVerbs(faces, Blocking(store), Blocking)
        self._maker = TenantMaker(faces, store)

    def create(
        self, name: str, *, host: str | None = None, by: str | None = None, why: str | None = None
    ) -> TenantInfo:
        """Make a tenant: its schema or file, with all tables; *host* is the host name by which HTTP finds it.

        If it was interrupted, call it again with the same name. Raises `TenantExists`, and `MissingRight` if the role
        may make no schema: see `migrations_url`.
        """
        return self._maker.create(*_check_create(name, host, by, why))

    def suspend(self, name: str, *, by: str | None = None, why: str | None = None) -> TenantInfo:
        """Have nothing started and nothing claimed in a tenant until it is resumed; what runs ends, and reads work.

        Other processes notice it within five seconds. Raises `TenantNotFound`.
        """
        return drive(self._verbs.suspend(name, by, why))

    def resume(self, name: str, *, by: str | None = None, why: str | None = None) -> TenantInfo:
        """Take `suspend` back; jobs that wait are claimed again. Raises `TenantNotFound`."""
        return drive(self._verbs.resume(name, by, why))

    def drop(self, name: str, *, confirm: str, by: str | None = None, why: str | None = None) -> None:
        """Remove a suspended tenant with all its jobs; *confirm* is its name again.

        If it was interrupted, call it again. Raises `TenantInUse` if it is not suspended, if jobs run in it, or if its
        schema or file holds tables that Holdfast has not made.
        """
        self._maker.drop(*_check_drop(name, confirm, by, why))

    def list(self) -> Tenants:
        """List all tenants by name, those that are being made or dropped too."""
        return drive(self._verbs.list_all())

    def get(self, name: str) -> TenantInfo:
        """Read a tenant, or raise `TenantNotFound`."""
        return drive(self._verbs.get(name))

    def migrate(
        self,
        names: Iterable[str] | None = None,
        *,
        parallel: int = 4,
        on_progress: Callable[[MigrationProgress], object] | None = None,
    ) -> TenantsMigrated:
        """Migrate all tenants, or those of *names*, to this release, *parallel* at a time; migrate `hf` itself first.

        One that fails is in `failed`, with the reason, and keeps no other from being migrated; call it again to try
        these. *on_progress* is called after each tenant, in another thread.
        """
        return self._maker.migrate(*_check_migrate(names, parallel), on_progress)
