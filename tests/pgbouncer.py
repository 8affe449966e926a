"""A PgBouncer for tests: the one of this machine, else Debian's package, unpacked into `.cache` and not installed.

The package is fetched once, by an ordinary user too. Where it cannot be had, the reason is kept for an hour, so that
a run without a network does not wait for one each time.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.testing.identity import Identity, find_identity
from holdfast.testing.keeper import Keeper
from holdfast.testing.place import hand_over, make_directory
from tests.acceptance.processes import until

CACHE = Path(__file__).parents[1] / ".cache"
FETCHED = CACHE / "pgbouncer"
WHY_NOT = CACHE / "pgbouncer-missing"
MEMORY = Path("/dev/shm")
FETCH_SECONDS = 60.0
RETRY_SECONDS = 3600.0
HOW_TO_GET_IT = f"`apt install pgbouncer`, or remove {WHY_NOT.relative_to(CACHE.parent)} and run again with a network"

# Each transaction gets another server connection, the one that has rested longest: what is left on one is missed, or
# met by somebody else, at once. Nothing is let pass that a fresh PgBouncer would not let pass.
SETTINGS = {
    "pool_mode": "transaction",
    "server_round_robin": "1",
    "min_pool_size": "4",
    "default_pool_size": "60",
    "max_client_conn": "1000",
    "auth_type": "scram-sha-256",
}


class PgBouncerUnavailable(RuntimeError):
    """There is no PgBouncer to be had here; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Program:
    """A PgBouncer that can be run, and in words where it is from."""

    path: Path
    libraries: Path | None
    version: str
    origin: str

    def copied_to(self, directory: Path) -> Program:
        """Copy what was fetched to where everybody may run it: `.cache` may lie in a private home."""
        if self.libraries is None:
            return self
        path, libraries = directory / "pgbouncer", directory / "libraries"
        shutil.copy(self.path, path)
        shutil.copytree(self.libraries, libraries)
        for each in (path, libraries, *libraries.iterdir()):
            each.chmod(0o755)
        return Program(path, libraries, self.version, self.origin)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that it needs."""
        libraries = {} if self.libraries is None else {"LD_LIBRARY_PATH": str(self.libraries)}
        return {"PATH": os.defpath, "LC_ALL": "C", **libraries}


@dataclass(frozen=True, slots=True)
class Place:
    """Where one runs: in which directory, in front of which server, and how."""

    directory: Path
    server_url: str
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class PgBouncer:
    """A PgBouncer that runs."""

    port: int

    def url_of(self, url: str) -> str:
        """Give the address by which the database at *url* is reached through it."""
        address = urlsplit(url)
        login = address.netloc.rpartition("@")[0]
        return address._replace(netloc=f"{login}@127.0.0.1:{self.port}").geturl()


@cache
def find_program() -> Program:
    """Find a PgBouncer, or fetch one; raise `PgBouncerUnavailable`."""
    if found := _on_machine() or _fetched():
        return found
    if _is_fresh(WHY_NOT):
        raise PgBouncerUnavailable(WHY_NOT.read_text())
    try:
        _fetch()
    except (OSError, subprocess.SubprocessError) as error:
        raise _unavailable(f"no PgBouncer was found or could be fetched ({_first_line(error)})") from error
    if found := _fetched():
        return found
    raise _unavailable(f"the PgBouncer in {FETCHED} does not run here")


def _unavailable(reason: str) -> PgBouncerUnavailable:
    """Say why there is none, and keep that for the next runs."""
    text = f"{reason}: {HOW_TO_GET_IT}"
    with suppress(OSError):  # it is no cache of ours to write to
        WHY_NOT.write_text(text)
    return PgBouncerUnavailable(text)


@contextmanager
def running_pgbouncer(server_url: str, **settings: str) -> Iterator[PgBouncer]:
    """Run a PgBouncer in front of the server at *server_url*, for all of its databases.

    It listens on the loopback address only, never runs as root, and is gone with its files after the block, also if
    this process is killed. *settings* are those of pgbouncer.ini.
    """
    found, identity = find_program(), find_identity()
    directory = None if identity is None else make_directory(identity, MEMORY)
    if identity is None or directory is None:
        raise PgBouncerUnavailable("there is nobody to run PgBouncer as, or no room for it")
    program = found.copied_to(directory)
    keeper = Keeper(directory, program.environment, identity.prefix, identity.options)
    try:
        yield _start(program, keeper, identity, Place(directory, server_url, settings))
    finally:
        keeper.ask("stop", signal=signal.SIGKILL)  # it has nothing to save, and some versions wait for their clients
        keeper.close()


def _start(program: Program, keeper: Keeper, identity: Identity, place: Place) -> PgBouncer:
    """Start it at a port that nobody else has; another program may be quicker."""
    for _ in range(5):
        port = _free_port()
        keeper.ask("start", command=[str(program.path), str(_write_files(place, identity, port))])
        until(partial(_has_begun, keeper, port), "PgBouncer accepts connections")
        if keeper.ask("poll") is None:
            return PgBouncer(port)
    raise PgBouncerUnavailable(f"PgBouncer did not start\n{(place.directory / 'server.log').read_text()[-2000:]}")


def _has_begun(keeper: Keeper, port: int) -> bool:
    return keeper.ask("poll") is not None or _accepts(port)


def _write_files(place: Place, identity: Identity, port: int) -> Path:
    """Write what it reads, for nobody else's eyes; give the path of pgbouncer.ini."""
    server = urlsplit(place.server_url)
    users = place.directory / "server" / "users.txt"
    here = {"listen_addr": "127.0.0.1", "listen_port": str(port), "unix_socket_dir": "", "auth_file": str(users)}
    lines = [f"{name} = {value}" for name, value in (SETTINGS | here | place.settings).items()]
    databases = f"[databases]\n* = host={server.hostname} port={server.port or 5432}\n"
    _write(users, f'"{unquote(server.username or "postgres")}" "{unquote(server.password or "")}"\n', identity)
    return _write(users.with_name("pgbouncer.ini"), "\n".join([databases, "[pgbouncer]", *lines, ""]), identity)


