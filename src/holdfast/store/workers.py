"""Workers, and others who sleep: one row each, with a beat, and a mark while they sleep and want to be woken.

A worker of tenants has a row in the control place, which says whom it serves, and in each tenant where it has work just
now that of the worker which it has opened there.

A row is advice, never a lease: nothing that a job depends on is decided by it, save whether a worker that is gone has
died of its jobs or with its machine. On a SQLite database it also names the file that a worker keeps locked while it
lives, by which the others know of its death before its leases end.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from holdfast.database.tx import Row, Tx, repeatable
from holdfast.models import BUILT_IN, BULK, BULK_QUEUE, INTERNAL_QUEUE
from holdfast.unreadable import object_of

WATCH = "~watch-"
"""What the id of a host begins with that sleeps for a tenant, and that of no worker can; its beats are rare."""
IS_WATCH = f"substr(id, 1, {len(WATCH)}) = '{WATCH}'"

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Machine(NamedTuple):
    """A machine, by its name, and which of its starts this is; None where the system does not tell."""

    host: str
    boot: str | None

    @classmethod
    def here(cls) -> Machine:
        """Name this one."""
        try:
            boot = BOOT_ID.read_text(encoding="ascii").strip()
        except OSError:
            boot = None
        return cls(socket.gethostname(), boot)


class Member(NamedTuple):
    """A worker, or a process that waits for results; *facts* is JSON for people."""

    id: str
    name: str | None
    host: str
    pid: int
    facts: str = "{}"

    @classmethod
    def here(cls, member_id: str, name: str | None = None, **facts: object) -> Member:
        """Make the row of somebody in this process."""
        machine = Machine.here()
        return cls(member_id, name, machine.host, os.getpid(), json.dumps(facts | {"boot": machine.boot}))

    def saying(self, **more: object) -> Member:
        """Give the same with *more* facts."""
        return self._replace(facts=json.dumps(json.loads(self.facts) | more))

    def values(self) -> dict[str, object]:
        """Give it as the parameters of a statement."""
        return {"id": self.id, "name": self.name, "host": self.host, "pid": self.pid, "facts": self.facts}


BEAT = """
    INSERT INTO holdfast_worker (id, name, host, pid, facts, started_at, seen_at, asleep_at)
    VALUES (:id, :name, :host, :pid, :facts, $now, $now, CASE WHEN CAST(:is_asleep AS bigint) = 1 THEN $now END)
    ON CONFLICT (id) DO UPDATE SET seen_at = $now, name = :name, host = :host, pid = :pid, facts = :facts"""
ASLEEP = """
    INSERT INTO holdfast_worker (id, name, host, pid, facts, started_at, seen_at, asleep_at)
    VALUES (:id, :name, :host, :pid, :facts, $now, $now, $now)
    ON CONFLICT (id) DO UPDATE SET seen_at = $now, facts = :facts,
        asleep_at = coalesce(holdfast_worker.asleep_at, $now)"""
AWAKE = """UPDATE holdfast_worker SET asleep_at = NULL, seen_at = $now WHERE id = :id"""
# a row with a lock file is the proof of its worker's death: it goes when that has been used, or given up
FORGET = """DELETE FROM holdfast_worker WHERE id $any(ids: text) AND lock_path IS NULL"""
# who still has jobs is needed to tell whether its machine was started anew
FORGET_SILENT = f"""
    DELETE FROM holdfast_worker
    WHERE seen_at < $now - :milliseconds * CASE WHEN {IS_WATCH} THEN 3 ELSE 1 END
    AND lock_path IS NULL AND NOT EXISTS (
        SELECT 1 FROM holdfast_job AS held WHERE held.lease_until IS NOT NULL AND held.worker = holdfast_worker.id)
    RETURNING id"""
# whose lock file has gone astray, with its machine or its directory, nobody proves dead
ASTRAY = """SELECT id FROM holdfast_worker WHERE seen_at < $now - :milliseconds"""
FORGET_ASTRAY = """DELETE FROM holdfast_worker WHERE id $any(ids: text) AND seen_at < $now - :milliseconds"""


async def beat(tx: Tx, member: Member, *, is_asleep: bool = False) -> None:
    """Say that *member* lives; the first beat, or the first after it was forgotten, makes its row."""
    await tx.execute(BEAT, **member.values(), is_asleep=int(is_asleep))


SILENT_MS = 300_000
"""How long after its last beat somebody is forgotten."""


async def give_sign(tx: Tx, member: Member, *, is_asleep: bool = False) -> None:
    """Say that *member* lives, and forget those that have not said so for long."""
    await beat(tx, member, is_asleep=is_asleep)
    await forget_silent(tx, SILENT_MS)


async def mark_asleep(tx: Tx, member: Member) -> None:
    """Mark *member*: what makes something grow from now on sends a hint."""
    await tx.execute(ASLEEP, **member.values())


async def mark_awake(tx: Tx, member_id: str) -> None:
    """Take the mark away."""
    await tx.execute(AWAKE, id=member_id)


async def forget(tx: Tx, member_ids: Sequence[str]) -> None:
    """Remove the rows of those that have ended."""
    await tx.execute(FORGET, ids=list(member_ids))


async def forget_silent(tx: Tx, milliseconds: int) -> list[str]:
    """Remove the rows without a beat for *milliseconds*, of a host for three times that; answer whose they were."""
    return [id_ for (id_,) in await tx.fetch_all(FORGET_SILENT, milliseconds=milliseconds)]


async def list_astray(tx: Tx, milliseconds: int) -> list[str]:
    """Name those without a beat for *milliseconds*, also whose death nobody could prove."""
    return [id_ for (id_,) in await tx.fetch_all(ASTRAY, milliseconds=milliseconds)]


async def forget_astray(tx: Tx, member_ids: Sequence[str], milliseconds: int) -> None:
    """Remove the rows of those who are still without a beat for *milliseconds*."""
    await tx.execute(FORGET_ASTRAY, ids=list(member_ids), milliseconds=milliseconds)


IN_CHILD = "/child"
"""Ends the worker's name on the row of a suspect that runs in a child process: the worker cannot die of such a job."""


