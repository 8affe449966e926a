"""The database file: what is refused, what is created, and what happens when it goes away."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.database import migrations
from holdfast.database.sqlite.file import Mount, kind_at, parse_linux, parse_mac, require_sqlite
from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.sqlite.tx import SqliteTx, translated
from holdfast.database.tx import Tx, drive
from holdfast.errors import Busy, InvalidSettings, NotMigrated, StoreError, Unavailable
from holdfast.settings import Settings
from tests.disk.read_only import obey_modes
from tests.store.notes import add, count, create, new_store, numbers
from tests.support.log_lines import named

MOUNTINFO = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /srv/jobs rw,relatime shared:9 - nfs4 host:/export rw,vers=4.2
31 22 0:27 / /srv/jobs/local rw - tmpfs tmpfs rw
32 22 0:28 / /mnt/with\040blank rw,relatime master:3 shared:4 - cifs //host/share rw
33 22 0:29 / /home rw - nfs4 host:/home rw
34 33 0:30 / /home rw - ext4 /dev/vdb rw
"""

MAC_MOUNTS = """
/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
//me@host/share on /Volumes/my share (smbfs, nodev, nosuid, mounted by me)
host:/export on /private/nfs (nfs)
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = new_store(tmp_path / "jobs.db")
    yield store
    store.close_sync()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/jobs.db", "ext4"),
        ("/srv/jobs/a.db", "nfs4"),
        ("/srv/jobs/local/a.db", "tmpfs"),
        ("/srv/jobs2/a.db", "ext4"),
        ("/mnt/with blank/a.db", "cifs"),
        ("/home/me/a.db", "ext4"),
    ],
)
def test_the_longest_mount_point_tells_the_file_system_on_linux(path: str, kind: str) -> None:
    assert kind_at(path, parse_linux(MOUNTINFO)) == kind


def test_the_mount_command_tells_the_file_system_on_a_mac() -> None:
    mounts = parse_mac(MAC_MOUNTS)

    assert kind_at("/Users/me/a.db", mounts) == "apfs"
    assert kind_at("/Volumes/my share/a.db", mounts) == "smbfs"
    assert kind_at("/private/nfs/a.db", mounts) == "nfs"


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-36."""
    mounts = [Mount("/", "ext4"), Mount(os.path.realpath(tmp_path), "nfs4")]
    monkeypatch.setattr("holdfast.database.sqlite.file._read_mounts", lambda: mounts)

    with pytest.raises(InvalidSettings, match=r"network file system .nfs4."):
        SqliteStore(tmp_path / "jobs.db").open_sync()

    assert not (tmp_path / "jobs.db").exists()


def test_an_old_sqlite_is_refused() -> None:
    with pytest.raises(Unavailable, match=r"SQLite 3\.34\.1 is too old"):
        require_sqlite((3, 34, 1))


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="does not exist; run `mkdir"):
        SqliteStore(tmp_path / "nowhere" / "jobs.db").open_sync()


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match="is a directory"):
        SqliteStore(tmp_path).open_sync()


@pytest.mark.parametrize("path", [":memory:", "file:jobs.db?mode=memory"])
def test_what_is_not_a_file_is_refused(path: str) -> None:
    with pytest.raises(InvalidSettings, match="give the path of a file"):
        SqliteStore(path)


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear reader, " * 1000)

    with pytest.raises(Unavailable, match="not a SQLite database"):
        SqliteStore(file).open_sync()

    assert file.read_text() == "Dear reader, " * 1000


def test_a_file_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    """F-36."""
    file = tmp_path / "jobs.db"
    file.touch(mode=0o400)

    # in a thread that has given up root's rights: nobody gets them back
    with ThreadPoolExecutor(1, initializer=obey_modes) as bound, pytest.raises(Unavailable, match="may not write to"):
        bound.submit(SqliteStore(file).open_sync).result()


def test_a_file_that_we_create_is_for_its_owner_alone(store: SqliteStore, tmp_path: Path) -> None:
    made = {file.name: mode(file) for file in tmp_path.iterdir()}

    assert made == dict.fromkeys(made, 0o600)
    assert {"jobs.db", "jobs.db-wal", "jobs.db-holdfast-lock"} <= set(made)


def test_a_file_of_the_users_keeps_its_mode_and_our_side_files_follow_it(tmp_path: Path) -> None:
    file = tmp_path / "app.db"
    sqlite3.connect(file).execute("CREATE TABLE customer (id INTEGER)").connection.close()
    file.chmod(0o660)
    previous = os.umask(0o077)

    try:
        store = new_store(file)
    finally:
        os.umask(previous)

    assert {mode(each) for each in tmp_path.iterdir()} == {0o660}
    store.close_sync()


