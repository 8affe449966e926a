"""A PgBouncer for tests, in front of a server of theirs."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.testing.host import ServerIdentity, find_identity, hand_over, make_directory
from holdfast.testing.keeper import Keeper
from tests.acceptance.processes import until
from tests.support.processes.debian import Package, Program, ProgramUnavailable, find

PGBOUNCER = Package("pgbouncer", "PgBouncer", "usr/sbin/pgbouncer", "--version", r"PgBouncer (\d[\w.]*)")
MEMORY = Path("/dev/shm")

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


@contextmanager
def running_pgbouncer(server_url: str, **settings: str) -> Iterator[PgBouncer]:
    """Run a PgBouncer in front of the server at *server_url*, for all of its databases.

    It listens on the loopback address only, never runs as root, and is gone with its files after the block, also if
    this process is killed. *settings* are those of pgbouncer.ini.
    """
    found, identity = find(PGBOUNCER), find_identity()
    directory = None if identity is None else make_directory(identity, MEMORY)
    if identity is None or directory is None:
        raise ProgramUnavailable("there is nobody to run PgBouncer as, or no room for it")
    program = found.copied_to(directory)
    keeper = Keeper(directory, program.environment, identity.prefix, identity.options)
    try:
        yield _start(program, keeper, identity, Place(directory, server_url, settings))
    finally:
        keeper.ask("stop", signal=signal.SIGKILL)  # it has nothing to save, and some versions wait for their clients
        keeper.close()


def _start(program: Program, keeper: Keeper, identity: ServerIdentity, place: Place) -> PgBouncer:
    """Start it at a port that nobody else has; another program may be quicker."""
    for _ in range(5):
        port = _free_port()
        keeper.ask("start", command=[str(program.path), str(_write_files(place, identity, port))])
        until(partial(_has_begun, keeper, port), "PgBouncer accepts connections")
        if keeper.ask("poll") is None:
            return PgBouncer(port)
    raise ProgramUnavailable(f"PgBouncer did not start\n{(place.directory / 'server.log').read_text()[-2000:]}")


def _has_begun(keeper: Keeper, port: int) -> bool:
    return keeper.ask("poll") is not None or _accepts(port)


def _write_files(place: Place, identity: ServerIdentity, port: int) -> Path:
    """Write what it reads, for nobody else's eyes; give the path of pgbouncer.ini."""
    server = urlsplit(place.server_url)
    users = place.directory / "server" / "users.txt"
    here = {"listen_addr": "127.0.0.1", "listen_port": str(port), "unix_socket_dir": "", "auth_file": str(users)}
    lines = [f"{name} = {value}" for name, value in (SETTINGS | here | place.settings).items()]
    databases = f"[databases]\n* = host={server.hostname} port={server.port or 5432}\n"
    _write(users, f'"{unquote(server.username or "postgres")}" "{unquote(server.password or "")}"\n', identity)
    return _write(users.with_name("pgbouncer.ini"), "\n".join([databases, "[pgbouncer]", *lines, ""]), identity)


def _write(path: Path, text: str, identity: ServerIdentity) -> Path:
    path.touch(mode=0o600)
    path.write_text(text)
    hand_over(path, identity)
    return path


def _accepts(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
        return True
    return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
