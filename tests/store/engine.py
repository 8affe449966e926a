"""The engine's operations as its contract tests call them: claim, run to some end, settle, admit, expire."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.outcomes import Kind, Outcome
from holdfast.store import admission, outbox
from holdfast.store.jobs import claiming, settling
from holdfast.store.jobs.claiming import Claimed, Token, Want
from holdfast.store.jobs.settling import Settled, Settlement
from tests.support.log_rows import as_events
from tests.support.ways import Way

LEASE_MS = 30_000
WANTS = [Want("default", "greet", LEASE_MS), Want("sums", "add", LEASE_MS)]
RETRY = Outcome(Kind.RETRY, error='{"type":"OSError"}', delay_ms=60_000)
FAIL = Outcome(Kind.FAIL, error='{"type":"OSError"}', reason="fatal error")
PAUSE = Outcome(Kind.PAUSE, reason="look at it")
GIVE_BACK = Outcome(Kind.GIVE_BACK, reason="shutdown")
CANCEL = Outcome(Kind.CANCEL, reason="cancelled")
DONE = Outcome(Kind.COMPLETE, output='"Hello"')


async def claim(way: Way, most: int = 10, nonce: str = "nonce-1", wants: Sequence[Want] = WANTS) -> list[Claimed]:
    """Admit and claim, as a worker does."""
    return (await way.call(claiming.admit_and_claim, wants, most, "worker-1", nonce)).jobs


async def claim_all(way: Way, nonce: str = "nonce-1") -> list[Claimed]:
    """Admit until nothing more arrives, and claim."""
    await admit(way)
    return await claim(way, 1000, nonce)


async def admit(way: Way, *queues: str) -> int:
    """Run admission until it finds nothing more; answer how many arrivals it took."""
    taken = 0
    for queue in queues or ("default", "sums"):
        while count := await way.call(admission.admit, queue):
            taken += count
            assert taken < 10_000, f"queue {queue}: admission takes the same arrivals again and again"
    return taken


async def claim_one(way: Way, nonce: str = "nonce-1") -> Claimed:
    """Claim the one job that may run."""
    (job,) = await claim_all(way, nonce)
    return job


async def settle(way: Way, *ends: tuple[Token, Outcome], halts_lane: bool = True) -> Settled:
    """Settle attempts."""
    return await way.call(settling.settle, [Settlement(token, outcome, halts_lane) for token, outcome in ends])


async def run(way: Way, outcome: Outcome = DONE, *, halts_lane: bool = True) -> UUID:
    """Claim the one job that may run and settle it; give its id."""
    job = await claim_one(way)
    settled = await settle(way, (job.token, outcome), halts_lane=halts_lane)
    assert settled.done == [job.token]
    return UUID(job.id)


async def drain(way: Way) -> None:
    """Complete whatever may run, and what that lets run."""
    while ran := await claim_all(way, "drain"):
        await settle(way, *[(job.token, DONE) for job in ran])


async def make_deliveries(way: Way) -> int:
    """Make webhook deliveries until the outbox is empty, as a worker does; tell in how many steps."""
    steps = 0
    while (batch := await way.call(outbox.oldest)).rows:
        packed = outbox.pack(batch)
        assert not packed.unreadable
        assert (await way.call(outbox.deliver, packed.parcels)).taken
        steps += 1
    return steps


async def expire(way: Way, *tokens: Token, lease_ms: int | None = None) -> None:
    """Let leases run out; a reaper spares those longer than its server has been up, so make them *lease_ms* short."""
    await way.call(_expire, [token.seq for token in tokens], lease_ms)


async def _expire(tx: Tx, seqs: list[int], lease_ms: int | None) -> None:
    sql = """UPDATE holdfast_job SET lease_until = $now - 1, lease_ms = coalesce(CAST(:lease_ms AS bigint), lease_ms)
        WHERE seq $any(seqs: bigint)"""
    await tx.execute(sql, seqs=seqs, lease_ms=lease_ms)


async def come_due(way: Way) -> None:
    """Let every time that is waited for come."""
    await way.call(_come_due)


async def _come_due(tx: Tx) -> None:
    sql = """UPDATE holdfast_job SET run_at = $now - 1, wake_at = $now - 1
        WHERE coalesce(status, '') = 'pending' AND coalesce(gate, '') IN ('arrival', 'lane')"""
    await tx.execute(sql)


async def lane_rows(way: Way) -> list[str]:
    """Name the lanes that have a row."""
    return [key for (key,) in await way.rows("SELECT key FROM holdfast_lane ORDER BY key")]


async def facts_of(way: Way, name: str) -> list[Any]:
    """Read the facts of all events called *name*, in their order."""
    rows = as_events(await way.rows("SELECT name, facts FROM holdfast_event ORDER BY seq"), "name, facts")
    return [None if facts is None else json.loads(facts) for said, facts in rows if said == name]