def test_the_constructor_touches_nothing(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "nowhere" / "jobs.db")

    assert list(tmp_path.iterdir()) == []


def test_the_database_is_durable_and_never_mapped(store: SqliteStore) -> None:
    connection = store._state.connection._connected()

    found = [
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "mmap_size")
    ]

    assert found == ["wal", 2, 0]


def test_normal_is_a_named_option(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db", settings=Settings(synchronous="normal"))

    store.run_sync(create)

    assert store._state.connection._connected().execute("PRAGMA synchronous").fetchone() == (1,)
    store.close_sync()


def test_opening_migrates_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "jobs.db")

    taken = store.migrate_sync()

    assert taken == [step.name for step in migrations.steps("sqlite")]
    assert store.migrate_sync() == []
    store.close_sync()


def test_opening_tells_the_version_of_sqlite_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """F-38: two libraries in one process cannot be told apart from inside, but a person who looks for it can."""
    caplog.set_level("INFO", "holdfast")
    store = SqliteStore(tmp_path / "jobs.db")

    for _ in range(2):
        store.open_sync()
        store.open_sync()
        store.close_sync()

    for event in ("sqlite_created", "sqlite_opened"):
        assert [vars(each)["version"] for each in named(caplog, event)] == [sqlite3.sqlite_version]


def test_two_threads_that_open_at_once_both_get_a_store_that_works(tmp_path: Path) -> None:
    stores = [SqliteStore(tmp_path / "jobs.db") for _ in range(8)]
    threads = [threading.Thread(target=store.run_sync, args=(create,)) for store in stores]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [store.run_sync(add, number) for number, store in enumerate(stores)] == list(range(8))
    for store in stores:
        store.close_sync()


def test_a_file_from_a_newer_release_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    """F-39, I-74."""

    async def age(tx: Tx) -> None:
        await tx.execute("UPDATE holdfast_meta SET value = '9999' WHERE key IN ('schema', 'oldest_code')")

    store.run_sync(age)

    older = SqliteStore(tmp_path / "jobs.db")

    with pytest.raises(NotMigrated, match="install a newer release"):
        older.open_sync()

    older.close_sync()


def test_opening_an_up_to_date_file_needs_no_right_to_write(store: SqliteStore, tmp_path: Path) -> None:
    stranger = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    stranger.execute("BEGIN IMMEDIATE")
    other = SqliteStore(tmp_path / "jobs.db", settings=Settings(deadline_seconds=0.2))

    assert other.read_sync(count) == 0

    stranger.close()
    other.close_sync()


@pytest.mark.parametrize("way", ["removed", "replaced"])
def test_nothing_is_written_into_a_file_that_was(way: str, store: SqliteStore, tmp_path: Path) -> None:
    file = tmp_path / "jobs.db"
    file.rename(tmp_path / "moved.db")
    if way == "replaced":
        sqlite3.connect(file).close()
        file.touch()

    with pytest.raises(Unavailable, match="removed or replaced while in use"):
        store.run_sync(add, 1)
    with pytest.raises(Unavailable, match="removed or replaced while in use"):
        store.read_sync(count)

    (tmp_path / "moved.db").rename(file)
    assert store.run_sync(add, 2) == 2
    assert store.read_sync(numbers) == [2]


def test_a_removed_lock_file_is_made_anew_for_everybody(store: SqliteStore, tmp_path: Path) -> None:
    """F-36."""
    for file in tmp_path.glob("*-holdfast-lock*"):
        file.unlink()

    store.run_sync(add, 1)

    assert store.last_writer() == os.getpid()


def test_the_clock_of_a_simulation_is_now(tmp_path: Path) -> None:
    async def now(tx: Tx) -> int:
        ((instant,),) = await tx.fetch_all("SELECT $now")
        return int(instant)

    store = SqliteStore(tmp_path / "jobs.db", clock=lambda: 1234)

    assert (store.run_sync(now), store.read_sync(now)) == (1234, 1234)
    store.close_sync()


def test_a_read_connection_cannot_write(store: SqliteStore) -> None:
    with pytest.raises(Unavailable, match="read-only"):
        store.read_sync(add, 1)

    assert store.read_sync(count) == 0


def test_a_mistake_in_a_statement_is_seen_as_it_is(store: SqliteStore) -> None:
    async def ask(tx: Tx, sql: str) -> None:
        await tx.execute(sql)

    with pytest.raises(sqlite3.OperationalError, match="syntax error"):
        store.run_sync(ask, "SELEKT 1")
    with pytest.raises(sqlite3.ProgrammingError, match="value for binding"):
        store.run_sync(ask, "SELECT :missing")