def _write(path: Path, text: str, identity: Identity) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    hand_over(path, identity)
    return path


def _on_machine() -> Program | None:
    path = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    return _runs(Path(path), None, "of the machine") if path else None


def _fetched() -> Program | None:
    return _runs(FETCHED / "pgbouncer", FETCHED / "libraries", "Debian's package")


def _runs(path: Path, libraries: Path | None, origin: str) -> Program | None:
    """Ask a program for its version; `None` unless it can be run."""
    program = Program(path, libraries, "", origin)
    try:
        asked = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=False, env=program.environment
        )
    except OSError:
        return None
    version = re.search(r"PgBouncer (\d[\w.]*)", asked.stdout)
    return Program(path, libraries, version[1], origin) if version else None


def _fetch() -> None:
    """Fetch the package, and the libraries that are not installed, and keep of them what is needed to run it."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pgbouncer-", dir=CACHE) as name:
        place = Path(name)
        deadline = time.monotonic() + FETCH_SECONDS
        _download(place, "pgbouncer", deadline)
        (package,) = place.glob("pgbouncer_*.deb")
        for library in _missing_libraries(package):
            _download(place, library, deadline)
        for each in place.glob("*.deb"):
            _run(["dpkg", "-x", str(each), "unpacked"], place, deadline)
        kept = place / "kept"
        (kept / "libraries").mkdir(parents=True)
        shutil.copy(place / "unpacked" / "usr" / "sbin" / "pgbouncer", kept / "pgbouncer")
        for each in place.glob("unpacked/**/lib*.so.*"):
            shutil.copy(each, kept / "libraries" / each.name)
        shutil.rmtree(FETCHED, ignore_errors=True)
        with suppress(OSError):  # another run was quicker
            kept.rename(FETCHED)


def _download(place: Path, package: str, deadline: float) -> None:
    """Fetch a package; if the lists of this machine do not have it, by lists of our own."""
    try:
        _run(["apt-get", "download", package], place, deadline)
    except subprocess.CalledProcessError:
        state, own = place / "state", ["-o", f"Dir::State={place / 'state'}", "-o", f"Dir::Cache={place / 'packages'}"]
        if not state.exists():
            (state / "lists" / "partial").mkdir(parents=True)
            (place / "packages" / "archives" / "partial").mkdir(parents=True)
            _run(["apt-get", *own, "-o", "Dir::State::status=/var/lib/dpkg/status", "update"], place, deadline)
        _run(["apt-get", *own, "download", package], place, deadline)


def _missing_libraries(package: Path) -> list[str]:
    """Name the libraries that *package* needs and this machine has not."""
    asked = subprocess.run(["dpkg", "-f", package, "Depends"], capture_output=True, text=True, check=True)
    names = re.findall(r"(?:^|, )(lib[\w.+-]*)", asked.stdout)
    return [name for name in names if subprocess.run(["dpkg", "-s", name], capture_output=True, check=False).returncode]


def _run(command: list[str], place: Path, deadline: float) -> None:
    seconds = max(1.0, deadline - time.monotonic())
    subprocess.run(command, cwd=place, capture_output=True, text=True, check=True, timeout=seconds)


def _is_fresh(note: Path) -> bool:
    return note.exists() and time.time() - note.stat().st_mtime < RETRY_SECONDS


def _first_line(error: Exception) -> str:
    said = (error.stderr or "") if isinstance(error, subprocess.CalledProcessError) else ""
    return (said.strip() or str(error)).partition("\n")[0]


def _accepts(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
