"""Tenants are made, suspended, resumed, dropped and migrated; what was interrupted goes on."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import (
    Holdfast,
    InvalidInput,
    InvalidSettings,
    MigrationProgress,
    Misuse,
    NotMigrated,
    StoreError,
    TenantExists,
    TenantInUse,
    TenantNotFound,
)
from holdfast.client.tenants import TenantMaker
from holdfast.database import migrations
from holdfast.database.postgres.places import SchemaMaker
from holdfast.database.sqlite.places import SqlitePlaces
from holdfast.database.tx import Tx
from holdfast.fault_points import CrashPoint
from holdfast.models import Asked
from holdfast.store import tenants
from holdfast.tenancy import TENANT_STATES, TenantInfo
from tests.support.factories import greet, make_job
from tests.tenants.conftest import CONTROL, Control


async def names(control: Control) -> dict[str, str]:
    return {each.name: each.state for each in await control.tenants.list()}


async def execute(tx: Tx, sql: str, values: dict[str, object]) -> None:
    await tx.execute(sql, **values)


def set_state(control: Control, name: str, state: str) -> None:
    sql = "UPDATE holdfast_tenant SET state = :state WHERE name = :name"
    control.hf.store.run_sync(execute, sql, {"name": name, "state": state})


async def test_a_tenant_is_made_listed_and_read(control: Control) -> None:
    made = await control.tenants.create("acme", host="ACME.Example.com:8443", by="ada", why="they paid")

    assert (made.name, made.state, made.host) == ("acme", "active", "acme.example.com")
    assert (made.changed_by, made.reason, made.trouble, made.trouble_at) == ("ada", "they paid", None, None)
    assert made.place == ("acme.db" if control.database == "sqlite" else f"{CONTROL}_t_acme")
    assert made.changed_at >= made.created_at
    assert await control.tenants.get("acme") == made
    await control.tenants.create("zeta")
    await control.tenants.create("beta")
    assert await names(control) == {"acme": "active", "beta": "active", "zeta": "active"}
    assert list(await names(control)) == ["acme", "beta", "zeta"]


async def test_a_tenant_that_is_there_is_not_made_again(control: Control) -> None:
    await control.tenants.create("acme", host="acme.example.com")

    with pytest.raises(TenantExists, match="there is a tenant 'acme' already") as raised:
        await control.tenants.create("acme")
    assert (raised.value.code, raised.value.http_status, raised.value.name) == ("tenant_exists", 409, "acme")
    with pytest.raises(TenantExists, match=r"host 'acme.example.com' belongs to tenant 'acme'"):
        await control.tenants.create("other", host="Acme.example.com")
    assert await names(control) == {"acme": "active"}


async def test_who_is_unknown_is_not_found(control: Control) -> None:
    for call in (
        control.tenants.get("nobody"),
        control.tenants.suspend("nobody"),
        control.tenants.resume("nobody"),
        control.tenants.drop("nobody", confirm="nobody"),
        control.tenants.migrate(["nobody"]),
    ):
        with pytest.raises(TenantNotFound, match="there is no tenant 'nobody'") as raised:
            await call
        assert (raised.value.code, raised.value.http_status, raised.value.exit_code) == ("tenant_not_found", 404, 3)


async def test_suspending_and_resuming_twice_changes_nothing_more(control: Control) -> None:
    await control.tenants.create("acme")

    suspended = await control.tenants.suspend("acme", by="ada", why="unpaid")
    assert (suspended.state, suspended.changed_by, suspended.reason) == ("suspended", "ada", "unpaid")
    assert await control.tenants.suspend("acme", by="bob") == suspended
    resumed = await control.tenants.resume("acme")
    assert (resumed.state, resumed.changed_by, resumed.reason) == ("active", None, None)
    assert await control.tenants.resume("acme") == resumed


async def test_dropping_needs_the_name_again_and_a_suspended_tenant(control: Control) -> None:
    await control.tenants.create("acme")

    with pytest.raises(InvalidInput, match="confirm must be the name of the tenant again"):
        await control.tenants.drop("acme", confirm="yes")
    with pytest.raises(TenantInUse, match=r"it is active; suspend it first: hf.tenants.suspend") as raised:
        await control.tenants.drop("acme", confirm="acme")
    assert (raised.value.code, raised.value.http_status) == ("tenant_in_use", 409)
    await control.tenants.suspend("acme")
    await control.tenants.drop("acme", confirm="acme")

    assert await names(control) == {}
    with pytest.raises(TenantNotFound):
        await control.way("acme").face.list_jobs()


async def test_a_tenant_in_which_a_job_runs_is_not_dropped(control: Control) -> None:
    await control.tenants.create("acme")
    job = await make_job(control.way("acme"), "running")
    before = await control.tenants.suspend("acme", by="ada", why="unpaid")

    with pytest.raises(TenantInUse, match="a job runs in it; wait until they have ended"):
        await control.tenants.drop("acme", confirm="acme", by="bob")

    assert await control.tenants.get("acme") == before
    assert (await control.way("acme").face.get_job(job)).status == "running"


async def test_what_is_dropped_leaves_nothing_and_can_be_made_again(control: Control, tmp_path: Path) -> None:
    for _ in range(2):
        await control.tenants.create("acme", host="acme.example.com")
        way = control.way("acme")
        await way.face.start(greet(name="Ada"))
        assert len((await way.face.list_jobs()).items) == 1
        await control.tenants.suspend("acme")
        await control.tenants.drop("acme", confirm="acme")

    if control.database == "sqlite":
        assert list((tmp_path / "jobs.db.tenants").iterdir()) == []
    else:
        assert await schemas(control) == [CONTROL]


async def schemas(control: Control) -> list[str]:
    sql = f"SELECT nspname FROM pg_namespace WHERE starts_with(nspname, '{CONTROL}') ORDER BY nspname"

    async def read(tx: Tx) -> list[str]:
        return [name for (name,) in await tx.fetch_all(sql)]

    return control.hf.store.read_sync(read)


async def test_a_tenant_made_anew_by_another_process_is_used_here_at_once(control: Control) -> None:
    """What this process had open, and has kept in mind, was the former one's."""
    other = control.again()
    await control.tenants.create("acme")
    way = control.way("acme")
    await way.face.start(greet(name="Ada"))
    other.sync.tenants.suspend("acme")
    other.sync.tenants.drop("acme", confirm="acme")
    other.sync.tenants.create("acme")

    try:
        await way.face.list_jobs()
    except StoreError:
        assert control.database == "sqlite"  # it has noticed that the file is another one
    assert (await way.face.list_jobs()).items == ()


