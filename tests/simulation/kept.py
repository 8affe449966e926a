"""Looks after every commit at what is kept beside the jobs: phases, deliveries, and what retention takes away."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence, Set
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from holdfast.models import DEFAULT_TRIGGERS, DELIVER, Trigger
from tests.simulation.violations import Violation

if TYPE_CHECKING:
    from tests.law.changes import Change
    from tests.simulation.world import World

STALE_SECONDS, DELETE_SECONDS = 15.0, 10.0
SUBSCRIPTION = "00000000-0000-0000-0000-00000000cafe"
SUBSCRIBED: tuple[Trigger, ...] = ("job:failed", "job:paused")
SUBSCRIBED_URL = "https://all.example/hook"
OPEN = "('blocked', 'pending', 'running', 'paused')"
ENDS = {"completed": "job:completed", "failed": "job:failed", "cancelled": "job:cancelled"}

AUDIT = f"""
CREATE TABLE sim_phase (n INTEGER PRIMARY KEY, job, name, status, result, old_name, old_status, old_result);
CREATE TRIGGER sim_phase_written AFTER UPDATE ON holdfast_phase
WHEN OLD.status = 'completed' OR NEW.status = 'completed' BEGIN
    INSERT INTO sim_phase (job, name, status, result, old_name, old_status, old_result)
    VALUES (NEW.job, NEW.name, NEW.status, NEW.result, OLD.name, OLD.status, OLD.result); END;
CREATE TABLE sim_gone (n INTEGER PRIMARY KEY, at, seq, id, chain_id, chain_index, status, head, gate, stale_at, what);
CREATE TRIGGER sim_deleted AFTER DELETE ON holdfast_job BEGIN
    INSERT INTO sim_gone (at, seq, id, chain_id, chain_index, status, head, gate, stale_at, what)
    VALUES (holdfast_now(), OLD.seq, OLD.id, OLD.chain_id, OLD.chain_index, OLD.status, OLD.head, OLD.gate,
        OLD.stale_at, 'job'); END;
CREATE TRIGGER sim_undelivered AFTER DELETE ON holdfast_delivery
WHEN EXISTS (SELECT 1 FROM holdfast_job WHERE seq = OLD.job AND status IN {OPEN}) BEGIN
    INSERT INTO sim_gone (at, seq, what) VALUES (holdfast_now(), OLD.target, 'undelivered'); END;
CREATE TRIGGER sim_unmade AFTER DELETE ON holdfast_job
WHEN EXISTS (SELECT 1 FROM holdfast_outbox WHERE job = OLD.seq) BEGIN
    INSERT INTO sim_gone (at, seq, what) VALUES (holdfast_now(), OLD.seq, 'undelivered'); END;
CREATE TABLE sim_outbox (n INTEGER PRIMARY KEY, what, seq, job, event, subscription);
CREATE TRIGGER sim_wanted AFTER INSERT ON holdfast_outbox BEGIN
    INSERT INTO sim_outbox (what, seq, job, event, subscription)
    VALUES ('put', NEW.seq, NEW.job, NEW.event, CASE WHEN NEW.webhook IS NULL THEN '{SUBSCRIPTION}' END); END;
CREATE TRIGGER sim_made AFTER DELETE ON holdfast_outbox BEGIN
    INSERT INTO sim_outbox (what, seq, job, event, subscription)
    VALUES ('taken', OLD.seq, OLD.job, OLD.event, CASE WHEN OLD.webhook IS NULL THEN '{SUBSCRIPTION}' END); END;
"""


class Delivery(NamedTuple):
    """A webhook as it was committed."""

    seq: int
    target: int
    event: str
    subscription: str | None


Wanted: TypeAlias = tuple[int, str, str | None]
"""An event of a job, and who is told of it: the job's own address, or the subscription."""


class Gone(NamedTuple):
    """A job that was deleted, as it was."""

    at: int
    seq: int
    id: str
    chain_id: str
    chain_index: int
    status: str
    head: int
    gate: str | None
    stale_at: int | None


