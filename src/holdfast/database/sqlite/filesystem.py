"""Tells whether a path lies on a network file system, where SQLite's locks and shared memory do not hold.

The parsing is pure; `network_file_system` is the only one that looks at this machine.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# 9p is left out: sandboxes and WSL have it as their only disk, and it is local there
NETWORK = frozenset({
    "nfs", "nfs3", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afpfs", "afs", "ncpfs", "coda", "ceph",
    "glusterfs", "lustre", "beegfs", "gpfs", "ocfs2", "gfs2", "webdav", "davfs", "macfuse", "fuse.sshfs",
    "fuse.glusterfs", "fuse.ceph", "fuse.s3fs", "fuse.rclone", "fuse.davfs", "fuse.gcsfuse", "fuse.blobfuse2",
})  # fmt: skip

MAC_LINE = re.compile(r"^.* on (?P<point>/.*) \((?P<kind>[^,)]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mount:
    """Where a file system is mounted, and of what kind it is."""

    point: str
    kind: str


def network_file_system(path: str) -> str | None:
    """Name the network file system that the absolute *path* lies on; None if it is local or unknown."""
    try:
        kind = kind_at(path, _mounts_here())
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


def _mounts_here() -> list[Mount]:
    if sys.platform == "darwin":
        told = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=True)
        return parse_mac(told.stdout)
    return parse_linux(Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape"))


def _is_below(path: str, point: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _unescape(point: str) -> str:
    """Undo the kernel's octal escapes for blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)
