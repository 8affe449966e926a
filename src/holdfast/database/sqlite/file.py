"""The database file itself: what must be so before we use it, and how connections to it are made.

It may not lie on a network file system, where SQLite's locks and shared memory do not hold. The parsing of mount tables
is pure; `network_file_system` is the only one that looks at this machine.
"""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast
from urllib.parse import quote

from holdfast.database.sqlite.guarded import GuardedConnection
from holdfast.errors import InvalidSettings, Unavailable
from holdfast.settings import address_complaint

OLDEST_SQLITE = (3, 35)  # the first with RETURNING
BESIDE = ("-wal", "-shm")  # SQLite's own, there while anybody has the database open

# 9p is left out: sandboxes and WSL have it as their only disk, and it is local there
NETWORK = frozenset({
    "nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afpfs", "afs", "ncpfs", "coda", "ceph",
    "glusterfs", "lustre", "beegfs", "gpfs", "ocfs2", "gfs2", "webdav", "davfs", "macfuse", "fuse.sshfs",
    "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "fuse.davfs", "fuse.gcsfuse", "fuse.blobfuse2",
})  # fmt: skip

MAC_LINE = re.compile(r"^.* on (?P<point>/.*) \((?P<kind>[^,)]+)", re.MULTILINE)


class DatabaseFile:
    """A SQLite file at *path*; *clock* replaces the database's own where a simulation has one."""

    def __init__(self, path: str, synchronous: Literal["full", "normal"], clock: Callable[[], int] | None) -> None:
        if (complaint := address_complaint(path)) is not None:
            raise InvalidSettings(complaint)
        self.path = os.path.realpath(path)  # two names of one file share one lock
        self._synchronous = synchronous
        self._clock = clock
        self._identity: tuple[int, int] | None = None
        self._beside: dict[str, tuple[int, int] | None] = {}
        self._is_torn = False

    def prepare(self, *, creates: bool = True) -> bool:
        """Create the file if there is none, and raise unless it can serve as a database here; tell if it is new.

        Where it *creates* nothing, it raises if there is none.
        """
        require_sqlite(sqlite3.sqlite_version_info)
        if not creates and identity(self.path) is None:
            raise Unavailable(f"the file {self.path} is gone; put it back")
        require_place(self.path)
        is_new = creates and _create(self.path)
        require_rights(self.path)
        self._identity = identity(self.path)
        self._beside, self._is_torn = {}, False
        return is_new

    def check(self) -> None:
        """Raise if the file is no longer the one that was opened: what is written to that goes nowhere."""
        if self._identity is not None and identity(self.path) != self._identity:
            raise Unavailable(
                f"{self.path} was removed or replaced while in use; put it back, or close and open hf again"
            )

    def check_beside(self) -> None:
        """Raise if SQLite's own files are no longer those that the connection has open: who comes next sees others.

        Once that is found, it stays so until they are put back or the store is opened anew: a connection that is
        closed meanwhile does not make it good.
        """
        changed = [path for path, known in self._beside.items() if identity(path) != known]
        self._is_torn = bool(changed)
        if changed:
            raise Unavailable(
                f"{' and '.join(changed)} was removed or replaced while in use, so new writes would be lost; put "
                f"it back, or end every process that uses {self.path} and start again"
            )

    def check_newcomer(self) -> None:
        """Raise if a connection that is opened now would make SQLite's own files anew, in place of those in use."""
        if changed := [path for path, known in self._beside.items() if identity(path) != known]:
            raise Unavailable(f"{' and '.join(changed)} was removed or replaced while in use; put it back")

    def remember_beside(self) -> None:
        """Take SQLite's own files as they are for those that our connection, which is new, has open."""
        if not self._beside:
            self._beside = {self.path + name: identity(self.path + name) for name in BESIDE}

    def forget_beside(self) -> None:
        """Take note that our connection was closed: the last one to go takes the files along."""
        if not self._is_torn:
            self._beside = {}

    def connect_to_write(self, wait_seconds: float) -> sqlite3.Connection:
        """Open the connection that writes; it waits *wait_seconds* for programs that do not know our lock."""
        connection = self._connect(wait_seconds, "PRAGMA journal_mode = WAL", self._durability)
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            connection.close()
            raise Unavailable(f"{self.path} cannot be put into WAL mode (it stays {mode!r}); use a local disk")
        return connection

    def connect_for_block(self, wait_seconds: float) -> GuardedConnection:
        """Open a connection that writes and that a user's code may be given; the file is in WAL mode by now."""
        connection = self._connect(wait_seconds, self._durability, factory=GuardedConnection)
        return cast("GuardedConnection", connection)

    def connect_to_read(self, wait_seconds: float) -> sqlite3.Connection:
        """Open a connection that cannot write."""
        return self._connect(wait_seconds, "PRAGMA query_only = 1")

    @property
    def _durability(self) -> str:
        return f"PRAGMA synchronous = {self._synchronous}"

    def _connect(
        self, wait_seconds: float, *pragmas: str, factory: type[sqlite3.Connection] = sqlite3.Connection
    ) -> sqlite3.Connection:
        require_rights(self.path)  # SQLite would open it to read, and make a -shm that nobody may write, ever after
        connection = sqlite3.connect(
            f"file:{quote(self.path)}?mode=rw",  # never creates a file: that is `prepare`'s
            uri=True,
            timeout=wait_seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=256,
            factory=factory,
        )
        if self._clock is not None:
            connection.create_function("holdfast_now", 0, self._clock)
        try:
            for pragma in ("PRAGMA mmap_size = 0", *pragmas, "PRAGMA schema_version"):  # M6; some builds map by default
                connection.execute(pragma).close()
        except sqlite3.Error:
            sqlite3.Connection.close(connection)
            self._check_opened()
            raise
        try:
            self._check_opened()
        except Unavailable:
            sqlite3.Connection.close(connection)
            raise
        return connection

    def _check_opened(self) -> None:
        """Raise if a file was replaced after the caller looked: the connection would be to another database, for good.

        By then `PRAGMA schema_version` has opened SQLite's own files as well.
        """
        self.check()
        self.check_newcomer()


