"""A lock that says that its holder lives: the kernel frees it when the process dies, however it dies.

`flock`, for the reasons that `filelock` gives. It is taken on a file of the holder's own; whoever gets it, on the very
file that the holder wrote down (device, inode), knows the holder dead. A forked child shares the lock and would keep it
past its parent's death: so a child closes it at once. Nobody else opens the file for longer than a question takes.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from holdfast.database.sqlite.fork import watch_forks


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


def take(path: str, model: str) -> HeldLock:
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
