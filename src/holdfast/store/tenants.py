"""The registry of tenants: one row each, in the control place. The tenants' own tables are elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.database.tx import RemovePlace, Row, Tx, patient, repeatable
from holdfast.errors import TenantExists, TenantInUse, TenantNotFound
from holdfast.models import Asked
from holdfast.store import access, workers
from holdfast.store.rows import instant, maybe_instant
from holdfast.store.workers import LivingWorker
from holdfast.tenancy import TENANT_STATES, TenantInfo, TenantState
from holdfast.texts import clean_text
from holdfast.times import milliseconds_of
from holdfast.unreadable import readable, reading

TENANT = "name, place, host, state, created_at, changed_at, changed_by, reason, trouble, trouble_at"
TROUBLE_LENGTH = 500

ADD = """
    INSERT INTO holdfast_tenant (name, place, host, state, created_at, changed_at, changed_by, reason, creator)
    VALUES (:name, :place, :host, 'creating', $now, $now, :by, :why, :creator)
    ON CONFLICT DO NOTHING"""
OF_HOST = "SELECT name FROM holdfast_tenant WHERE host = :host AND name <> :name"
BY_HOST = "SELECT name FROM holdfast_tenant WHERE host = :host"
GO_ON = """
    UPDATE holdfast_tenant SET creator = :creator, host = coalesce(CAST(:host AS text), host)
    WHERE name = :name AND state = 'creating'"""
ONE = f"SELECT {TENANT} FROM holdfast_tenant WHERE name = :name"
ONE_LOCKED = f"{ONE} $locked"


@repeatable
async def begin_creating(tx: Tx, name: str, place: str, creator: str, host: str | None, asked: Asked) -> TenantInfo:
    """Write a tenant down that is to be made, or go on with one as it was left; raise `TenantExists` if it is there.

    From now on it is *creator* that makes it; whoever had begun before ends with `TenantExists`.
    """
    await tx.execute(ADD, name=name, place=place, host=host, by=asked.by, why=asked.why, creator=creator)
    if host is not None and (other := await tx.fetch_all(OF_HOST, host=host, name=name)):
        raise TenantExists(name, f"host {host!r} belongs to tenant {other[0][0]!r}; choose another host")
    found = await _locked(tx, name)
    if found.state == "dropping":
        raise TenantExists(
            name,
            f"tenant {name!r} is being dropped; call hf.tenants.drop({name!r}, confirm={name!r}) to end that, and "
            "then create it",
        )
    if found.state != "creating":
        raise TenantExists(name, f"there is a tenant {name!r} already ({found.state}); choose another name")
    await tx.execute(GO_ON, name=name, host=host, creator=creator)
    return found


async def find_by_host(tx: Tx, host: str) -> str | None:
    """Name the tenant that a host name belongs to, if there is one."""
    rows = await tx.fetch_all(BY_HOST, host=host)
    return rows[0][0] if rows else None


MOVE = f"""
    UPDATE holdfast_tenant
    SET state = :state, changed_at = $now, changed_by = :by, reason = :why, trouble = NULL, trouble_at = NULL
    WHERE name = :name AND state = :before
    RETURNING {TENANT}"""


CREATOR = "SELECT creator FROM holdfast_tenant WHERE name = :name"


@repeatable
async def end_creating(tx: Tx, name: str, creator: str, asked: Asked) -> TenantInfo:
    """Let a tenant be used whose place is made; raise `TenantExists` if another than *creator* has gone on with it."""
    found = await _locked(tx, name)
    if await tx.fetch_all(CREATOR, name=name) != [(creator,)]:
        raise TenantExists(name, f"another call has created tenant {name!r} at the same time; choose another name")
    return found if found.state != "creating" else await _move(tx, found, "active", asked)


@repeatable
async def suspend(tx: Tx, name: str, asked: Asked) -> TenantInfo:
    """Let nothing be started or claimed in a tenant; one that is suspended stays as it is."""
    found = await _usable(tx, name)
    return found if found.state == "suspended" else await _move(tx, found, "suspended", asked)


@repeatable
async def resume(tx: Tx, name: str, asked: Asked) -> TenantInfo:
    """Take that back; one that is active stays as it is."""
    found = await _usable(tx, name)
    return found if found.state == "active" else await _move(tx, found, "active", asked)


@repeatable
async def begin_dropping(tx: Tx, name: str, asked: Asked) -> TenantInfo:
    """Let a suspended tenant be used no more; one that is being made or dropped is found as it was left."""
    found = await _locked(tx, name)
    if found.state == "active":
        raise TenantInUse(
            name, f"it is active; suspend it first: hf.tenants.suspend({name!r}), or `holdfast tenants suspend {name}`"
        )
    return found if found.state == "dropping" else await _move(tx, found, "dropping", asked)


REMOVE = "DELETE FROM holdfast_tenant WHERE name = :name"


@repeatable
@patient
async def end_dropping(tx: Tx, dropped: TenantInfo, remove: RemovePlace) -> None:
    """Have *remove* remove the place of a tenant that is being dropped, and forget it; if another call has, do nothing.

    Raises `TenantInUse` if another call that was dropping it has given up meanwhile.

    Its row stays locked meanwhile. A call that stood still before it came here would else remove the place of a tenant
    that has been created anew under this name.
    """
    found = [_read_tenant(row) for row in await tx.fetch_all(ONE_LOCKED, name=dropped.name)]
    if not found or found[0].created_at != dropped.created_at:
        return
    if found[0].state != "dropping":
        raise TenantInUse(dropped.name, "another call that was dropping it has given up; drop it again")
    await remove(tx)
    await access.forget_tenant(tx, dropped.name)
    await tx.execute(REMOVE, name=dropped.name)


async def find_tenant(tx: Tx, name: str) -> TenantInfo | None:
    """Read the tenant of this name, if there is one."""
    found = await tx.fetch_all(ONE, name=name)
    return _read_tenant(found[0]) if found else None


async def get_tenant(tx: Tx, name: str) -> TenantInfo:
    """Read the tenant of this name, or raise `TenantNotFound`."""
    if (found := await find_tenant(tx, name)) is None:
        raise TenantNotFound(name)
    return found


class TenantView(NamedTuple):
    """A tenant, and the living workers that serve it: an idle tenant's own tables do not tell."""

    info: TenantInfo
    hosts: list[LivingWorker]


