"""`holdfast tenants` and `holdfast migrate --tenants` as a person runs them."""

from __future__ import annotations

import json
import os
import pty
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.cli import main
from holdfast.cli.person import login
from holdfast.client.tenant_store import TenantStore
from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Tx
from holdfast.settings import Settings
from tests.support.factories import TASKS, greet
from tests.support.processes import forked
from tests.tenants.test_registry import back_to_the_release_before

HOLDFAST = str(Path(sys.executable).with_name("holdfast"))
SCHEMA = "of_command"


class Command:
    """The command itself, in this process: `tenants("list")`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], database: str) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        self.database = database

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        self._monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self._capsys.readouterr()
        assert int(str(ended.value.code or 0)) == code, printed
        return printed.out, printed.err

    def read(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code)[0])


@pytest.fixture(params=["sqlite", "postgres"])
def holdfast(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Command]:
    """The command on an empty control place."""
    database = str(tmp_path / "jobs.db")
    if request.param == "postgres":
        database = request.getfixturevalue("postgres_url")
        monkeypatch.setenv("HOLDFAST_SCHEMA_NAME", SCHEMA)
    monkeypatch.setenv("HOLDFAST_DATABASE", database)
    command = Command(monkeypatch, capsys, database)
    command("migrate")
    yield command
    if request.param == "postgres":
        with psycopg.connect(database, autocommit=True) as connection:
            sql = f"SELECT nspname FROM pg_namespace WHERE starts_with(nspname, '{SCHEMA}')"
            for (name,) in connection.execute(sql).fetchall():
                connection.execute(f'DROP SCHEMA "{name}" CASCADE')


def test_a_tenant_is_made_suspended_resumed_and_dropped(holdfast: Command) -> None:
    made = holdfast.read("tenants", "create", "acme", "--host", "Acme.example.com", "--by", "ada")
    assert (made["name"], made["state"], made["host"], made["changed_by"]) == (
        "acme",
        "active",
        "acme.example.com",
        "ada",
    )
    out, _ = holdfast("tenants", "suspend", "acme", "--by", "ada", "--why", "unpaid")
    assert out.startswith("acme: suspended (by ada: unpaid), in ")
    (listed,) = holdfast.read("tenants", "list")
    assert listed["reason"] == "unpaid"
    assert holdfast("tenants", "resume", "acme")[0].startswith("acme: active (by ")
    _, err = holdfast("tenants", "drop", "acme", "--yes", code=4)
    assert "or `holdfast tenants suspend acme`" in err
    holdfast("tenants", "suspend", "acme")
    assert holdfast("tenants", "drop", "acme", "--yes")[0] == "dropped acme\n"
    out, err = holdfast("tenants", "list")
    assert out == ""
    assert "there are no tenants" in err


def test_what_the_command_does_to_a_tenant_is_in_the_audit(holdfast: Command) -> None:
    holdfast("tenants", "create", "acme")
    holdfast("tenants", "suspend", "acme", "--by", "ada", "--why", "unpaid")
    holdfast("tenants", "drop", "acme", "--yes")

    dropped, suspended, created = holdfast.read("audit")
    assert [each["action"] for each in (created, suspended, dropped)] == [
        "tenant.create",
        "tenant.suspend",
        "tenant.drop",
    ]
    assert (suspended["who"], suspended["why"], suspended["subject"]) == ("ada", "unpaid", "acme")
    assert created["who"] == dropped["who"] == login()


def test_errors_are_one_line_with_the_code_of_their_family(holdfast: Command) -> None:
    assert "there is no tenant 'nobody'" in holdfast("tenants", "suspend", "nobody", code=3)[1]
    assert "the name of a tenant begins with" in holdfast("tenants", "create", "../x", code=2)[1]
    assert "host must be a host name" in holdfast("tenants", "create", "acme", "--host", "a b", code=2)[1]
    holdfast("tenants", "create", "acme")
    assert "there is a tenant 'acme' already" in holdfast("tenants", "create", "acme", code=4)[1]


def test_nobody_drops_what_he_has_not_named_again(holdfast: Command) -> None:
    holdfast("tenants", "create", "acme")
    holdfast("tenants", "suspend", "acme")

    _, err = holdfast("tenants", "drop", "acme", code=2)
    assert "nobody is there to confirm this; give --yes" in err
    wrong, code = typed(holdfast, "acmee\n")
    assert (code, "nothing was dropped" in wrong) == (2, True)
    assert [each["name"] for each in holdfast.read("tenants", "list")] == ["acme"]
    right, code = typed(holdfast, "acme\n")
    assert (code, "dropped acme" in right) == (0, True)
    assert holdfast.read("tenants", "list") == []


def typed(holdfast: Command, answer: str) -> tuple[str, int]:
    """Run `holdfast tenants drop acme` at a terminal, and answer; give what it printed, and its exit code."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [HOLDFAST, "tenants", "drop", "acme"], stdin=follower, stdout=follower, stderr=follower, env=dict(os.environ)
    )
    os.close(follower)
    os.write(leader, answer.encode())
    printed = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # its other end is closed
            break
        if not piece:
            break
        printed += piece
    os.close(leader)
    return printed.decode(), process.wait(60)