def names_on_rows(worker: str) -> tuple[str, str]:
    """Give the names that *worker* has on the rows of its jobs."""
    return worker, worker + IN_CHILD


ALIVE_MS = 150_000
"""How long after its last beat a worker counts as living: two beats, which come about once a minute, and a little."""

# who only waits for results serves no queue
LIVING = """
    SELECT id, name, facts FROM holdfast_worker WHERE seen_at > $now - :alive_ms ORDER BY seen_at DESC LIMIT 1000"""


class Slots(NamedTuple):
    """How many jobs a worker runs at once, by where they run; None where a worker of an older release does not say."""

    handlers: int | None = None
    children: int | None = None
    webhooks: int | None = None
    bulk: int | None = None


class LivingWorker(NamedTuple):
    """A worker with a beat of just now, by what it says of itself."""

    id: str
    name: str | None
    queues: frozenset[str]
    tasks: frozenset[str] | None = None
    """None for one of an older release, which does not name its tasks."""
    in_children: frozenset[str] = frozenset()
    """Those of its tasks that run in child processes."""
    slots: Slots = Slots()
    host: str | None = None
    """The worker of tenants that has opened it, by its id."""
    tenants: Mapping[str, int] | None = None
    """For a worker of tenants, in the control place: the slots of each that it serves, `*` for all others."""

    def serves(self, queue: str) -> bool:
        """Tell whether it claims from *queue*."""
        if queue == BULK_QUEUE:
            return self.slots.bulk != 0
        return queue in self.queues or (queue == INTERNAL_QUEUE and self.slots.webhooks != 0)

    def runs(self, queue: str, task: str) -> bool:
        """Tell whether it runs jobs of *task* in *queue*."""
        return self.serves(queue) and (self.tasks is None or task in self.tasks or task in BUILT_IN)

    def kind_of(self, task: str) -> Literal["handlers", "children", "webhooks", "bulk"]:
        """Say in which of its slots jobs of *task* run."""
        if task in BUILT_IN:
            return "bulk" if task == BULK else "webhooks"
        return "children" if task in self.in_children else "handlers"


async def living(tx: Tx, hosts: Sequence[LivingWorker] = ()) -> list[LivingWorker]:
    """Read which workers live and what they serve here; at most 1,000, the last ones that gave a sign first.

    *Hosts* serve this place as well, also while they have no worker here.
    """
    here = [each for each in await _living(tx) if each.tenants is None]
    opened = {each.host for each in here}
    return [*here, *(each for each in hosts if each.id not in opened)]


