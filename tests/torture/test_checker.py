"""The checker refuses what must never be: a good history, edited by hand, once for every assertion."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast.models import INTERNAL_QUEUE
from tests import law
from tests.torture.checker import check
from tests.torture.history import Call, History, Line
from tests.torture.rules import Findings
from tests.torture.story import good_story, id_of

Edit = Callable[[History], Any]
Place = tuple[str, int]


@dataclass(frozen=True)
class Mutant:
    """An edit of the good history, and what it breaks."""

    invariant: str
    what: str
    edit: Edit


# ---- finding what to edit


def found(history: History, what: str, /, **wanted: Any) -> int:
    """Say where the first line of the audit is that became so."""
    for place, line in enumerate(history.audit):
        if line.what == what and line.new is not None and wanted.items() <= line.new.items():
            return place
    raise LookupError(wanted)


def became(job: int, status: str, old: str | None, /, **changes: Any) -> Edit:
    """Have the change of a job from *old* to *status* be another."""

    def edit(history: History) -> None:
        place = next(
            place
            for place, line in enumerate(history.audit)
            if line.what == "job"
            and line.new is not None
            and (line.new["seq"], line.new["status"]) == (job, status)
            and (line.old or {}).get("status") == old
        )
        line = history.audit[place]
        new = {name: value for name, value in changes.items() if not name.startswith("old_")}
        was = {name.removeprefix("old_"): value for name, value in changes.items() if name.startswith("old_")}
        assert line.new is not None
        history.audit[place] = line._replace(new=line.new | new, old=line.old and line.old | was)

    return edit


def claimed(job: int, **changes: Any) -> Edit:
    """Have a claim be another."""
    return became(job, "running", "pending", **changes)


def completed(job: int, **changes: Any) -> Edit:
    """Have a completion be another."""
    return became(job, "completed", "running", **changes)


def without(what: str, /, **wanted: Any) -> Edit:
    """Have a line never have been written."""
    return lambda history: history.audit.pop(found(history, what, **wanted))


def otherwise(what: str, wanted: dict[str, Any], xid: int | None = None, **changes: Any) -> Edit:
    """Have a line be another."""

    def edit(history: History) -> None:
        place = found(history, what, **wanted)
        line = history.audit[place]
        assert line.new is not None
        history.audit[place] = line._replace(new=line.new | changes, xid=line.xid if xid is None else xid)

    return edit


def twice(what: str, /, **wanted: Any) -> Edit:
    """Have a line be there twice."""

    def edit(history: History) -> None:
        place = found(history, what, **wanted)
        history.audit.insert(place, history.audit[place])

    return edit


def before(what: str, row: dict[str, Any], seq: int, status: str) -> Edit:
    """Have a line be written before a job came to *status*."""

    def edit(history: History) -> None:
        place = found(history, "job", seq=seq, status=status)
        history.audit.insert(place, Line(0, 0, 0, what, row, None))

    return edit


def line_of(history: History, seq: int, what: str, attempt: int = 1) -> dict[str, Any]:
    """Find what a handler has written down."""
    return next(
        line
        for line in history.runs
        if (line["job"], line["what"], line["attempt"]) == (id_of(seq), what, attempt)
    )  # fmt: skip


def run(seq: int, what: str, number: int = 1, **changes: Any) -> Edit:
    """Have a handler have written something else in its attempt of this *number*."""
    return lambda history: line_of(history, seq, what, number).update(changes)


def again(seq: int, what: str) -> Edit:
    """Have a handler have written something twice."""
    return lambda history: history.runs.append(dict(line_of(history, seq, what)))


def beside(seq: int, other: int, **changes: Any) -> Edit:
    """Have one handler begin while the other runs."""

    def edit(history: History) -> None:
        line_of(history, seq, "begin").update(at=line_of(history, other, "begin")["at"] + 0.001, **changes)
        history.audit.sort(key=lambda line: line.n)

    return edit


def asked(what: str, end: str = "ok", answer: dict[str, Any] | None = None, **facts: Any) -> Edit:
    """Have somebody else have asked for something."""
    return lambda history: history.calls.append(Call(what, facts, end, answer or {}))


def answered(number: int, **changes: Any) -> Edit:
    """Have a call have been another."""

    def edit(history: History) -> None:
        for name, value in changes.items():
            setattr(history.calls[number], name, value)

    return edit


def hooked(change: Callable[[list[dict[str, Any]]], Any]) -> Edit:
    """Have other messages have come."""
    return lambda history: change(history.hooks)


def left(table: str, **row: Any) -> Edit:
    """Have a row be left."""
    return lambda history: history.final[table].append(row)


def left_job(seq: int, **changes: Any) -> Edit:
    """Have a job be left otherwise."""
    return lambda history: history.final["job"][seq - 1].update(changes)


def harmed(**line: Any) -> Edit:
    """Have something else have happened to a process."""
    return lambda history: history.harm.append({"at": 9.0, **line})


def streamed(change: Callable[[list[dict[str, Any]]], Any]) -> Edit:
    """Have a reader have been given something else."""
    return lambda history: change(history.streams["events"])


def both(*edits: Edit) -> Edit:
    """Edit more than once."""
    return lambda history: [edit(history) for edit in edits]


def postgres(history: History) -> None:
    """Have it be the other database, on which nobody is proved dead."""
    history.facts["database"] = "postgres"


def second_delivery(history: History) -> None:
    """Have another message be sent of the same job, and come first."""
    place = found(history, "delivery", job=4)
    history.audit.insert(place + 1, Line(0, 0, 0, "delivery", {"job": 8, "target": 3, "event": "x"}, None))
    history.audit.append(history.audit.pop(found(history, "delivery", job=8)))
    history.hooks.insert(0, history.hooks[0] | {"message": id_of(8)})


def deleted(history: History, seq: int) -> Line:
    """Make the line of a job that is deleted as it was left."""
    return Line(0, 0, 0, "job", None, history.final["job"][seq - 1])


MUTANTS = [
    Mutant("I-49", "a job is deleted", lambda history: history.audit.append(deleted(history, 1))),
    Mutant("I-58", "a job is deleted, and is there", asked("delete", chain="job-1", answer={"chains": ["job-1"]})),
    Mutant("I-12", "a move leaves the version alone", both(
        claimed(1, version=1), otherwise("event", {"job": 1, "name": "job:started"}, version=1))),
    Mutant("I-10", "the attempt number stays", claimed(7, attempt=0)),
    Mutant("I-10", "the attempt number jumps", completed(1, attempt=5)),
    Mutant("I-55", "the nonce is gone when a job has ended", completed(1, nonce=None)),
    Mutant("I-11", "a job completes twice", became(9, "completed", "paused", seq=8, id=id_of(8))),
    Mutant("I-31", "a requested cancel is erased", became(2, "cancelled", "running", cancel_requested_at=None)),
    Mutant("I-09", "a job runs without a lease", claimed(1, lease_until=None)),
    Mutant("I-10", "two claims of a job have one nonce", lambda history: history.audit.append(
        history.audit[found(history, "job", seq=7, status="running", attempt=2)]._replace(
            new=history.audit[found(history, "job", seq=7, attempt=2)].row | {"nonce": "nonce-7-1"}))),
    Mutant("I-24", "a job is claimed after its third crash", claimed(1, crashes=3)),
    Mutant("I-42", "a claim uses up two attempts", claimed(1, used=2)),
    Mutant("I-28", "a job runs before the one in front of it", claimed(1, place=3)),
    Mutant("I-27", "a job of a paused lane is claimed",
           before("lane", {"key": "a", "paused_at": 1}, 1, "running")),
    Mutant("I-32", "a job completes after a cancel", completed(1, old_cancel_requested_at=1)),
    Mutant("I-25", "a cancel is passed over", became(7, "pending", "running", old_cancel_requested_at=1)),
    Mutant("I-25", "a pause is passed over", became(7, "pending", "running", old_pause_requested_at=1)),
    Mutant("I-30", "shutdown leaves a job paused", became(9, "paused", "running", reason="shutdown")),
    Mutant("I-42", "an end uses up an attempt", became(7, "pending", "running", used=5)),
    Mutant("I-13", "a stale attempt completes a job", completed(1, output="7")),
    Mutant("I-13", "a reaper completes a job", completed(1, crashes=1)),
    Mutant("I-16", "a job is taken from a worker that lives", lambda history: history.harm.clear()),
    Mutant("I-16", "a lease that is not over is reaped where nobody is proved dead", postgres),
    Mutant("I-24", "a job goes on after its third crash", became(7, "pending", "running", crashes=3)),
    Mutant("I-38", "a job is let go by a chain that is open", completed(8, closed_as=None)),
    Mutant("I-28", "a job loses its place", claimed(2, place=1)),
    Mutant("I-27", "a job that has ended holds its lane", completed(1, head=1)),
    Mutant("I-26", "two jobs hold a lane", otherwise("job", {"seq": 2, "place": 2}, head=1)),
    Mutant("I-26", "a job runs in a lane that is not its own", claimed(1, head=0)),
    Mutant("I-05", "two open chains have one key",
           otherwise("job", {"seq": 7, "status": "pending"}, task="steady", unique_key="k")),
    Mutant("I-12", "two events tell of one move", twice("event", job=1, name="job:started")),
    Mutant("I-40", "a phase that was completed is written again", lambda history: history.audit.append(
        Line(0, 0, 0, "phase", *2 * (history.audit[found(history, "phase", job=7)].new,)))),
    Mutant("I-40", "a phase completes twice", twice("phase", job=7)),
    Mutant("I-13", "an attempt prepares that has lost its job",
           otherwise("effect", {"job": id_of(3), "what": "prepared"}, attempt=2)),
    Mutant("I-12", "a move has no event", without("event", job=1, name="job:started")),
    Mutant("I-08", "a silent move is unlawful", both(
        completed(1, old_status="cancelled"), without("event", job=1, name="job:completed"))),
    Mutant("I-08", "a move is not what its event says", claimed(1, old_status="failed")),
    Mutant("I-12", "an event is in a transaction of its own",
           otherwise("event", {"job": 1, "name": "job:started"}, xid=99)),
    Mutant("I-12", "an event tells of a move that was none", otherwise("event", {"job": 1, "version": 3}, version=9)),
    Mutant("I-36", "two jobs have one place in a chain", twice("job", seq=6)),
    Mutant("I-36", "a job is continued in another commit", otherwise("job", {"seq": 6}, xid=99)),
    Mutant("I-13", "a stale attempt continues a job", otherwise("job", {"seq": 6}, input='{"after": 7}')),
    Mutant("I-36", "a job without an output is not continued", completed(1, output=None)),
    Mutant("I-66", "a block writes and does not complete its job",
           otherwise("effect", {"job": id_of(3), "what": "done"}, attempt=2)),
    Mutant("I-66", "a block commits twice", twice("effect", job=id_of(3), what="done")),
    Mutant("I-66", "the writes of a block are gone", without("effect", job=id_of(3), what="done")),
    Mutant("I-01", "a chain that a start was given is not there", asked("start", ids=["x"], keys=[],
                                                                      answer={"chains": ["nobody"]})),
    Mutant("I-01", "a start that was accepted is lost", asked("start", ids=["x"], keys=[])),
    Mutant("I-02", "a start that was rolled back is there",
           both(answered(0, what="start, and roll back"))),
    Mutant("I-02", "half of a start is there", asked("start", "unknown", ids=[id_of(1), "x"], keys=[])),
    Mutant("I-37", "who has completed a job has not", asked("complete", job=id_of(1), answer={"completed": id_of(1)})),
    Mutant("I-37", "a job is completed by hand, and nobody asked", lambda history: history.calls.pop()),
    Mutant("I-86", "a job that waits has no reason", asked("explain", job=id_of(1), answer={
        "status": "pending", "codes": []})),
    Mutant("I-86", "a job that runs is said to be paused", asked("explain", job=id_of(1), answer={
        "status": "running", "codes": ["paused"]})),
    Mutant("I-86", "a pending job is said to have ended", asked("explain", job=id_of(1), answer={
        "status": "pending", "codes": ["ended"]})),
    Mutant("I-86", "reasons come in another order", asked("explain", job=id_of(1), answer={
        "status": "pending", "codes": ["no_worker", "not_due"]})),
    Mutant("I-86", "a job that is there is said not to be", asked("explain", job=id_of(1), answer={
        "status": None, "codes": ["not_committed"]})),
    Mutant("I-23", "an attempt begins twice", again(1, "begin")),
    Mutant("I-03", "a handler begins, and nothing was claimed", run(1, "begin", attempt=7)),
    Mutant("I-03", "a handler begins before its claim", run(1, "begin", at=0.5)),
    Mutant("I-26", "two handlers of a lane run at once", run(1, "end", at=9.0)),
    Mutant("I-24", "a suspect runs beside another", beside(9, 8, crashes=2)),
    Mutant("I-40", "a phase that was completed runs again", lambda history: history.runs.append(
        line_of(history, 7, "phase") | {"attempt": 2})),
    Mutant("I-40", "a phase gives something else", run(7, "given", 2, result="fetch 2")),
    Mutant("I-70", "a reader is told of a delivery", streamed(lambda lines: lines[0].update(queue=INTERNAL_QUEUE))),
    Mutant("I-43", "an event comes before the state that it tells of",
           streamed(lambda lines: lines[0].update(job_version=0))),
    Mutant("I-44", "a reader misses an event", streamed(lambda lines: lines.pop(3))),
    Mutant("I-44", "a reader is given an event twice", streamed(lambda lines: lines.append(lines[3]))),
    Mutant("I-44", "a reader cannot go on where it was", streamed(lambda lines: lines.append({"name": "reset"}))),
    Mutant("I-44", "a reader is given events out of order", streamed(lambda lines: lines.reverse())),
    Mutant("I-47", "no message is made of an event", without("delivery", job=4)),
    Mutant("I-70", "a message comes that nobody sent", hooked(lambda hooks: hooks.append(
        hooks[0] | {"message": "x"}))),
    Mutant("I-47", "a message never comes", hooked(lambda hooks: hooks.clear())),
    Mutant("I-47", "a message is never taken", hooked(lambda hooks: hooks[0].update(answer="refuse"))),
    Mutant("I-47", "a message comes with two bodies", hooked(lambda hooks: hooks.append(hooks[0] | {"body": "c"}))),
    Mutant("I-48", "messages come out of order", second_delivery),
    Mutant("I-61", "a job is left waiting", left_job(1, status="pending")),
    Mutant("I-36", "a chain does not say how it ended", left_job(5, closed_as="failed")),
    Mutant("I-51", "a lane is left", left("lane", key="a", paused_at=None)),
    Mutant("I-51", "a key is left", left("unique", task="steady", key="k", chain_id=id_of(8), scope="open")),
    Mutant("I-51", "a blocker is left", left("blocker", job=77, position=0, chain_id=id_of(8), state="released")),
    Mutant("I-01", "a job is gone", lambda history: history.final["job"].pop(0)),
    Mutant("P-26", "there was a deadlock", lambda history: setattr(history, "deadlocks", 1)),
    Mutant("I-50", "a worker breaks", harmed(what="exit", role="worker-0", process=1, code=1)),
    Mutant("I-61", "all is not done in time", harmed(what="not done", seconds=99)),
    Mutant("I-31", "a job that was resumed is still asked to stop",
           became(9, "completed", "paused", status="pending", cancel_requested_at=1)),
    Mutant("I-09", "a lease is longer than its task says", claimed(1, lease_ms=1)),
    Mutant("I-24", "a job fails by its third crash, and not for it",
           became(7, "pending", "running", status="failed", crashes=3)),
    Mutant("I-28", "a job is given a place before it is due", otherwise("job", {"seq": 1, "place": 1}, run_at=10**10)),
    Mutant("I-28", "a chain goes on behind others in its lane", both(
        completed(5, lane="b", old_place=4), otherwise("job", {"seq": 6}, lane="b", place=5))),
    Mutant("I-39", "a job fails by a blocker that completed", became(9, "pending", "blocked", status="failed")),
    Mutant("I-49", "a chain is open, and marked stale", left_job(1, status="pending", stale_at=1)),
    Mutant("I-12", "an event tells of a job that keeps no history", claimed(1, history=0)),
]  # fmt: skip


@pytest.fixture(scope="module")
def good() -> History:
    return good_story()


def test_the_good_history_is_good(good: History) -> None:
    assert check(good).violations == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.invariant} {mutant.what}")
def test_what_must_never_be_is_refused(good: History, mutant: Mutant) -> None:
    edited = deepcopy(good)
    mutant.edit(edited)

    assert mutant.invariant in {each.partition(":")[0] for each in check(edited).violations}


def test_a_job_that_took_its_child_process_down_was_not_reaped(good: History) -> None:
    """The worker lives and says so itself: the lease need not be over."""
    edited = deepcopy(good)
    postgres(edited)
    became(7, "pending", "running", error='{"type": "ChildDied"}')(edited)

    assert check(edited).violations == []


def test_every_assertion_has_a_mutant(good: History, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: set[Place] = set()
    say = Findings.say

    def note(self: Findings, invariant: str, what: str) -> None:
        frame = inspect.currentframe()
        assert isinstance(frame, FrameType)
        assert frame.f_back is not None
        reached.add((Path(frame.f_back.f_code.co_filename).name, frame.f_back.f_lineno))
        say(self, invariant, what)

    monkeypatch.setattr(Findings, "say", note)
    for mutant in MUTANTS:
        edited = deepcopy(good)
        mutant.edit(edited)
        check(edited)

    assert sorted(assertions() ^ reached) == []


def assertions() -> set[Place]:
    """Find the files and lines at which a rule says that something is wrong."""
    return {
        (file.name, node.lineno)
        for folder in (Path(__file__).parent, Path(law.__file__).parent)
        for file in folder.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "_say"
    }


def test_a_history_survives_being_written_down(good: History) -> None:
    lines = [json.loads(json.dumps(line)) for line in good.audit]

    assert [Line(*line) for line in lines] == good.audit
