"""A history written by hand: a few jobs that fare as they should, for tests of the checker, which edit it.

Two jobs share a lane, and the second one is cancelled while it runs; one completes in a block, and a receiver is told;
one is continued; one has phases, loses its worker and is taken over; one waits for another; one is completed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from holdfast.models import DELIVER, INTERNAL_QUEUE
from tests.law.changes import BY_HAND
from tests.torture.audit import JOB
from tests.torture.history import Call, History, Line

LEASE_MS = 4000
WALL = 1_000_000.0
"""What the database's clock says, in seconds, when the monotonic one says 0."""


def id_of(seq: int) -> str:
    """Give the id of a job of the story."""
    return f"job-{seq}"


class Story:
    """Writes a history line by line."""

    def __init__(self) -> None:
        self.history = History(
            facts={
                "at": 0.0,
                "wall": WALL,
                "database": "sqlite",
                "seed": 1,
                "seconds": 1.0,
                "lease": LEASE_MS / 1000,
                "webhooks": True,
                "subscribed": ["job:completed"],
                "subscribed_tasks": ["booked"],
                "command": "none",
            },
            audit=[],
            calls=[],
            runs=[],
            harm=[{"at": 0.0, "what": "done", "seconds": 1.0}],
            streams={"events": []},
            hooks=[],
            final={table: [] for table in ("job", "lane", "unique", "blocker", "phase", "worker", "doubts", "server")},
        )
        self.clock = 1.0
        self._xid = 0
        self._rows: dict[int, dict[str, Any]] = {}
        self._told = 0

    @property
    def now_ms(self) -> int:
        """What the database's clock says."""
        return round((WALL + self.clock) * 1000)

    def commit(self) -> None:
        """Begin the next transaction, a while later."""
        self._xid += 1
        self.clock += 0.1

    def line(self, what: str, new: dict[str, Any] | None, old: dict[str, Any] | None = None) -> None:
        """Write a line of the audit."""
        number = len(self.history.audit) + 1
        copies = [None if row is None else dict(row) for row in (new, old)]
        self.history.audit.append(Line(number, self.now_ms, self._xid, what, *copies))

    def start(self, seq: int, task: str = "steady", **row: Any) -> None:
        """Insert a job, and tell that it was."""
        given = {"chain_id": id_of(seq), "status": "pending", "input": {}, **row}
        values = dict.fromkeys(JOB) | {
            "seq": seq,
            "id": id_of(seq),
            "chain_index": 0,
            "task": task,
            "on_blocker_failure": "fail",
            "run_at": self.now_ms,
            "history": 1,
            "attempt": 0,
            "version": 1,
            "head": 0,
            "crashes": 0,
            "used": 0,
            "open_blockers": 0,
            "queue": "default",
            **given,
            "input": json.dumps(given["input"]),
        }
        self._rows[seq] = values
        self.line("job", values)
        self.tell(seq, "job:enqueued")

    def change(self, seq: int, **changes: Any) -> None:
        """Update a job without a word."""
        old = self._rows[seq]
        self._rows[seq] = old | changes
        self.line("job", self._rows[seq], old)

    def move(self, seq: int, event: str, facts: str | None = None, **changes: Any) -> None:
        """Update a job, and tell of it."""
        self.change(seq, version=self._rows[seq]["version"] + 1, **changes)
        self.tell(seq, event, facts)

    def tell(self, seq: int, name: str, facts: str | None = None) -> None:
        """Append an event, and give it to who reads."""
        self._told += 1
        row = self._rows[seq]
        event = {"seq": self._told, "job": seq, "name": name, "version": row["version"], "attempt": row["attempt"]}
        self.line("event", event | {"facts": facts})
        if row["queue"] != INTERNAL_QUEUE:
            self.history.streams["events"].append(
                {"name": name, "version": row["version"], "job": row["id"], "job_version": row["version"],
                 "queue": row["queue"], "cursor": str(self._told)}
            )  # fmt: skip

    def claim(self, seq: int, worker: str = "worker-1", process: int = 1) -> None:
        """Have a worker begin a job."""
        self.commit()
        row = self._rows[seq]
        attempt = row["attempt"] + 1
        self.move(seq, "job:started", status="running", attempt=attempt, nonce=f"nonce-{seq}-{attempt}", worker=worker,
                  lease_until=self.now_ms + LEASE_MS, lease_ms=LEASE_MS, used=row["used"] + 1, gate=None)  # fmt: skip
        if row["queue"] != INTERNAL_QUEUE:
            self.clock += 0.05
            self.note(seq, "begin", process, task=row["task"], lane=row["lane"], crashes=row["crashes"], parent=0)

    def note(self, seq: int, what: str, process: int = 1, **facts: Any) -> None:
        """Have a handler write something down."""
        line = {"at": self.clock, "what": what, "job": id_of(seq), "attempt": self._rows[seq]["attempt"]}
        self.history.runs.append({**line, "process": process, **facts})

    def leave(self, seq: int, event: str, process: int | None = 1, facts: str | None = None, **changes: Any) -> None:
        """Have an attempt end; *process* is where its handler says so, None if it does not."""
        if process is not None:
            self.clock += 0.01
            self.note(seq, "end", process, reason=None)
        self.commit()
        self.move(seq, event, facts, worker=None, lease_until=None, **changes)

    def complete(self, seq: int, **changes: Any) -> None:
        """Have an attempt complete its job."""
        output = str(self._rows[seq]["attempt"])
        worker = self._rows[seq]["worker"]
        closed = {"closed_as": "completed"} if self._rows[seq]["chain_index"] == 0 else {}
        ended = {"status": "completed", "output": output, "completed_by": worker, "head": 0, "place": None}
        self.leave(seq, "job:completed", **{**ended, **closed, **changes})

    def call(self, what: str, end: str = "ok", answer: dict[str, Any] | None = None, **facts: Any) -> None:
        """Have somebody ask for something."""
        self.history.calls.append(Call(what, facts, end, answer or {}))

    def end(self) -> History:
        """Write down how all is left."""
        self.history.final["job"] += [dict(row) for row in self._rows.values()]
        return self.history