def require_sqlite(version: tuple[int, ...]) -> None:
    """Raise unless SQLite has what our statements use."""
    if version < OLDEST_SQLITE:
        found, needed = (".".join(map(str, each)) for each in (version, OLDEST_SQLITE))
        raise Unavailable(f"SQLite {found} is too old; use a Python that was built with SQLite {needed} or newer")
    try:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.execute("SELECT json_array()")
    except sqlite3.OperationalError as error:
        raise Unavailable(
            "this SQLite has no JSON functions; use a Python that was built with a newer SQLite"
        ) from error


def require_place(path: str) -> None:
    """Raise unless a database can live at the absolute *path*."""
    directory = Path(path).parent
    if not directory.is_dir():
        raise InvalidSettings(
            f"cannot create {path}: the directory {directory} does not exist; run `mkdir -p {directory}`, or give "
            "another path"
        )
    if Path(path).is_dir():
        raise InvalidSettings(f"{path} is a directory; give the path of a file")
    if (kind := network_file_system(path)) is not None:
        raise InvalidSettings(
            f"{path} is on a network file system ({kind}), where SQLite's locks do not hold; "
            f"use a local disk or PostgreSQL"
        )


def require_rights(path: str) -> None:
    """Raise if the file is there and this user may not read and write it."""
    if os.access(path, os.F_OK) and not os.access(path, os.R_OK | os.W_OK):
        raise Unavailable(f"this user may not write to {path}; change its permissions or owner")


def identity(path: str) -> tuple[int, int] | None:
    """Tell the file at *path* from any other; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116  every write comes by here
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(
            f"this user cannot reach {path} ({error.strerror}); change the permissions of its directory"
        ) from error
    return found.st_dev, found.st_ino


def _create(path: str) -> bool:
    """Create the file for its owner alone; one that exists is the user's, and keeps its mode. Tell if it is new.

    It is never opened otherwise but by SQLite, whose locks closing it would take away.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return False
    except OSError as error:
        raise Unavailable(f"cannot create {path} ({error.strerror}); let this user write to its directory") from error
    return True


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is mounted, and of what kind it is."""

    point: str
    kind: str


def network_file_system(path: str) -> str | None:
    """Name the network file system that the absolute *path* lies on; None if it is local or unknown."""
    try:
        kind = kind_at(path, _read_mounts())
    except (OSError, subprocess.SubprocessError):
        return None
    return kind if kind in NETWORK else None


def kind_at(path: str, mounts: Iterable[Mount]) -> str | None:
    """Give the kind of file system that holds *path*: the longest mount point wins, of equals the later."""
    best: Mount | None = None
    for mount in mounts:
        if _is_below(path, mount.point) and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best.kind if best else None


def parse_linux(mountinfo: str) -> list[Mount]:
    """Read the text of `/proc/self/mountinfo`."""
    mounts = []
    for line in mountinfo.splitlines():
        place, _, system = line.partition(" - ")
        if system:
            mounts.append(Mount(_unescape(place.split()[4]), system.split()[0]))
    return mounts


def parse_mac(output: str) -> list[Mount]:
    """Read what the command `mount` prints on macOS."""
    return [Mount(match["point"], match["kind"]) for match in MAC_LINE.finditer(output)]


def _read_mounts() -> list[Mount]:
    if sys.platform == "darwin":
        output = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=True)
        return parse_mac(output.stdout)
    return parse_linux(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescape(point: str) -> str:
    """Undo the kernel's octal escapes for blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