class Kept:
    """Reads what each commit has added."""

    def __init__(self, world: World, ask: Callable[..., list[tuple[Any, ...]]]) -> None:
        self._world = world
        self._ask = ask
        self._seen_phase = self._seen_gone = self._seen_delivery = self._seen_outbox = 0
        self._was_enabled = True
        self.results: dict[tuple[int, str], str] = {}
        """What phases gave that have completed, by job and name."""
        self.deliveries: dict[str, Delivery] = {}
        self.internal: set[int] = set()
        self.gone: dict[int, str] = {}
        """The jobs that retention has deleted."""
        self._newly_gone: list[tuple[int, str]] = []

    def look(self, changes: Sequence[Change], events: Sequence[tuple[int, str]]) -> None:
        """Look at what was just committed: *events* are (job, name)."""
        self.internal |= {each.seq for each in changes if each.old_status is None and each.task == DELIVER}
        self._look_at_phases(changes)
        self._look_at_outbox(changes, events)
        for each in changes:
            if each.stale_at is not None and each.old_stale_at is None:
                later = {other.seq for other in changes if other.old_status is None and other.n > each.n}
                self._look_at_mark(each, later)
        self._look_at_gone()

    def take_gone(self) -> list[tuple[int, str]]:
        """Give the jobs that were deleted since this was last asked."""
        gone, self._newly_gone = self._newly_gone, []
        return gone

    # phases

    def _look_at_phases(self, changes: Sequence[Change]) -> None:
        """I-40: what a phase gave stays as it was. I-24: a job that has come so far is no suspect."""
        sql = "SELECT n, job, name, status, result, old_name, old_status, old_result FROM sim_phase WHERE n > ?"
        for n, job, name, status, result, old_name, old_status, old_result in self._ask(sql, self._seen_phase):
            self._seen_phase = n
            if old_status == "completed":
                if (name, status, result) != (old_name, old_status, old_result):
                    raise Violation(f"I-40: phase {old_name} of job {job} was completed, and is {name} {status}")
                continue
            if (job, name) in self.results:
                raise Violation(f"I-40: phase {name} of job {job} completes twice")
            self.results[job, name] = result
            self._world.reached["phase completed"] += 1
            crashes = [each.crashes for each in changes if each.seq == job]
            if 0 not in crashes:  # whoever shares the commit may count a new one right after
                raise Violation(f"I-24: phase {name} of job {job} completes, and its crashes stay: {crashes}")

    def begins(self, job: int, name: str) -> None:
        """I-40: no attempt executes a phase whose result is committed."""
        if (job, name) in self.results:
            raise Violation(f"I-40: phase {name} of job {job} runs again")

    def gives(self, job: int, name: str, result: str) -> None:
        """I-40: whoever asks for a phase is given what was committed, byte for byte."""
        stored = self.results.get((job, name))
        if stored is None or json.loads(stored) != result:
            raise Violation(f"I-40: phase {name} of job {job} gives {result}, and {stored} is committed")

    # webhooks

    def _look_at_outbox(self, changes: Sequence[Change], events: Sequence[tuple[int, str]]) -> None:
        """I-47: what is to be told is committed with what it tells. I-70: and of a delivery nobody is told."""
        silent = {each.seq for each in changes if not each.history}
        told = [(job, name) for job, name in events if job not in self.internal]
        told += [
            (each.seq, ENDS[each.status])
            for each in changes
            if not each.history and each.status in ENDS and each.status != each.old_status
        ]
        put, taken = self._read_outbox()
        ((is_enabled,),) = self._ask("SELECT disabled_at IS NULL FROM holdfast_subscription WHERE id = ?", SUBSCRIPTION)
        wanted = self._wanted(told)
        surely, perhaps = bool(is_enabled and self._was_enabled), bool(is_enabled or self._was_enabled)
        self._was_enabled = bool(is_enabled)
        for (target, event, subscription), count in wanted.items():
            found = put[target, event, subscription]
            least = count if subscription is None or surely else 0
            most = count if subscription is None or perhaps else 0
            if not least <= found <= most:
                raise Violation(f"I-47: {found} rows for {count} of {event} of job {target} to {subscription}")
        for target, event, subscription in put:
            is_unseen = target in silent and event not in ENDS.values()
            if target in self.internal:
                raise Violation(f"I-70: {event} of the delivery {target} is to be delivered")
            if (target, event, subscription) not in wanted and not is_unseen:
                raise Violation(f"I-47: {event} of job {target} is to be told, and did not happen")
            if target in silent:
                self._world.reached["delivery without history"] += 1
        self._look_at_deliveries(taken, surely)

    def _read_outbox(self) -> tuple[Counter[Wanted], Counter[Wanted]]:
        """Give what was put into the outbox, and what was taken out. I-48: nothing before what came earlier."""
        counts: dict[str, Counter[Wanted]] = {"put": Counter(), "taken": Counter()}
        sql = "SELECT n, what, seq, job, event, subscription FROM sim_outbox WHERE n > ?"
        for n, what, seq, job, event, subscription in self._ask(sql, self._seen_outbox):
            self._seen_outbox = n
            counts[what][job, event, subscription] += 1
            if what == "taken" and self._ask("SELECT 1 FROM holdfast_outbox WHERE job = ? AND seq < ?", job, seq):
                raise Violation(f"I-48: deliveries of {event} of job {job} are made before those of an earlier event")
        return counts["put"], counts["taken"]

    def _look_at_deliveries(self, taken: Counter[Wanted], is_surely_enabled: bool) -> None:
        """I-47: deliveries are made in the commit that takes their event out of the outbox, and in no other."""
        rows = self._ask(
            """SELECT holdfast_delivery.job, target, event, subscription, id FROM holdfast_delivery
                JOIN holdfast_job ON holdfast_job.seq = holdfast_delivery.job WHERE holdfast_delivery.job > ?""",
            self._seen_delivery,
        )
        made = {id_: Delivery(job, target, event, subscription) for job, target, event, subscription, id_ in rows}
        found = Counter(each[1:] for each in made.values())
        for wanted in found.keys() | taken.keys():
            least = taken[wanted] if wanted[2] is None or is_surely_enabled else 0
            if not least <= found[wanted] <= taken[wanted]:
                raise Violation(f"I-47: {found[wanted]} deliveries are made of {taken[wanted]} of {wanted}")
        for each in made.values():
            self._seen_delivery = max(self._seen_delivery, each.seq)
            self._world.reached["delivery made" if each.subscription is None else "subscriber told"] += 1
        self.deliveries |= made

    def _wanted(self, told: Sequence[tuple[int, str]]) -> Counter[Wanted]:
        wanted: Counter[Wanted] = Counter()
        for job, name in told:
            if name not in SUBSCRIBED and name not in DEFAULT_TRIGGERS:
                continue
            ((webhook,),) = self._ask("SELECT webhook FROM holdfast_job WHERE seq = ?", job) or [("",)]
            if webhook and name in DEFAULT_TRIGGERS:
                wanted[job, name, None] += 1
            elif webhook is None and name in SUBSCRIBED:
                wanted[job, name, SUBSCRIPTION] += 1
        return wanted

    def arrived(self, message: str, address: str, body: str) -> None:
        """I-47, I-48: a message is one that was committed, as it was committed, and in its turn."""
        delivery = self.deliveries.get(message)
        if delivery is None:
            raise Violation(f"I-47: message {message} was posted, and there is no such delivery")
        ((status, given),) = self._ask("SELECT status, input FROM holdfast_job WHERE id = ?", message)
        if (json.loads(given)["url"], json.loads(given)["body"]) != (address, body):
            raise Violation(f"I-47: message {message} was posted otherwise than it was committed")
        earlier = [
            each.seq
            for each in self.deliveries.values()
            if each.target == delivery.target
            and each.subscription == delivery.subscription
            and each.seq < delivery.seq
            and status == "running"
            and self._ask(f"SELECT 1 FROM holdfast_job WHERE seq = ? AND status IN {OPEN}", each.seq)
        ]
        if earlier:
            raise Violation(f"I-48: delivery {delivery.seq} is posted before {earlier}")

    def look_at_the_end(self, answers: dict[str, set[int]], attempts: int) -> str | None:
        """I-47: all deliveries were made, and each was taken, refused for good, or tried to the last."""
        if left := self._ask("SELECT job, event FROM holdfast_outbox"):
            return f"I-47: {left} wait, and nobody makes deliveries of them"
        for message, delivery in self.deliveries.items():
            ((status, used, reason),) = self._ask("SELECT status, used, reason FROM holdfast_job WHERE id = ?", message)
            said = answers.get(message, set())
            if status == "completed" and 200 in said:
                continue
            if status == "failed" and (said & {404, 410} or used >= attempts or reason == "poison"):
                self._world.reached["delivery failed"] += 1
                continue
            return f"I-47: {delivery} ended {status} ({reason}) after {used} tries that were answered {said}"
        return None

    # retention

    def _look_at_mark(self, each: Change, later: Set[int]) -> None:
        """I-49: nothing is marked before its time, or while it matters. The same commit added *later* jobs."""
        self._world.reached["marked stale"] += 1
        ((closed_as, closed_at),) = self._ask(
            "SELECT closed_as, closed_at FROM holdfast_job WHERE id = ?", each.chain_id
        )
        if closed_as is None or each.status not in ENDS or each.head:
            raise Violation(f"I-49: job {each.seq} is marked stale: {each.status}, head {each.head}, chain {closed_as}")
        if each.at - closed_at < STALE_SECONDS * 1000:
            raise Violation(f"I-49: job {each.seq} is marked stale {each.at - closed_at} ms after the end of its chain")
        undelivered = self._ask(
            f"""SELECT 1 FROM holdfast_delivery JOIN holdfast_job ON holdfast_job.seq = holdfast_delivery.job
                WHERE target = ?1 AND status IN {OPEN} AND event <> 'job:stale'
                UNION ALL SELECT 1 FROM holdfast_outbox WHERE job = ?1 AND event <> 'job:stale'""",
            each.seq,
        )
        self._look_at_need("marked", each.chain_id, bool(undelivered), later)

    def _look_at_need(self, what: str, chain: str, is_undelivered: bool, later: Set[int] = frozenset()) -> None:
        rows = self._ask(
            f"""SELECT waiting.seq FROM holdfast_blocker AS link JOIN holdfast_job AS waiting ON waiting.seq = link.job
                WHERE link.chain_id = ?1 AND waiting.chain_id <> ?1 AND waiting.status IN {OPEN}""",
            chain,
        )
        if waiting := [seq for (seq,) in rows if seq not in later]:
            raise Violation(f"I-49: chain {chain} was {what}, and {waiting} wait for it")
        if is_undelivered:
            raise Violation(f"I-49: chain {chain} was {what}, and has an undelivered webhook")

    def _look_at_gone(self) -> None:
        """I-49: nothing is deleted that is open, holds its lane, is needed, or was not stale for the whole time."""
        columns = "n, what, at, seq, id, chain_id, chain_index, status, head, gate, stale_at"
        for n, what, *row in self._ask(f"SELECT {columns} FROM sim_gone WHERE n > ?", self._seen_gone):
            self._seen_gone = n
            if what == "undelivered":
                raise Violation(f"I-49: job {row[1]} was deleted, and has an undelivered webhook")
            gone = Gone(*row)
            self._world.reached["deleted"] += 1
            self.gone[gone.seq] = gone.id
            self._newly_gone.append((gone.seq, gone.id))
            if gone.status not in ENDS or gone.head or gone.gate is not None:
                raise Violation(f"I-49: {gone} was deleted")
            if gone.stale_at is None or gone.at - gone.stale_at < DELETE_SECONDS * 1000:
                raise Violation(f"I-49: {gone} was deleted before its time")
            left = self._ask("SELECT seq FROM holdfast_job WHERE chain_id = ?", gone.chain_id)
            if left:
                raise Violation(f"I-49: {gone} was deleted, and of its chain {left} are left")
            self._look_at_need("deleted", gone.chain_id, is_undelivered=False)
