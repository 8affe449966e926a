"""Where something is measured: files and a server on a disk that is waited for, and databases that end with the run."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from bench import machine
from bench.meter import Meter, postmaster
from holdfast.testing import NotOurServer, PostgresServer, temporary_postgres


@dataclass(frozen=True, slots=True)
class Places:
    """A directory for files and a server for databases, on the same disk."""

    directory: Path
    server: PostgresServer

    def meter(self, store: str) -> Meter:
        """Make a meter for what is measured on *store*."""
        return Meter(postmaster(self.server.url) if store == "PostgreSQL" else None)

    @contextmanager
    def address(self, store: str, name: str) -> Iterator[str]:
        """Make an empty database called *name* on "SQLite" or "PostgreSQL"; drop it in the end."""
        if store == "SQLite":
            yield str(self.directory / f"{name}.db")
            for each in self.directory.glob(f"{name}.db*"):
                shutil.rmtree(each) if each.is_dir() else each.unlink()
            return
        with database(self.server.url, name) as url:
            yield url


@contextmanager
def both(*, is_quick: bool) -> Iterator[Places]:
    """Start a server with durability on and make a directory beside it; say what they are on."""
    with temporary_postgres(durable=True) as server, directory_beside(server) as directory:
        if not is_quick:
            machine.require_disk(directory)
        machine.require_durable(server.url)
        seconds = 0.05 if is_quick else 1.0
        print(machine.describe(directory, f"PostgreSQL {server.version}", seconds), end="\n\n", flush=True)
        yield Places(directory, server)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of a command that measures both stores."""
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one of the stores")


def print_each(arguments: argparse.Namespace, measure: Callable[[Places, str], str]) -> int:
    """Print what *measure* answers for each store; the exit code says that it could be measured, not how well."""
    with both(is_quick=arguments.quick) as places:
        if arguments.only != "postgres":
            print(measure(places, "SQLite"), end="\n\n", flush=True)
        if arguments.only != "sqlite":
            print(measure(places, "PostgreSQL"), flush=True)
    return 0


@contextmanager
def directory_beside(server: PostgresServer) -> Iterator[Path]:
    """Make a directory on the disk that the server writes to, as far as that is ours to know."""
    try:
        place = server.data_directory.parents[2]
    except NotOurServer:
        place = Path(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=place) as directory:
        yield Path(directory)


@contextmanager
def database(server: str, name: str) -> Iterator[str]:
    """Make a database called *name* on *server* and answer its address; drop it in the end."""
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
