"""Where a temporary PostgreSQL keeps its files: in a directory of its own that its user can reach."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from holdfast.testing.identity import Identity

NEEDED_BYTES = 1 << 30


def make_directory(identity: Identity, memory: Path | None) -> Path | None:
    """Make a directory on a disk, or rather in *memory*; answer `None` if there is no room for one.

    It is ours, and so are the files in it; only `server` below it belongs to *identity*.
    """
    place = next((place for place in places(memory) if _is_usable(place, identity)), None)
    if place is None:
        return None
    directory = Path(tempfile.mkdtemp(prefix="holdfast-postgres-", dir=place))
    if identity.uid is not None:
        directory.chmod(0o711)
    (directory / "server").mkdir(mode=0o700)
    hand_over(directory / "server", identity)
    return directory


def places(memory: Path | None) -> list[Path]:
    """List the places to try, best first."""
    disks = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - mkdtemp makes it safe
    return [place.resolve() for place in ([memory, *disks] if memory else disks) if place.is_dir()]


def hand_over(path: Path, identity: Identity) -> None:
    """Give *path* to *identity*, if that is somebody else."""
    if identity.uid is not None:
        os.chown(path, identity.uid, identity.options["group"])


def _is_usable(place: Path, identity: Identity) -> bool:
    if not os.access(place, os.W_OK | os.X_OK) or shutil.disk_usage(place).free < NEEDED_BYTES:
        return False
    if os.statvfs(place).f_flag & getattr(os, "ST_NOEXEC", 0):  # a copy of the binaries may have to run here
        return False
    # the parents are not ours to open for a stranger
    return identity.uid is None or all(each.stat().st_mode & stat.S_IXOTH for each in (place, *place.parents))