async def test_what_others_have_in_a_schema_is_never_dropped(control: Control, request: pytest.FixtureRequest) -> None:
    if control.database != "postgres":
        pytest.skip("a file has tables and views only")
    await control.tenants.create("acme")
    job = await make_job(control.way("acme"))
    suspended = await control.tenants.suspend("acme")
    with psycopg.connect(request.getfixturevalue("control_url"), autocommit=True) as stranger:
        stranger.execute(f"CREATE TABLE {CONTROL}_t_acme.letters (id int)")

        with pytest.raises(TenantInUse, match="it also holds letters, which Holdfast has not made"):
            await control.tenants.drop("acme", confirm="acme")
        assert await control.tenants.get("acme") == suspended
        stranger.execute(f"DROP TABLE {CONTROL}_t_acme.letters")
        stranger.execute(f"CREATE TYPE {CONTROL}_t_acme.colour AS ENUM ('red')")  # which no list of tables shows
        with pytest.raises(TenantInUse, match=r"something else is in its schema: type control_t_acme.colour"):
            await control.tenants.drop("acme", confirm="acme")

        assert await control.tenants.get("acme") == suspended
        assert (await control.way("acme").face.get_job(job)).id == job
        stranger.execute(f"DROP TYPE {CONTROL}_t_acme.colour")
    await control.tenants.drop("acme", confirm="acme")


@pytest.mark.parametrize("what", ["TABLE letters (id int)", "VIEW letters AS SELECT 1 AS id"])
async def test_a_file_with_tables_of_others_is_never_removed(control: Control, tmp_path: Path, what: str) -> None:
    """The guide says to keep a tenant's own tables in its file."""
    if control.database != "sqlite":
        pytest.skip("a schema is not a file")
    await control.tenants.create("acme")
    job = await make_job(control.way("acme"))
    suspended = await control.tenants.suspend("acme")
    with closing(sqlite3.connect(tmp_path / "jobs.db.tenants" / "acme.db")) as stranger:
        stranger.execute(f"CREATE {what}")

        with pytest.raises(TenantInUse, match="it also holds letters, which Holdfast has not made; move or drop it"):
            await control.tenants.drop("acme", confirm="acme")
        assert await control.tenants.get("acme") == suspended
        assert (await control.way("acme").face.get_job(job)).id == job

        stranger.execute(f"DROP {what.partition(' ')[0]} letters")
    await control.tenants.drop("acme", confirm="acme")
    assert list((tmp_path / "jobs.db.tenants").iterdir()) == []