def face(database: str) -> Holdfast:
    return Holdfast(database, tenants=True)  # its schema stands in the environment


def age(database: str, name: str) -> None:
    """Have a tenant as the release before left it."""
    hf = face(database)
    hf.tenant(name).store.run_sync(back_to_the_release_before)
    hf.sync.close()


def leave_half_dropped(database: str, name: str) -> None:
    """Leave a tenant as a `drop` that was killed."""

    async def drop(tx: Tx) -> None:
        await tx.execute("UPDATE holdfast_tenant SET state = 'dropping' WHERE name = :name", name=name)

    hf = face(database)
    hf.store.run_sync(drop)
    hf.sync.close()


def add_what_is_in_the_way(database: str, name: str) -> None:
    """Have the step of a tenant fail, until `age` is done to it."""

    async def add(tx: Tx) -> None:
        await tx.execute("UPDATE holdfast_meta SET value = '6' WHERE key = 'schema'")

    hf = face(database)
    hf.tenant(name).store.run_sync(add)
    hf.sync.close()


def set_right(database: str, name: str) -> None:
    async def add(tx: Tx) -> None:
        await tx.execute("UPDATE holdfast_meta SET value = '7' WHERE key = 'schema'")

    hf = face(database)
    place = hf.tenant(name).store.place  # type: ignore[attr-defined]
    place._is_checked = True
    if isinstance(place, SqliteStore):
        with sqlite3.connect(place.path) as connection:
            connection.execute("UPDATE holdfast_meta SET value = '7' WHERE key = 'schema'")
        connection.close()
    else:
        place.run_sync(add)
    hf.sync.close()


def test_migrating_tenants_goes_on_after_one_that_failed(holdfast: Command) -> None:
    for name in ("acme", "beta", "zeta"):
        holdfast("tenants", "create", name)
    age(holdfast.database, "acme")
    add_what_is_in_the_way(holdfast.database, "beta")

    out, err = holdfast("migrate", "--check", "--tenants", code=4)
    assert out == ""
    says = "is not served: its tables are at schema 6, and this release needs 7; run `holdfast migrate --tenants`"
    assert f"holdfast: tenant 'acme' {says}" in err
    assert f"holdfast: tenant 'beta' {says}" in err
    assert "zeta" not in err
    out, err = holdfast("migrate", "--tenants", code=4)
    lines = out.splitlines()
    assert lines[0] == "the database is up to date (schema 7)"
    assert "acme: took 0007_access" in lines
    assert "zeta: is up to date" in lines
    assert lines[-1] == "migrated 1 tenants; 1 were up to date; 1 failed"
    assert "beta: failed: " in err
    assert err.endswith("mend these, and run the same command again\n")

    set_right(holdfast.database, "beta")
    age(holdfast.database, "beta")
    done = holdfast.read("migrate", "--tenants")
    assert done["tenants"] == {"acme": [], "beta": ["0007_access"], "zeta": []}
    assert (done["failed"], done["taken"], done["schema"]) == ({}, [], 7)
    holdfast("migrate", "--check", "--tenants")


