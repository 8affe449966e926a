"""Asks, now and then after a commit, why open jobs do not run, and sees that every answer is so (I-86).

It reads the tables by itself, one fact after the other, and makes of them the codes that must come out. It draws from a
chance of its own, so that what happens in a run does not depend on who asks.
"""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from holdfast.database.sqlite.tx import SqliteTx
from holdfast.database.tx import drive
from holdfast.models import DELIVER
from holdfast.store import workers
from holdfast.store.insight import explain
from tests.law.reasons import wrong_reasons
from tests.simulation.process import DIALECT
from tests.simulation.violations import Violation

if TYPE_CHECKING:
    from tests.simulation.world import World

EVERY = 25
"""After how many commits it asks."""
MOST = 3
"""How many jobs it asks about."""
OPEN = "SELECT id FROM holdfast_job WHERE status IN ('blocked', 'pending', 'paused') ORDER BY seq"
JOB = "SELECT status, gate, run_at, error, crashes, lane, queue, task, seq FROM holdfast_job WHERE id = ?"
HALTED = "SELECT 1 FROM holdfast_job WHERE lane = ? AND head = 1 AND id <> ? AND status IN ('failed', 'paused')"
LANE_PAUSED = "SELECT 1 FROM holdfast_lane WHERE key = ? AND paused_at IS NOT NULL"
QUEUE_PAUSED = "SELECT 1 FROM holdfast_queue WHERE name = ? AND paused_at IS NOT NULL AND coalesce(until, ?) >= ?"
WORKERS = "SELECT id, facts FROM holdfast_worker WHERE seen_at > ?"
TAKEN = "SELECT worker FROM holdfast_job WHERE status = 'running' AND (task = ?1) = (?2 = ?1)"
WAITS_FOR = """
    SELECT 1 FROM holdfast_blocker AS link LEFT JOIN holdfast_job AS first ON first.id = link.chain_id
    WHERE link.job = ?1 AND coalesce(link.state, 'armed') = 'armed' AND (first.closed_as IS NULL
        OR (first.closed_as <> 'completed'
            AND (SELECT on_blocker_failure FROM holdfast_job WHERE seq = ?1) = 'wait'))"""


class Reasons:
    """Asks about the jobs of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = Random(world.seed)
        self._rows = world.connect()
        self._tx = SqliteTx(self._rows, DIALECT)
        self._commits = 0

    def look(self) -> None:
        """Ask, if it is time to."""
        self._commits += 1
        if self._commits % EVERY:
            return
        ids = [id_ for (id_,) in self._ask(OPEN)]
        for id_ in self._chance.sample(ids, min(MOST, len(ids))):
            self._look_at(id_)

    def _look_at(self, id_: str) -> None:
        found = drive(explain.explain(self._tx, UUID(id_)))
        if found.job is None or str(found.job.id) != id_:
            raise Violation(f"I-86: job {id_} is open, and {found.job} is explained")
        codes = [each.code for each in found.reasons]
        for code in codes:
            self._world.reached[f"explained: {code}"] += 1
        if wrong := wrong_reasons(str(found.job.status), codes):
            raise Violation(f"I-86: {wrong}")
        if codes != (expected := self._expected(id_)):
            raise Violation(f"I-86: job {found.job.seq} is explained by {codes}, and what holds is {expected}")

    def _expected(self, id_: str) -> list[str]:
        """Say what holds of a job, by one look at the tables for each code."""
        ((status, gate, run_at, error, crashes, lane, queue, task, seq),) = self._ask(JOB, id_)
        now = self._world.store_ms()
        serving = self._serving(queue, now)
        slots = sum(facts["slots"]["webhooks" if task == DELIVER else "handlers"] for facts in serving.values())
        taken = [worker for (worker,) in self._ask(TAKEN, DELIVER, task) if worker in serving]
        waits = status == "blocked" and bool(self._ask(WAITS_FOR, seq))
        holds = {
            "paused": status == "paused",
            "blocked": status == "blocked",
            "not_due": run_at > now and error is None,
            "backing_off": run_at > now and error is not None,
            "lane_behind": gate == "lane",
            "lane_halted": bool(lane and self._ask(HALTED, lane, id_)),
            "lane_paused": bool(lane and self._ask(LANE_PAUSED, lane)),
            "queue_paused": bool(self._ask(QUEUE_PAUSED, queue, now + 1, now + 1)),
            "no_worker": not serving,
            "workers_busy": bool(serving) and gate == "ready" and len(taken) >= slots,
            "suspect": crashes >= 2,
        }
        codes = [code for code, it_holds in holds.items() if it_holds]
        is_arrival = gate == "arrival" and run_at <= now and status != "paused" and not waits
        return [*codes, "arriving"] if not codes or (is_arrival and codes == ["blocked"]) else codes

    def _serving(self, queue: str, now: int) -> dict[str, dict[str, Any]]:
        """Give what the workers say of themselves that serve *queue*; in a world each of them has all tasks."""
        rows = self._ask(WORKERS, now - workers.ALIVE_MS)
        known = {id_: json.loads(facts) for id_, facts in rows}
        living = {id_: facts for id_, facts in known.items() if "slots" in facts}
        return {
            id_: facts for id_, facts in living.items() if queue in facts["queues"] or queue.startswith("holdfast.")
        }

    def _ask(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._rows.execute(sql, values).fetchall()