async def test_a_drop_that_is_refused_leaves_an_older_file_as_it_is(control: Control, tmp_path: Path) -> None:
    if control.database != "sqlite":
        pytest.skip("a schema is not a file")
    await control.tenants.create("acme")
    await control.tenants.suspend("acme")
    store = control.hf.tenant("acme").store
    store.run_sync(back_to_the_release_before)
    store.close_sync()
    with closing(sqlite3.connect(tmp_path / "jobs.db.tenants" / "acme.db")) as stranger:
        stranger.execute("CREATE TABLE letters (id int)")
        (before,) = stranger.execute("SELECT value FROM holdfast_meta WHERE key = 'schema'")

        with pytest.raises(TenantInUse, match="it also holds letters"):
            await control.tenants.drop("acme", confirm="acme")

        (after,) = stranger.execute("SELECT value FROM holdfast_meta WHERE key = 'schema'")
    assert after == before


async def test_a_table_that_is_made_while_a_file_is_dropped_keeps_it(
    control: Control, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if control.database != "sqlite":
        pytest.skip("a schema is not a file")
    await control.tenants.create("acme")
    before = await control.tenants.suspend("acme")
    with closing(sqlite3.connect(tmp_path / "jobs.db.tenants" / "acme.db")) as stranger:
        stranger.execute("CREATE TABLE letters (id int)")
        monkeypatch.setattr(SqlitePlaces, "strangers", lambda *_: [])  # as if it was made a moment later

        with pytest.raises(TenantInUse, match="it also holds letters"):
            await control.tenants.drop("acme", confirm="acme")

    assert await control.tenants.get("acme") == before
    assert (tmp_path / "jobs.db.tenants" / "acme.db").exists()


STEPS_OF_CREATE = (
    "tenants.begin_creating.before_commit",
    "tenants.begin_creating.after_commit",
    *(f"migrations.step.{point}" for point in ("before_commit", "after_commit")),
    "tenants.end_creating.before_commit",
    "tenants.end_creating.after_commit",
)


def raise_at(monkeypatch: pytest.MonkeyPatch, point: str, passes: int = 1) -> Any:
    """Have the point raise in this process, until what is given is called."""
    from holdfast import fault_points

    trap = fault_points.Trap.parse(f"{point}:{passes}:raise")
    monkeypatch.setattr(fault_points, "_trap", trap)
    return lambda: monkeypatch.setattr(fault_points, "_trap", None)


@pytest.mark.parametrize("point", STEPS_OF_CREATE)
async def test_create_goes_on_from_wherever_it_was_interrupted(
    control: Control, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    disarm = raise_at(monkeypatch, point, passes=3 if point.startswith("migrations") else 1)
    with pytest.raises(CrashPoint):
        await control.tenants.create("acme", by="ada")
    disarm()

    left = await names(control)
    assert left in ({}, {"acme": "creating"}, {"acme": "active"})
    if left == {"acme": "creating"}:
        for attempt in (control.way("acme").face.list_jobs(), control.tenants.suspend("acme")):
            with pytest.raises(TenantNotFound, match=r"still being made: call hf.tenants.create"):
                await attempt
    if left != {"acme": "active"}:
        await control.tenants.create("acme", host="acme.example.com")
    assert await names(control) == {"acme": "active"}
    await control.way("acme").face.start(greet(name="Ada"))


STEPS_OF_DROP = {
    "sqlite": ("migrations.drop_unused.before_commit", "migrations.drop_unused.after_commit"),
    "postgres": ("tenants.end_dropping.statement 1", "tenants.end_dropping.statement 5"),
}


@pytest.mark.parametrize("nr", range(6))
async def test_drop_goes_on_from_wherever_it_was_interrupted(
    control: Control, monkeypatch: pytest.MonkeyPatch, nr: int
) -> None:
    ends = [
        f"tenants.{end}.{when}_commit" for end in ("begin_dropping", "end_dropping") for when in ("before", "after")
    ]
    point = [*ends[:2], *STEPS_OF_DROP[control.database], *ends[2:]][nr]
    await control.tenants.create("acme")
    await control.way("acme").face.start(greet(name="Ada"))
    await control.tenants.suspend("acme")
    disarm = raise_at(monkeypatch, point)
    with pytest.raises(CrashPoint):
        await control.tenants.drop("acme", confirm="acme")
    disarm()

    left = await names(control)
    assert left in ({"acme": "suspended"}, {"acme": "dropping"}, {})
    if left == {"acme": "dropping"}:
        with pytest.raises(TenantNotFound, match="it is being dropped"):
            await control.way("acme").face.list_jobs()
        with pytest.raises(TenantExists, match=r"is being dropped; call hf.tenants.drop"):
            await control.tenants.create("acme")
    if left:
        await control.tenants.drop("acme", confirm="acme")
    assert await names(control) == {}
    await control.tenants.create("acme")
    assert (await control.way("acme").face.list_jobs()).items == ()


async def test_a_tenant_that_was_never_finished_can_be_dropped(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    disarm = raise_at(monkeypatch, "tenants.begin_creating.after_commit")
    with pytest.raises(CrashPoint):
        await control.tenants.create("acme")
    disarm()

    await control.tenants.drop("acme", confirm="acme")

    assert await names(control) == {}


TOKEN_BEFORE = """
    CREATE TABLE holdfast_token (
        id text PRIMARY KEY, hash text NOT NULL UNIQUE, role text NOT NULL, name text NOT NULL,
        created_at bigint NOT NULL, expires_at bigint, revoked_at bigint)"""


async def back_to_the_release_before(tx: Tx) -> None:
    """Have the place of a tenant as the release before left it."""
    await tx.execute("DROP TABLE holdfast_session")
    await tx.execute("DROP TABLE holdfast_token")
    await tx.execute(TOKEN_BEFORE)
    await tx.execute("DROP INDEX holdfast_audit_id" if tx.database == "sqlite" else "SELECT 1")
    for column in ("id", "request"):
        await tx.execute(f"ALTER TABLE holdfast_audit DROP COLUMN {column}")
    await tx.execute("UPDATE holdfast_meta SET value = '6' WHERE key = 'schema'")


async def age(control: Control, name: str) -> None:
    control.hf.tenant(name).store.run_sync(back_to_the_release_before)
    control.hf.tenant(name).sync.close()


async def test_an_older_tenant_is_not_served_and_says_so_until_it_is_migrated(control: Control) -> None:
    for name in ("acme", "beta", "zeta"):
        await control.tenants.create(name)
    for name in ("acme", "zeta"):
        await age(control, name)

    with pytest.raises(
        NotMigrated, match=r"tenant 'acme' is not served: .* run `holdfast migrate --tenants`"
    ) as raised:
        await control.way("acme").face.list_jobs()
    assert (raised.value.found, raised.value.needed) == (6, migrations.code_number(control.database))
    assert (await control.way("beta").face.list_jobs()).items == ()
    told: list[MigrationProgress] = []
    done = await control.tenants.migrate(on_progress=told.append)

    assert {name: len(taken) for name, taken in done.taken.items()} == {"acme": 1, "beta": 0, "zeta": 1}
    assert done.failed == {}
    assert sorted(each.name for each in told) == ["acme", "beta", "zeta"]
    assert [(each.done, each.of) for each in told] == [(1, 3), (2, 3), (3, 3)]
    assert (await control.way("acme").face.list_jobs()).items == ()


async def test_a_tenant_that_cannot_be_migrated_keeps_no_other_from_it(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("acme", "beta"):
        await control.tenants.create(name)
        await age(control, name)
    disarm = raise_at(monkeypatch, "migrations.step.before_commit")
    first = await control.tenants.migrate(parallel=1)
    disarm()

    (failed,) = first.failed
    assert "CrashPoint" in first.failed[failed]
    assert {*first.taken, failed} == {"acme", "beta"}
    with pytest.raises(NotMigrated):
        await control.way(failed).face.list_jobs()
    second = await control.tenants.migrate([failed])
    assert second.failed == {}
    assert len(second.taken[failed]) == 1


async def test_workers_write_down_why_they_leave_a_tenant_out(control: Control) -> None:
    for name in ("acme", "beta"):
        await control.tenants.create(name)

    control.hf.store.run_sync(tenants.note_trouble, [("acme", "no such table"), ("nobody", "gone")])
    first = await control.tenants.get("acme")
    control.hf.store.run_sync(tenants.note_trouble, [("acme", "permission denied")])
    second = await control.tenants.get("acme")
    control.hf.store.run_sync(tenants.note_trouble, [("acme", None)])
    third = await control.tenants.get("acme")

    assert (first.trouble, second.trouble, third.trouble) == ("no such table", "permission denied", None)
    assert first.trouble_at is not None
    assert second.trouble_at == first.trouble_at
    assert third.trouble_at is None
    assert (await control.tenants.get("beta")).trouble is None


async def test_a_place_that_does_not_follow_from_the_name_is_never_used(control: Control) -> None:
    await control.tenants.create("acme")
    await control.tenants.create("beta")
    place = (await control.tenants.get("beta")).place
    await control.tenants.suspend("beta")
    await control.tenants.drop("beta", confirm="beta")
    sql = "UPDATE holdfast_tenant SET place = :place WHERE name = 'acme'"
    control.hf.store.run_sync(execute, sql, {"place": place})
    control.hf._tenant_faces.forget()

    with pytest.raises(StoreError, match="its place can only be"):
        await control.way("acme").face.list_jobs()


async def test_states_are_those_that_the_table_allows(control: Control) -> None:
    await control.tenants.create("acme")
    for state in TENANT_STATES:
        set_state(control, "acme", state)
        assert (await control.tenants.get("acme")).state == state


async def test_files_are_for_their_owner_alone(control: Control, tmp_path: Path) -> None:
    """S-16."""
    if control.database != "sqlite":
        pytest.skip("a server looks after its own files")
    await control.tenants.create("acme")
    await control.way("acme").face.start(greet(name="Ada"))

    directory = tmp_path / "jobs.db.tenants"
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {path.name for path in directory.iterdir()} >= {"acme.db", "acme.db-wal"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()} == {0o600}
    assert control.hf.tenant("acme").database == str(directory.resolve() / "acme.db")
    assert control.hf.sync.tenant("acme").database == control.hf.tenant("acme").database


async def test_a_file_that_is_gone_is_not_made_again(control: Control, tmp_path: Path) -> None:
    if control.database != "sqlite":
        pytest.skip("a schema that is gone has no tables")
    await control.tenants.create("acme")
    (tmp_path / "jobs.db.tenants" / "acme.db").unlink()

    with pytest.raises(StoreError, match=r"acme.db is gone"):
        await control.way("acme").face.start(greet(name="Ada"))

    assert not (tmp_path / "jobs.db.tenants" / "acme.db").exists()


def test_without_tenants_there_are_none() -> None:
    hf = Holdfast("jobs.db")
    for call in (lambda: hf.tenant("acme"), lambda: hf.sync.tenant("acme"), hf.sync.tenants.list):
        with pytest.raises(Misuse, match=r"write Holdfast\(database, tenants=True\)"):
            call()
    acme = Holdfast("jobs.db", tenants=True).tenant("acme")
    with pytest.raises(Misuse, match="this is the face of a tenant"):
        acme.tenant("beta")


def test_a_control_schema_leaves_room_for_the_names_of_tenants() -> None:
    Holdfast("postgresql://localhost/app", schema_name="s" * 20, tenants=True)
    with pytest.raises(
        InvalidSettings, match="the setting schema_name has a wrong value: with tenants it has at most 20 "
    ):
        Holdfast("postgresql://localhost/app", schema_name="s" * 21, tenants=True)
    Holdfast("postgresql://localhost/app", schema_name="s" * 21)


def test_a_control_schema_is_not_named_like_that_of_a_tenant() -> None:
    """Else the tenant `beta` of the schema `app_t_acme` would have the place of `acme_t_beta` of the schema `app`."""
    for name in ("app_t_acme", "app_t"):
        with pytest.raises(
            InvalidSettings, match="schema_name has a wrong value: with tenants it neither contains _t_"
        ):
            Holdfast("postgresql://localhost/app", schema_name=name, tenants=True)
    Holdfast("postgresql://localhost/app", schema_name="app_t_acme")


@pytest.mark.parametrize("wrong", [{"parallel": "4"}, {"parallel": 1.5}, {"parallel": True}, {"names": 5}])
async def test_a_migration_refuses_what_it_cannot_use(control: Control, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        await control.tenants.migrate(**wrong)


async def test_of_two_creates_at_once_only_one_has_made_the_tenant(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two customers sign up under one name: the one who came first is told that the name is taken."""
    make, others = TenantMaker.create, []

    def create_beside(maker: TenantMaker, name: str, host: str | None, asked: Asked) -> TenantInfo:
        monkeypatch.setattr(TenantMaker, "create", make)
        registry = maker._faces.registry
        registry.store.run_sync(tenants.begin_creating, name, registry.places.place(name), "me", host, asked)
        others.append(control.hf.sync.tenants.create(name, host="two.example.com"))
        return registry.store.run_sync(tenants.end_creating, name, "me", asked)

    monkeypatch.setattr(TenantMaker, "create", create_beside)

    with pytest.raises(TenantExists, match="at the same time"):
        await control.tenants.create("acme", host="one.example.com")

    assert [each.host for each in others] == ["two.example.com"]
    assert (await control.tenants.get("acme")).host == "two.example.com"


async def test_migrate_does_not_make_a_place_anew_that_is_gone(control: Control) -> None:
    await control.tenants.create("acme")
    control.hf.tenant("acme").sync.close()
    if control.hf.store.database == "sqlite":
        Path(control.hf.tenant("acme").database).unlink()
    else:
        control.hf.store.run_sync(execute, f'DROP SCHEMA "{CONTROL}_t_acme" CASCADE', {})

    done = await control.tenants.migrate()

    assert done.taken == {}
    assert "put its schema or file back from a backup" in done.failed["acme"]


async def test_migrate_does_not_make_a_place_anew_that_is_dropped_meanwhile(
    control: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or nobody could create a tenant of that name any more."""
    await control.tenants.create("acme")
    await control.tenants.suspend("acme")
    other = control.again().sync
    kind: Any = SqlitePlaces if control.database == "sqlite" else SchemaMaker
    make = kind.make

    def dropped_first(maker: Any, name: str, **options: Any) -> list[str]:
        with monkeypatch.context() as plain:
            plain.setattr(kind, "make", make)
            other.tenants.drop(name, confirm=name)
        return list(make(maker, name, **options))

    with monkeypatch.context() as patched:
        patched.setattr(kind, "make", dropped_first)
        done = await control.tenants.migrate()

    assert (done.taken, list(done.failed)) == ({}, ["acme"])
    assert (await control.tenants.create("acme")).state == "active"


async def test_a_drop_that_stood_still_leaves_a_tenant_alone_that_was_made_anew(control: Control) -> None:
    await control.tenants.create("acme")
    await control.tenants.suspend("acme")
    slow = control.hf.store.run_sync(tenants.begin_dropping, "acme", Asked())  # and then this process stands still
    await control.tenants.drop("acme", confirm="acme")
    await control.tenants.create("acme")
    job = await make_job(control.way("acme"))

    with control.hf._tenant_faces.registry.places.maker() as maker:
        maker.remove("acme", tenants.end_dropping, slow)

    assert await names(control) == {"acme": "active"}
    assert (await control.way("acme").face.get_job(job)).id == job


async def test_a_drop_beside_one_that_gives_up_says_that_the_tenant_is_there(control: Control) -> None:
    await control.tenants.create("acme")
    before = await control.tenants.suspend("acme")
    dropped = control.hf.store.run_sync(tenants.begin_dropping, "acme", Asked())  # by both of them
    control.hf.store.run_sync(tenants.stop_dropping, before)

    with pytest.raises(TenantInUse, match="another call that was dropping it has given up"):
        with control.hf._tenant_faces.registry.places.maker() as maker:
            maker.remove("acme", tenants.end_dropping, dropped)

    assert await control.tenants.get("acme") == before
    assert (await control.way("acme").face.list_jobs()).items == ()


async def test_what_is_there_already_becomes_nobodys_tenant(
    control: Control, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It may have the jobs of somebody else."""
    if control.database == "sqlite":
        (tmp_path / "jobs.db.tenants").mkdir()
        (tmp_path / "jobs.db.tenants" / "acme.db").write_bytes(b"letters")
        (tmp_path / "jobs.db.tenants" / "empty.db").touch()
        with closing(sqlite3.connect(tmp_path / "jobs.db.tenants" / "header.db")) as stranger:
            stranger.execute("PRAGMA journal_mode=WAL")
        await control.tenants.create("header")
    else:
        with psycopg.connect(request.getfixturevalue("control_url"), autocommit=True) as stranger:
            stranger.execute(f"CREATE SCHEMA {CONTROL}_t_empty")
            stranger.execute(f"CREATE SCHEMA {CONTROL}_t_acme CREATE TABLE letters (id int)")
    # as somebody makes a schema for a role that may not, and a file who connects to one that is not there
    await control.tenants.create("empty")

    with pytest.raises(TenantExists, match=r"acme.* is there already, and no tenant's; move or remove it"):
        await control.tenants.create("acme")

    assert "acme" not in await names(control)


async def test_a_file_that_cannot_be_read_can_be_dropped(control: Control, tmp_path: Path) -> None:
    if control.database != "sqlite":
        pytest.skip("a server looks after its own files")
    await control.tenants.create("acme")
    await control.hf.tenant("acme").close()
    control.hf.tenant("acme").sync.close()
    (tmp_path / "jobs.db.tenants" / "acme.db").write_bytes(b"this is no database" * 1000)
    await control.tenants.suspend("acme")

    await control.tenants.drop("acme", confirm="acme")

    assert await names(control) == {}
    assert list((tmp_path / "jobs.db.tenants").iterdir()) == []


async def test_workers_do_not_hear_of_a_drop_that_is_refused(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    await control.tenants.create("acme")
    await make_job(control.way("acme"), "running")
    await control.tenants.suspend("acme")
    monkeypatch.setattr(tenants, "begin_dropping", None)

    with pytest.raises(TenantInUse, match="a job runs in it"):
        await control.tenants.drop("acme", confirm="acme")


async def test_a_drop_that_fails_leaves_the_tenant_suspended(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    await control.tenants.create("acme")
    before = await control.tenants.suspend("acme")

    async def fail(*_: object) -> None:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(tenants, "end_dropping", fail)
        with pytest.raises(StoreError, match="the disk is full"):
            await control.tenants.drop("acme", confirm="acme")

    assert await control.tenants.get("acme") == before
    await control.tenants.drop("acme", confirm="acme")


async def test_a_lease_that_is_over_does_not_keep_a_tenant(control: Control) -> None:
    """Nobody takes the jobs of a killed worker over in a suspended tenant."""
    await control.tenants.create("acme")
    await make_job(control.way("acme"), "running")
    await control.tenants.suspend("acme")
    sql = "UPDATE holdfast_job SET lease_until = $now - :ago"
    control.hf.tenant("acme").store.run_sync(execute, sql, {"ago": 1})

    await control.tenants.drop("acme", confirm="acme")

    assert await names(control) == {}


async def test_tables_that_are_gone_are_said_and_not_made_anew(
    control: Control, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    await control.tenants.create("acme")
    face = control.way("acme").face
    await face.start(greet(name="Ada"))
    if control.database == "sqlite":
        (tmp_path / "jobs.db.tenants" / "acme.db").unlink()
    else:
        with psycopg.connect(request.getfixturevalue("control_url"), autocommit=True) as stranger:
            stranger.execute(f"DROP SCHEMA {CONTROL}_t_acme CASCADE")

    attempts = (lambda: face.start(greet(name="Ada")), face.list_jobs, face.migrate)
    for attempt in attempts:
        with pytest.raises(StoreError) as raised:
            await attempt()
        assert control.database == "sqlite" or "the tables of tenant 'acme' are gone" in str(raised.value)


async def test_a_tenant_made_anew_has_the_schedules_and_tasks_of_the_program(control: Control) -> None:
    control.hf.schedule("nightly", greet(name="Ada"), every=3600, tenants=True)
    face = control.way("acme").face
    for _ in range(2):
        await control.tenants.create("acme")

        await face.start(greet(name="Ada"))

        assert [each.name for each in control.hf.tenant("acme").sync.schedules.list()] == ["nightly"]
        await control.tenants.suspend("acme")
        await control.tenants.drop("acme", confirm="acme")
