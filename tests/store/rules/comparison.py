"""What is seen in a database beside what the model says; and two databases beside each other."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any
from uuid import UUID

from tests.law.moves import LEGAL, moves_told_by
from tests.store.rules.sides import Seen
from tests.store.rules.world import Job, World


class Comparison:
    """What is seen on one side, beside the model."""

    def __init__(self, name: str, world: World, seen: Seen) -> None:
        self.name = name
        self.world = world
        self.seen = seen

    def all(self) -> None:
        """Compare everything."""
        self.equal("jobs", sorted(self.seen.jobs), sorted(self.world.jobs))
        for id_, job in self.world.jobs.items():
            for what, (found, expected) in self.facts(id_, job).items():
                self.equal(f"{what} of job {id_}", found, expected)
        self.lanes()
        self.keys()
        self.events()

    def equal(self, what: str, found: Any, expected: Any) -> None:
        """Hold that *found* is what the law expects."""
        assert found == expected, f"{self.name}: {what}: {found!r}, but by the law {expected!r}"

    def facts(self, id_: UUID, job: Job) -> dict[str, tuple[Any, Any]]:
        """Lay what is stored of a job beside what the model knows."""
        found, hidden = self.seen.jobs[id_], self.seen.hidden[id_]
        facts = {
            "status": (str(found.status), job.status),
            "shown state": (str(found.state), self.world.shown(job)),
            "attempt": (found.attempt, job.attempt),
            "used attempts": (found.used, job.used),
            "crashes": (found.crashes, job.crashes),
            "interruptions": (found.interrupted, job.interrupted),
            "worker": (found.worker, job.worker),
            "lease": (found.lease_until and round(found.lease_until.timestamp() * 1000), job.lease_until),
            "nonce": (hidden["nonce"], job.token and job.token.nonce),
            "due time": (round(found.run_at.timestamp() * 1000), job.run_at),
            "end of the chain": (hidden["closed_as"], job.closed_as),
            "since when it is stale": (found.stale_at and round(found.stale_at.timestamp() * 1000), job.stale_at),
            "end time": (found.finished_at is not None, not job.is_open),
            "output": (found.output, job.output),
            "place in the chain": ((found.chain_id, found.chain_index), (job.chain, job.index)),
            "task, queue and lane": ((found.task, found.queue, found.lane), (job.task, job.queue, job.lane)),
            "priority and tags": ((found.priority, found.tags), (job.priority, job.tags)),
            "progress": ((found.progress, found.message), job.progress or (None, None)),
            "input": (found.input, f'{{"text":{json.dumps(job.input, ensure_ascii=False)}}}'),
            "phases": (self.seen.phases.get(id_, []), job.phases),
            "results of phases": (self.seen.results.get(id_, {}), job.results),
        }
        if job.status == "running":
            asked = (bool(hidden["wants_cancel"]), bool(hidden["wants_pause"]))
            facts["requests"] = (asked, (job.wants_cancel, job.wants_pause))
        if job.status == "blocked" and job.is_counted:
            facts["open blockers"] = (found.open_blockers, len(job.waits_for))
        return facts

    def lanes(self) -> None:
        """Compare who stands in lanes, in which order, and whose turn it is."""
        lanes = self.world.lanes
        self.equal("lanes", self.seen.lanes, {key: lane.is_paused for key, lane in lanes.items()})
        lines = {key: [job.id for job in lane.line] for key, lane in lanes.items() if lane.line}
        self.equal("lines of lanes", self.seen.lines, lines)
        heads = {key: lane.head.id for key, lane in lanes.items() if lane.head is not None}
        self.equal("heads of lanes", self.seen.heads, heads)

    def keys(self) -> None:
        """Compare who holds keys; once admission has nothing left to do, a chain that has ended holds none."""
        live = {key: held for key, held in self.world.keys.items() if self.world.holder(*key) is not None}
        self.equal("holders of keys", self.seen.holders, {key: held.holder for key, held in live.items()})
        if self.world.is_at_rest():
            left = [
                key for key, held in live.items() if held.scope == "open" and self.seen.hidden[held.holder]["closed_as"]
            ]
            self.equal("keys that ended chains hold", left, [])

    def events(self) -> None:
        """Compare the new events: just one for every move."""
        expected: dict[UUID, list[tuple[Any, ...]]] = defaultdict(list)
        for said in self.world.said:
            if said.job is not None:
                expected[said.job].append((said.name, said.status, said.attempt, said.continued))
        found = {id_: [(*event[:3], event[4]) for event in events] for id_, events in self.seen.events.items()}
        self.equal("events", found, dict(expected))
        others = Counter((said.name, *said.about) for said in self.world.said if said.job is None)
        self.equal("other events", self.seen.others, others)


class Versions:
    """The versions of jobs, which grow with every event, and the moves that the events tell of."""

    def __init__(self) -> None:
        self._last: dict[UUID, int] = {}
        self._statuses: dict[UUID, str] = {}

    def compare(self, seen: Seen) -> None:
        """Hold that versions grow, that every move is legal, and that no job is read older than its last event."""
        for id_, events in seen.events.items():
            for name, status, _, version, _ in events:
                self._hold_to_the_law(id_, name, status)
                least = self._last.get(id_, 0) + (name != "chain:completed")  # of the version that completed its job
                assert version >= least, f"{name} of {id_} has version {version}; by the law at least {least}"
                self._last[id_] = version
        self._last = {id_: last for id_, last in self._last.items() if id_ in seen.jobs}  # an id may come again
        self._statuses = {id_: status for id_, status in self._statuses.items() if id_ in seen.jobs}
        for id_, last in self._last.items():
            assert seen.jobs[id_].version >= last, f"job {id_} is read older than its last event; by the law {last}"

    def _hold_to_the_law(self, id_: UUID, name: str, status: str) -> None:
        """I-08: an event tells of a legal move."""
        if name in LEGAL:
            old = self._statuses.get(id_)
            told = f"{name} of {id_} tells of {old} -> {status}; by the law it may not"
            assert (old, status) in moves_told_by(name), told
            self._statuses[id_] = status


def compare_sides(one: Seen, other: Seen) -> None:
    """Hold that two databases have come to the same, down to the columns that nobody reads."""
    for id_ in one.jobs:
        ours, theirs = _all_of(one, id_), _all_of(other, id_)
        different = {name: (value, theirs[name]) for name, value in ours.items() if value != theirs[name]}
        assert not different, f"job {id_} differs between the databases, by the law it may not: {different}"
    assert one.events == other.events, "the events differ between the databases, by the law they may not"


def _all_of(seen: Seen, id_: UUID) -> dict[str, Any]:
    """Give all of a job but its numbers, which rolled-back starts use up on one database only."""
    job = seen.jobs[id_]
    shown = {name: getattr(job, name) for name in type(job).__slots__ if name != "seq"}
    return shown | {name: value for name, value in seen.hidden[id_].items() if name != "place"}