async def view(tx: Tx, name: str) -> TenantView | None:
    """Read the tenant of this name, if there is one, and who serves it."""
    found = await find_tenant(tx, name)
    return None if found is None else TenantView(found, await workers.hosts_of(tx, name))


ALL = f"SELECT {TENANT} FROM holdfast_tenant ORDER BY name"


async def list_tenants(tx: Tx) -> list[TenantInfo]:
    """Read all tenants, by name."""
    return readable(await tx.fetch_all(ALL), _read_tenant)


NOTE_TROUBLE = """
    UPDATE holdfast_tenant SET trouble = given.trouble,
        trouble_at = CASE WHEN given.trouble IS NULL THEN NULL ELSE coalesce(trouble_at, $now) END
    FROM $list(given: name text, trouble text)
    WHERE holdfast_tenant.name = given.name"""


@repeatable
async def note_trouble(tx: Tx, troubles: Sequence[tuple[str, str | None]]) -> None:
    """Write down why workers leave tenants out, by name; None if they serve it again. `trouble_at` is since when."""
    given = [(name, None if why is None else clean_text(why, TROUBLE_LENGTH)) for name, why in troubles]
    await tx.execute(NOTE_TROUBLE, given=given)


STOP_DROPPING = """
    UPDATE holdfast_tenant SET state = 'suspended', changed_at = :changed_at, changed_by = :by, reason = :why
    WHERE name = :name AND state = 'dropping'"""


@repeatable
async def stop_dropping(tx: Tx, before: TenantInfo) -> None:
    """Let a tenant that cannot be dropped be as it was *before*."""
    at = milliseconds_of(before.changed_at, "changed_at")
    await tx.execute(STOP_DROPPING, name=before.name, changed_at=at, by=before.changed_by, why=before.reason)


WAKE = "UPDATE holdfast_meta SET value = value WHERE key = 'schema' AND $hint"


async def wake(tx: Tx) -> None:
    """Have the workers here look again: in the place of a tenant that was resumed."""
    await tx.execute(WAKE)


async def _locked(tx: Tx, name: str) -> TenantInfo:
    found = await tx.fetch_all(ONE_LOCKED, name=name)
    if not found:
        raise TenantNotFound(name)
    return _read_tenant(found[0])


async def _usable(tx: Tx, name: str) -> TenantInfo:
    found = await _locked(tx, name)
    require_usable(found)
    return found


def require_usable(found: TenantInfo) -> None:
    """Raise `TenantNotFound` if a tenant is not there yet, or no more."""
    if found.state == "creating":
        raise TenantNotFound(found.name, f"it is still being made: call hf.tenants.create({found.name!r}) to go on")
    if found.state == "dropping":
        again = f"hf.tenants.drop({found.name!r}, confirm={found.name!r})"
        raise TenantNotFound(found.name, f"it is being dropped: call {again} to go on")


async def _move(tx: Tx, found: TenantInfo, state: TenantState, asked: Asked) -> TenantInfo:
    (row,) = await tx.fetch_all(MOVE, name=found.name, before=found.state, state=state, by=asked.by, why=asked.why)
    return _read_tenant(row)


def _read_tenant(row: Row) -> TenantInfo:
    name, place, host, state, created_at, changed_at, changed_by, reason, trouble, trouble_at = row
    with reading("holdfast_tenant", name):
        if state not in TENANT_STATES:
            raise ValueError(f"unknown state {state!r}")
        return TenantInfo(
            name=name,
            place=place,
            host=host,
            state=state,
            created_at=instant(created_at),
            changed_at=instant(changed_at),
            changed_by=changed_by,
            reason=reason,
            trouble=trouble,
            trouble_at=maybe_instant(trouble_at),
        )