async def hosts_of(tx: Tx, tenant: str) -> list[LivingWorker]:
    """Read in the control place which living workers serve *tenant*."""
    living = await _living(tx)
    return [each for each in living if each.tenants is not None and not {tenant, "*"}.isdisjoint(each.tenants)]


async def serve_tenants_alone(tx: Tx) -> bool:
    """Tell whether workers of tenants live here, in the control place, and no other ones."""
    living = await _living(tx)
    return bool(living) and all(each.tenants is not None for each in living)


async def _living(tx: Tx) -> list[LivingWorker]:
    rows = await tx.fetch_all(LIVING, alive_ms=ALIVE_MS)
    known = [(id_, name, object_of(facts)) for id_, name, facts in rows]
    return [
        read_worker(id_, name, facts) for id_, name, facts in known if _names(facts.get("queues")) or "slots" in facts
    ]


def read_worker(id_: str, name: str | None, facts: dict[str, object]) -> LivingWorker:
    """Read what a worker says of itself, as far as this release knows what it means."""
    told = facts.get("slots")
    slots = told if isinstance(told, dict) else {"handlers": facts.get("concurrency")}
    return LivingWorker(
        id_,
        name,
        _names(facts.get("queues")),
        _names(facts["tasks"]) if isinstance(facts.get("tasks"), list) else None,
        _names(facts.get("in_children")),
        Slots(*(count if isinstance(count := slots.get(kind), int) else None for kind in Slots._fields)),
        host if isinstance(host := facts.get("of_host"), str) else None,
        {name: slots for name, slots in tenants.items() if isinstance(slots, int)}
        if isinstance(tenants := facts.get("tenants"), dict)
        else None,
    )


def _names(value: object) -> frozenset[str]:
    """Give those of a worker's names that can be read; a newer release may write others."""
    return frozenset(each for each in value if isinstance(each, str)) if isinstance(value, list) else frozenset()


OF_HOST = """SELECT id, facts FROM holdfast_worker WHERE id $any(ids: text) AND host = :host"""


async def ended_by_restart(tx: Tx, member_ids: Sequence[str], machine: Machine) -> set[str]:
    """Tell which of these ran on *machine* before it was started anew: that has ended them, and no job of theirs."""
    if machine.boot is None:
        return set()
    found = await tx.fetch_all(OF_HOST, ids=list(member_ids), host=machine.host)
    return {id_ for id_, facts in found if object_of(facts).get("boot") not in (None, machine.boot)}


class LivenessLock(NamedTuple):
    """The lock of a worker: its file, and which file that was when the worker took the lock."""

    worker: str
    path: str
    device: int
    inode: int


RECORD_LOCK = """
    INSERT INTO holdfast_worker (id, facts, started_at, seen_at, lock_path, lock_device, lock_inode)
    VALUES (:worker, '{}', $now, $now, :path, :device, :inode)
    ON CONFLICT (id) DO UPDATE
    SET lock_path = excluded.lock_path, lock_device = excluded.lock_device, lock_inode = excluded.lock_inode"""


@repeatable
async def record_lock(tx: Tx, lock: LivenessLock) -> None:
    """Write down that a worker lives while *lock* is taken."""
    await tx.execute(RECORD_LOCK, worker=lock.worker, path=lock.path, device=lock.device, inode=lock.inode)


LOCKS = """SELECT id, lock_path, lock_device, lock_inode FROM holdfast_worker WHERE lock_path IS NOT NULL"""


async def list_locks(tx: Tx) -> list[LivenessLock]:
    """Give the locks of all workers that are written down."""
    rows: list[Row] = await tx.fetch_all(LOCKS)
    return [LivenessLock(*row) for row in rows]


# they have ended, and have no jobs: nothing is left to prove
FORGET_WITH_LOCK = """DELETE FROM holdfast_worker WHERE id $any(workers: text)"""


@repeatable
async def forget_with_lock(tx: Tx, workers: Sequence[str]) -> None:
    """Remove the rows of *workers* with the locks that they name."""
    await tx.execute(FORGET_WITH_LOCK, workers=list(workers))
