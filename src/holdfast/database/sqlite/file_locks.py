"""Locks on files, between processes; the kernel frees each when its holder dies, however it dies.

`flock` and not `fcntl`: a record lock is gone as soon as the process closes the file anywhere (M23). The lock
belongs to the open file description, which a forked child shares; so a child closes it, and never unlocks it.

`FileLock` is the right to write. The kernel wakes those who wait in their order (M5). A bare loop of BEGIN and COMMIT
can still come back before the sleeper has woken (worst wait beside two of them: 140 ms); a second `flock` as a
turnstile mends that (3.5 ms), but between stores it changes nothing measurable, as a contended writer hops to its
thread anyway. So there is one.

`HeldLock` says that its holder lives. It is taken on a file of the holder's own; whoever gets it, on the very file that
the holder wrote down (device, inode), knows the holder dead. A forked child would keep it past its parent's death: so a
child closes it at once. Nobody else opens the file for longer than a question takes.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from holdfast.database.sqlite.fork import watch_forks
from holdfast.errors import Unavailable


class FileLock:
    """An exclusive lock between processes on the file *path*, which also says who took it last.

    The file is created when first needed, with mode and owner of *model*, as SQLite does with its own. It is not
    for two threads at once.
    """

    def __init__(self, path: str, model: str) -> None:
        self._path = path
        self._model = model
        self._descriptor: int | None = None

    def acquire(self, how: int = fcntl.LOCK_EX) -> None:
        """Wait until the lock is ours."""
        while True:
            descriptor = self._open()
            try:
                fcntl.flock(descriptor, how)
            except BlockingIOError:
                raise
            except OSError as error:
                raise Unavailable(
                    f"{self._path} cannot be locked ({error.strerror}); look into the system's log"
                ) from error
            if os.fstat(descriptor).st_nlink > 0:
                break
            self.close()  # the file was removed: a newcomer would make and lock another one beside it
        # for people; on a full disk that may fail, and the lock is ours all the same
        ours = b"%10d\n" % os.getpid()
        with suppress(OSError):
            # only if need be: a file made dirty costs the next fsync of the database 100 µs
            if os.pread(descriptor, len(ours), 0) != ours:
                os.pwrite(descriptor, ours, 0)

    __enter__ = acquire

    def take_if_free(self) -> bool:
        """Take the lock, unless somebody has it."""
        try:
            self.acquire(fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self, *_: object) -> None:
        """Let go."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    __exit__ = release

    def close(self) -> None:
        """Close the file; that frees the lock, unless another process shares the descriptor by a fork."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def last_holder(self) -> int | None:
        """Give the process that took the lock last; whether it still has it, this does not tell."""
        try:
            return int(Path(self._path).read_bytes())
        except (OSError, ValueError):
            return None

    def _open(self) -> int:
        if self._descriptor is None:
            try:
                self._descriptor = _open_like(self._path, Path(self._model).stat())
            except OSError as error:
                raise Unavailable(
                    f"{error.filename} cannot be opened ({error.strerror}); put it back if it was removed, or let this "
                    f"user write to its directory"
                ) from error
        return self._descriptor


def _open_like(path: str, model: os.stat_result) -> int:
    mode = stat.S_IMODE(model.st_mode) & 0o666
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    os.fchmod(descriptor, mode)
    if os.geteuid() == 0:  # what root leaves behind must not shut out the database's owner
        os.fchown(descriptor, model.st_uid, model.st_gid)
    return descriptor


class HeldLock:
    """A lock that this process holds, on a file of its own or on that of somebody who is dead."""

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor
        found = os.fstat(descriptor)
        self.device, self.inode = found.st_dev, found.st_ino
        watch_forks(self)

    def remove(self) -> None:
        """Remove the file, if it is still this one, and let go of the lock."""
        if is_file(self.path, self.device, self.inode):
            with suppress(OSError):  # on a disk that has become read-only it stays, and nobody asks for it any more
                Path(self.path).unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of the lock."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def before_fork(self) -> None:
        """Nothing is to be done."""

    def after_fork_in_parent(self) -> None:
        """Nothing is to be done."""

    def after_fork_in_child(self) -> None:
        """Share it no longer; to close is not to unlock, while the parent has it open."""
        self.close()


def take_liveness_lock(path: str, model: str) -> HeldLock:
    """Make the file *path*, with the mode of *model*, and lock it; it must not exist."""
    mode = stat.S_IMODE(Path(model).stat().st_mode) & 0o666
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return HeldLock(path, descriptor)


def take_of_the_dead(path: str, device: int, inode: int) -> HeldLock | None:
    """Lock the file *path* if it is the one that is meant and nobody holds it; None proves nothing."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock = HeldLock(path, descriptor)
    except OSError:
        os.close(descriptor)
        return None
    if (lock.device, lock.inode) != (device, inode):
        lock.close()
        return None
    return lock


def is_file(path: str, device: int, inode: int) -> bool:
    """Tell whether the file at *path* is the one of this device and inode."""
    try:
        found = Path(path).lstat()
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (device, inode)