def test_checking_tenants_says_what_it_has_not_checked(holdfast: Command) -> None:
    for name in ("acme", "beta", "zeta"):
        holdfast("tenants", "create", name)
    leave_half_dropped(holdfast.database, "beta")

    out, err = holdfast("migrate", "--check", "--tenants")
    assert out == "the database and its 2 tenants are up to date (schema 7)\n"
    assert "tenant beta is left out: its state is dropping" in err

    age(holdfast.database, "acme")
    done = holdfast.read("migrate", "--check", "--tenants", code=4)
    assert done["tenants"] == {"zeta": []}
    assert list(done["failed"]) == ["acme"]
    assert "run `holdfast migrate --tenants`" in done["failed"]["acme"]


def test_checking_tenants_keeps_no_file_of_theirs_open(holdfast: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of some hundred files that stay open, one is too many."""
    for name in ("acme", "beta"):
        holdfast("tenants", "create", name)
    done: list[tuple[str, str]] = []
    for name in ("standing_sync", "close_sync"):
        monkeypatch.setattr(TenantStore, name, noting(getattr(TenantStore, name), done))

    holdfast("migrate", "--check", "--tenants")

    assert done[:4] == [
        ("standing_sync", "acme"),
        ("close_sync", "acme"),
        ("standing_sync", "beta"),
        ("close_sync", "beta"),
    ]


def noting(method: Callable[[TenantStore], Any], done: list[tuple[str, str]]) -> Callable[[TenantStore], Any]:
    def call(store: TenantStore) -> Any:
        done.append((method.__name__, store.name))
        return method(store)

    return call


def test_progress_is_one_line_on_a_terminal(holdfast: Command) -> None:
    for name in ("acme", "beta"):
        holdfast("tenants", "create", name)
    leader, follower = pty.openpty()

    ran = forked.run(
        [HOLDFAST, "migrate", "--tenants"], stdout=subprocess.PIPE, stderr=follower, text=True, timeout=60, check=True
    )

    os.close(follower)
    shown = os.read(leader, 10_000).decode()
    os.close(leader)
    assert "\r1/2 tenants\r2/2 tenants\r\n" in shown
    assert ran.stdout.splitlines() == [
        "the database is up to date (schema 7)",
        "migrated 0 tenants; 2 were up to date; 0 failed",
    ]


def test_options_that_do_not_go_together_are_refused(holdfast: Command) -> None:
    _, err = holdfast("migrate", "--sql", "--tenants", code=2)

    assert "give --sql or --tenants, not both" in err


@pytest.mark.parametrize("command", ["list", "create", "suspend", "resume", "drop"])
def test_every_command_has_help_with_an_example(holdfast: Command, command: str) -> None:
    out, _ = holdfast("tenants", command, "--help")

    assert f"holdfast tenants {command}" in out.partition("Examples:")[2]


def test_schedules_webhooks_and_jobs_of_a_tenant_are_reached_by_its_name(holdfast: Command) -> None:
    holdfast("tenants", "create", "acme")
    with Holdfast(settings=Settings.from_environment(tenants=True), tasks=[TASKS]).sync as control:
        acme = control.tenant("acme")
        acme.schedules.put("nightly", greet(name="Ada"), cron="0 3 * * *")
        job = acme.start(greet(name="Ada"))
        acme.cancel(job)

    listed = holdfast.read("schedules", "list", "--tenant", "acme")
    of_control = holdfast.read("schedules", "list")
    watched = subprocess.run([HOLDFAST, "watch", str(job.id), "--tenant", "acme"], capture_output=True, check=False)
    holdfast("tenants", "suspend", "acme")
    _, refused = holdfast("schedules", "run", "nightly", "--tenant", "acme", code=4)
    _, unknown = holdfast("webhooks", "list", "--tenant", "nope", code=3)

    assert ([each["name"] for each in listed], of_control) == (["nightly"], [])
    assert (watched.returncode, b"cancelled" in watched.stdout) == (7, True)
    assert "suspended" in refused
    assert "there is no tenant 'nope'" in unknown


def test_a_schema_is_refused_for_a_file(tmp_path: Path) -> None:
    found = subprocess.run(
        [HOLDFAST, "schedules", "list", "--database", str(tmp_path / "jobs.db"), "--schema-name", "public_t_acme"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert found.returncode == 2
    assert "--schema-name is for PostgreSQL" in found.stderr