def good_story() -> History:
    """Tell of jobs that fare as they should."""
    story = Story()
    for part in PARTS:
        story.commit()
        part(story)
    return story.end()


def in_a_lane(story: Story) -> None:
    """Tell of two jobs in a lane."""
    story.call("start", ids=[id_of(1), id_of(2)], keys=[])
    for seq in (1, 2):
        story.start(seq, lane="a", gate="arrival")
    story.commit()
    story.change(1, place=1, head=1, gate="ready")
    story.change(2, place=2, gate="lane")
    story.claim(1)
    story.complete(1)
    story.change(2, head=1, gate="ready")
    story.claim(2)
    story.commit()
    story.move(2, "job:cancelling", cancel_requested_at=story.now_ms)
    story.leave(2, "job:cancelled", status="cancelled", closed_as="cancelled", head=0, place=None)


def in_a_block(story: Story) -> None:
    """Tell of one that completes in a block, and of its webhook."""
    story.call("start", ids=[id_of(3)], keys=[])
    story.start(3, "booked")
    story.claim(3)
    story.commit()
    story.line("effect", {"job": id_of(3), "attempt": 1, "what": "prepared"})
    story.complete(3)
    story.line("effect", {"job": id_of(3), "attempt": 1, "what": "done"})
    story.start(4, DELIVER, queue=INTERNAL_QUEUE)
    story.line("delivery", {"job": 4, "target": 3, "event": "job:completed", "subscription": "s"})
    story.claim(4)
    story.history.hooks.append({"message": id_of(4), "job": id_of(3), "event": "job:completed", "answer": "take",
                                "body": "b"})  # fmt: skip
    story.leave(4, "job:completed", None, status="completed", output="{}", completed_by="worker-1",
                closed_as="completed")  # fmt: skip


def in_a_chain(story: Story) -> None:
    """Tell of one that is continued."""
    story.call("start", ids=[id_of(5)], keys=[])
    story.start(5, "chained", input={"left": 1})
    story.claim(5)
    story.complete(5, output=None, closed_as=None)
    story.start(6, "chained", chain_id=id_of(5), chain_index=1, input={"left": 0, "after": 1})
    story.claim(6)
    story.complete(6)
    story.change(5, closed_as="completed")


def in_phases(story: Story) -> None:
    """Tell of one that is taken over in the middle, from a worker that died."""
    story.call("start", "unknown", ids=[id_of(7)], keys=[])
    story.start(7, "staged")
    story.history.final["worker"] += [{"id": "worker-2", "process": 2}]
    story.claim(7, "worker-2", 2)
    story.note(7, "phase", 2, name="fetch")
    story.commit()
    phase = {"job": 7, "position": 0, "name": "fetch", "status": "running", "result": None}
    story.line("phase", phase | {"status": "completed", "result": '"fetch 1"'}, phase)
    story.note(7, "given", 2, name="fetch", result="fetch 1")
    story.history.harm.append({"at": story.clock, "what": "SIGKILL", "role": "worker-1", "process": 2})
    story.history.harm.append({"at": story.clock, "what": "exit", "role": "worker-1", "process": 2, "code": -9})
    story.leave(7, "job:reaped", None, status="pending", gate="ready", crashes=1, reason="lost")
    story.claim(7)
    story.note(7, "given", name="fetch", result="fetch 1")
    story.complete(7, reason=None)


def behind_a_blocker(story: Story) -> None:
    """Tell of one that waits for another, which has a key."""
    story.call("start", ids=[id_of(8), id_of(9)], keys=["k"])
    story.start(8, unique_key="k")
    story.start(9, status="blocked", gate="arrival", open_blockers=1)
    story.history.final["blocker"].append({"job": 9, "position": 0, "chain_id": id_of(8), "state": "released"})
    story.claim(8)
    story.complete(8)
    story.move(9, "job:unblocked", status="pending", gate="ready", open_blockers=0)
    story.claim(9)
    story.leave(9, "job:paused", status="paused", reason="look at this")
    story.commit()
    story.call("complete", answer={"completed": id_of(9)}, job=id_of(9))
    story.move(9, "job:completed", '{"by":"operator"}', status="completed", output=str(BY_HAND), closed_as="completed")


PARTS: tuple[Callable[[Story], None], ...] = (in_a_lane, in_a_block, in_a_chain, in_phases, behind_a_blocker)
