"""A standby of a temporary PostgreSQL: it streams what its primary commits, and can be promoted in its place."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from holdfast.testing import NotOurServer, PostgresFailed, PostgresServer
from holdfast.testing.host import ServerIdentity, hand_over
from holdfast.testing.keeper import Keeper
from holdfast.testing.postgres import MEMORY, _find_identity, _kept_directory, _TemporaryPostgres

PATIENCE_SECONDS = 30.0


@contextlib.contextmanager
def temporary_standby(primary: PostgresServer) -> Iterator[Standby]:
    """Provide a hot standby of *primary*, which `temporary_postgres` has started, for the length of a `with` block.

        with temporary_postgres() as primary, temporary_standby(primary) as standby:
            standby.catch_up()
            primary.stop("immediate")
            standby.promote()

    It holds the same databases under the same password at an address of its own, and is gone after the block as its
    primary is. Raises `NotOurServer` for a server that was given by its address.
    """
    if not isinstance(primary, _TemporaryPostgres):
        raise NotOurServer
    identity = _find_identity()
    with _kept_directory(identity, MEMORY) as (directory, keeper):
        standby = Standby(directory, keeper, primary)
        standby.initialise(identity)
        yield standby


class Standby(_TemporaryPostgres):
    """A server that follows *primary* until it is promoted."""

    def __init__(self, directory: Path, keeper: Keeper, primary: _TemporaryPostgres) -> None:
        super().__init__(directory, keeper, primary._binaries, primary._options)
        self._primary = primary
        self._password = primary._password

    def catch_up(self) -> None:
        """Wait until all that the primary has committed by now can be read here."""
        ((written,),) = _ask(self._primary.url, "SELECT pg_current_wal_lsn()::text")
        self._wait_for(f"SELECT pg_last_wal_replay_lsn() >= '{written}'", "the standby has not caught up")

    def cut_off(self) -> None:
        """Receive nothing more: what the primary commits from now on is not known here."""
        _do(self.url, "ALTER SYSTEM SET primary_conninfo = ''")
        _do(self.url, "SELECT pg_reload_conf()")
        self._wait_for("SELECT count(*) = 0 FROM pg_stat_wal_receiver", "the standby was not cut off")

    def promote(self) -> None:
        """Make it a primary of its own, on a new timeline; the old one knows nothing of it."""
        _ask(self.url, "SELECT pg_promote(wait => true)")
        self._wait_for("SELECT NOT pg_is_in_recovery()", "the standby was not promoted")

    def _make_files(self, identity: ServerIdentity) -> None:
        """Copy the primary's, and note where what is written from now on comes from."""
        password_file = self.log.with_name("primary")
        password_file.touch(mode=0o600)
        password_file.write_text(f"127.0.0.1:{self._primary._port}:*:postgres:{self._password}\n")
        hand_over(password_file, identity)
        address = f"host=127.0.0.1 port={self._primary._port} user=postgres passfile={password_file}"
        command = self._command(
            *("pg_basebackup", "-d", address, "-D", str(self.data_directory)),
            *("--write-recovery-conf", "--checkpoint=fast", "--no-sync", "--no-password"),
        )
        if self._keeper.ask("run", command=command) != 0:
            raise PostgresFailed(f"pg_basebackup failed\n{self._last_lines()}")

    def _wait_for(self, question: str, otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while _ask(self.url, question) != [(True,)]:
            if time.monotonic() > deadline:
                raise PostgresFailed(f"{otherwise}\n{self._last_lines()}")
            time.sleep(0.01)


def _ask(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


def _do(url: str, statement: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement)