def test_a_refused_row_is_a_store_error_that_keeps_its_cause(store: SqliteStore) -> None:
    store.run_sync(add, 1)

    with pytest.raises(StoreError, match="UNIQUE constraint failed") as raised:
        store.run_sync(add, 1)

    assert isinstance(raised.value.__cause__, sqlite3.IntegrityError)


def test_a_callers_connection_with_odd_factories_serves_as_a_transaction(store: SqliteStore, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "jobs.db")
    connection.row_factory = lambda cursor, row: {"odd": row}
    connection.execute("INSERT INTO note (id, text) VALUES (7, '')")

    assert drive(numbers(SqliteTx(connection, store.dialect))) == [7]

    connection.close()


def test_a_callers_stale_view_is_told_to_begin_immediate(store: SqliteStore, tmp_path: Path) -> None:
    """F-32."""
    connection = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM note").fetchall()
    store.run_sync(add, 1)

    with pytest.raises(Busy, match="BEGIN IMMEDIATE"), translated():
        drive(add(SqliteTx(connection, store.dialect), 2))

    connection.close()


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("postgresql+psycopg://ada:secret@host/app", r"write 'postgresql://ada:\*\*\*@host/app', or pass the engine"),
        ("sqlite:////srv/jobs.db", r'give the path alone: Holdfast\("/srv/jobs.db"\)'),
        ("host=db dbname=app password=secret", "write postgresql://user:password@host:port/name"),
        ("postgresql//ada:secret@host/app", r"did you mean 'postgresql://ada:\*\*\*@host/app'\?"),
        ("postgres:/ada:secret@host/app", r"did you mean 'postgresql://ada:\*\*\*@host/app'\?"),
        ("mysql://ada:secret@host/app", "does not support mysql; give the path of a SQLite file"),
    ],
)
def test_an_address_of_another_kind_is_no_path_and_its_password_is_not_shown(address: str, says: str) -> None:
    with pytest.raises(InvalidSettings, match=says) as refused:
        SqliteStore(address)

    assert "secret" not in str(refused.value)


def test_a_file_that_is_removed_before_the_first_write_is_named_and_not_its_lock(tmp_path: Path) -> None:
    """F-36."""
    new_store(tmp_path / "jobs.db").close_sync()
    store = new_store(tmp_path / "jobs.db")
    store.open_sync()  # needs no lock, for the tables are there
    for file in tmp_path.iterdir():
        file.unlink()

    with pytest.raises(Unavailable, match=r"\.db cannot be opened .*put it back"):
        store.run_sync(add, 1)
    store.close_sync()


def test_the_file_can_be_attached_to_another_under_any_name(store: SqliteStore, tmp_path: Path) -> None:
    store.open_sync()
    store.close_sync()
    other = sqlite3.connect(tmp_path / "other.db")

    other.execute("ATTACH ? AS jobs", [str(tmp_path / "jobs.db")])

    assert other.execute("SELECT count(*) FROM jobs.holdfast_jobs").fetchall() == [(0,)]
    other.close()


def test_a_reader_that_comes_after_the_log_was_removed_does_not_make_it_anew(
    store: SqliteStore, tmp_path: Path
) -> None:
    store.open_sync()
    store.run_sync(touch)
    log = tmp_path / "jobs.db-wal"
    log.rename(tmp_path / "moved")
    store._usable_state().readers.close()

    with pytest.raises(Unavailable, match="-wal was removed"):
        store.read_sync(touch)
    is_made_anew = log.exists()

    (tmp_path / "moved").replace(log)
    store.read_sync(touch)
    assert not is_made_anew


@pytest.mark.parametrize("does", ["reads", "writes"])
def test_a_log_that_is_replaced_while_a_connection_is_opened_is_not_used(
    does: str, store: SqliteStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-36: such a connection was kept, and what it wrote was lost when the log was put back.

    A block has a connection of its own, which is new at first.
    """
    store.open_sync()
    store.run_sync(create)
    store.run_sync(add, 1)
    file, moved = tmp_path / "jobs.db-wal", tmp_path / "moved"
    state = store._usable_state()
    state.readers.close()
    use = partial(store.read_sync, touch) if does == "reads" else partial(state.writer.begin_sync, 5.0)
    connect = sqlite3.connect

    def replace_first(*words: Any, **options: Any) -> sqlite3.Connection:
        monkeypatch.undo()
        file.rename(moved)
        file.touch()
        return connect(*words, **options)

    monkeypatch.setattr(sqlite3, "connect", replace_first)
    with pytest.raises(Unavailable, match="-wal was removed or replaced while in use"):
        use()
    moved.replace(file)

    assert store.read_sync(numbers) == [1]
    store.run_sync(add, 2)
    assert store.read_sync(numbers) == [1, 2]


async def touch(tx: Tx) -> None:
    await tx.fetch_all("SELECT 1")
