"""The places of tenants beside a file: a file each, in a directory of theirs."""

from __future__ import annotations

import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.database import migrations
from holdfast.database.sqlite.store import SqliteStore
from holdfast.errors import Unavailable
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.tenancy import directory_of, file_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.database.tx import Operation, RemovePlace, Tx
    from holdfast.tenancy import TenantInfo

COMPANIONS = ("-wal", "-shm", "-journal", "-holdfast-lock")
OF_WORKERS = "-holdfast-worker-"
UNREADABLE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqlitePlaces:
    """The files of tenants beside that of *control*; only who owns them can reach them."""

    def __init__(self, control: SqliteStore, settings: Settings, runtime: Runtime) -> None:
        self._control = control
        self._settings = settings
        self._runtime = runtime
        self._directory = Path(directory_of(control.path))

    def place(self, name: str) -> str:
        """Name the file of a tenant."""
        return file_of(name)

    def settings(self, name: str) -> Settings:
        """Give the settings of a tenant's face."""
        return self._settings.model_copy(update={"database": str(self._path(name)), "tenants": False})

    def store(self, name: str) -> SqliteStore:
        """Make a store for a tenant, whose file must be there."""
        return SqliteStore(self._path(name), settings=self._settings, runtime=self._runtime, creates=False)

    @contextmanager
    def maker(self) -> Iterator[SqlitePlaces]:
        """Have what makes and removes places."""
        yield self

    def make(self, name: str, *, anew: bool = True) -> list[str]:
        """Make the file of a tenant, if *anew*, or bring it up to date; return the names of the steps taken."""
        try:
            self._directory.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise Unavailable(
                f"cannot create {self._directory} ({error.strerror}); let this user write beside the database"
            ) from error
        store = self.store(name)
        try:
            return store.migrate_sync(anew=anew)
        finally:
            store.close_sync()

    def migrate_control(self) -> list[str]:
        """Bring the control place up to date; return the names of the steps taken."""
        return self._control.migrate_sync()

    def strangers(self, name: str) -> list[str]:
        """Name what is in the file of a tenant and not ours; nothing, if it cannot be read."""
        store = self.store(name)
        try:
            return store.look_sync(migrations.find_strangers)
        except Exception:  # noqa: BLE001 - it is looked at again before it is removed
            return []
        finally:
            store.close_sync()

    def is_taken(self, name: str) -> bool:
        """Tell whether there is a file of this name with something in it: who connects to none makes an empty one."""
        if not self._path(name).exists():
            return False
        store = self.store(name)
        try:
            return store.look_sync(migrations.has_anything)
        except Exception:  # noqa: BLE001 - what cannot be read is somebody's
            return True
        finally:
            store.close_sync()

    def remove(self, name: str, end_dropping: Operation[[TenantInfo, RemovePlace], None], dropped: TenantInfo) -> None:
        """Remove the file of a tenant, and those beside it; again, if it was interrupted."""

        async def remove(_: Tx) -> None:
            self._remove(name)

        self._control.run_sync(end_dropping, dropped, remove)

    def _remove(self, name: str) -> None:
        """Remove the files; first the tables, in one transaction with the look whether jobs run, or others have tables.

        So who has the file open claims nothing more. A file that cannot be read any more has nothing to claim.
        """
        path = self._path(name)
        if path.exists():
            try:
                self._drop_tables(name)
            except Unavailable as error:
                if getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF not in UNREADABLE:
                    raise
        beside = [Path(f"{path}{end}") for end in COMPANIONS]
        for each in (path, *beside, *self._directory.glob(f"{path.name}{OF_WORKERS}*")):
            try:
                each.unlink(missing_ok=True)
            except OSError as error:
                raise Unavailable(f"cannot remove {each} ({error.strerror}); let this user do so") from error

    def _drop_tables(self, name: str) -> None:
        store = SqliteStore(self._path(name), settings=self._settings, runtime=self._runtime)
        try:
            store.run_sync(migrations.drop_unused, name)
        finally:
            store.close_sync()

    def _path(self, name: str) -> Path:
        return self._directory / self.place(name)
