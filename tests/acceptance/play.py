"""The play in which crash points are walked: jobs that end in every way there is, and something happens on the way.

A database is migrated, jobs are started, a worker claims some and dies, more are started, and a second worker does all
of it, while somebody steers. One of these programs passes the point, and then

    kill    it is dead at once; it, or another worker, comes after it
    cut     its connections are gone, and it goes on
    raise   something of ours raises where nothing should, and it goes on
    stop    it stands still until its leases are over and others have done its work; then it goes on and changes nothing

Leases of who is dead or stands still are made to be over, as if their time had passed: nobody has to wait for that.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from holdfast import Holdfast
from holdfast.crashpoints import VARIABLE
from holdfast.errors import Busy, StoreError
from tests import forked
from tests.acceptance.jobs_of_tests import PLACE
from tests.acceptance.processes import until
from tests.acceptance.produce import job_id
from tests.acceptance.scene import ROOT, Scene, WorkerProcess, scene

REACHED = "crash_point_reached"
LEFT = "SELECT count(*) FROM holdfast_job WHERE gate IS NOT NULL OR head = 1"
POLLING = ("--poll", "0.5")  # what a cut transaction lets go, nobody is told of
IN_DOUBT = StoreError.exit_code  # it ends, and cannot know whether its last claim was committed that was cut off
ENDED_BY_AN_ERROR = {
    "shutdown.after_stop_claim:1:raise",  # it raises into the worker's own end, after which all is written
    "group.before_commit:1:raise",  # and into its beginning, on SQLite: the first that it commits is a proof of life
    "group.after_commit:1:raise",
}
Tables: TypeAlias = dict[str, list[tuple[Any, ...]]]


def walk(database: str, directory: Path, settings: dict[str, str], trap: str) -> None:
    """Play all of it with the trap set; assert that it sprang, and that nothing was lost or doubled."""
    told = produce("migrate", surroundings(database, directory, settings), trap)

    with scene(database, directory, **settings) as stage:
        told += produce("early", stage.environment, trap)
        stage.worker(waits=False, **{VARIABLE: "claim.after_commit"}).exit_code()
        told += produce("late", stage.environment, trap)
        let_leases_be_over(stage)
        play_until_the_end_of(trapped_worker(stage, trap), stage, trap)
        finish(stage)

        assert REACHED in told + stage.logs(), stage.logs()
        assert_that_all_was_done_once(stage)


def surroundings(database: str, directory: Path, settings: dict[str, str]) -> dict[str, str]:
    """Make the environment of a program that works on *database*."""
    given = {f"HOLDFAST_{name.upper()}": value for name, value in settings.items()}
    return {**os.environ, "HOLDFAST_DATABASE": database, PLACE: str(directory), **given}


def trapped_worker(stage: Scene, trap: str) -> WorkerProcess:
    """Start a worker with the trap set."""
    return stage.worker(*POLLING, "--grace", "0.5", waits=False, **trapped(trap))


def trapped(trap: str) -> dict[str, str]:
    """Name the settings with which the trap is set."""
    # the server cuts a transaction that has stood still for twice the deadline
    patience = {"HOLDFAST_DEADLINE_SECONDS": "1"} if trap.endswith(":stop") else {}
    return {VARIABLE: trap, **patience}


def assert_that_all_was_done_once(stage: Scene) -> None:
    """Assert that every job of the play has ended as it should, by one commit."""
    assert stage.statuses() == {"completed": 14, "cancelled": 1}
    assert set(stage.completions().values()) == {1}
    assert stage.rows("SELECT count(*) FROM holdfast_event WHERE name = 'job:enqueued'") == [(15,)]
    assert stage.rows(LEFT) == [(0,)]


def produce(act: str, environment: dict[str, str], trap: str) -> str:
    """Run a program with the trap set, again if that kills it, and on if it stops; give what it said."""
    command = [sys.executable, "-m", "tests.acceptance.produce", act]
    log = Path(environment[PLACE]) / f"{act}.log"
    program = start(command, {**environment, VARIABLE: trap}, log)
    until(lambda: program.is_stopped or not program.is_alive, f"{act} ends", 60)
    if program.is_stopped:
        program.send(signal.SIGCONT)
    if program.exit_code() == -signal.SIGKILL:
        forked.run(command, env=environment, cwd=ROOT, capture_output=True, timeout=60, check=True)
    else:
        assert program.exit_code() == 0, program.said
    return program.said


def start(command: Sequence[str], environment: dict[str, str], log: Path) -> WorkerProcess:
    """Start a program that says what it has to say in *log*."""
    with log.open("wb") as stream:
        return WorkerProcess(forked.Popen(command, cwd=ROOT, stdout=stream, stderr=stream, env=environment), log)


def play_until_the_end_of(worker: WorkerProcess, stage: Scene, trap: str) -> None:
    """Steer the jobs as people would, then tell the worker to end; it may be killed, or stand still, at any moment."""

    def has_only_the_waiting_one_left() -> bool:
        if worker.is_stopped or not worker.is_alive:
            return True
        steer(stage)
        return stage.statuses() == {"completed": 13, "cancelled": 1, "running": 1} and is_waiting(stage)

    until_on_stage(stage, has_only_the_waiting_one_left, "the jobs end")
    left_behind = stand_in_for(worker, stage) if worker.is_stopped else None
    worker.send(signal.SIGTERM)
    until(lambda: worker.is_stopped or not worker.is_alive, "the worker ends", 60)
    if worker.is_stopped:
        left_behind = stand_in_for(worker, stage)
    code = worker.exit_code()
    assert code in exit_codes(trap), worker.said
    assert left_behind in (None, tables(stage)), "it changed something that was no longer its own"


def exit_codes(trap: str) -> set[int]:
    """Say how a worker may end in which the trap springs, sooner or later."""
    mode = trap.rpartition(":")[2]
    codes = {"kill": {0, -signal.SIGKILL}, "raise": {0}}.get(mode, {0, IN_DOUBT})
    return codes | ({1} if trap in ENDED_BY_AN_ERROR else set())


def is_waiting(stage: Scene) -> bool:
    rows = stage.rows("SELECT progress FROM holdfast_job WHERE id = :id", id=str(job_id("wait")))
    return rows == [(50,)]


def stand_in_for(zombie: WorkerProcess, stage: Scene) -> Tables | None:
    """Have another worker do everything while *zombie* stands still, and let that go on; give what it may not change.

    On SQLite it may have the right to write: then nobody else has it, nothing can be taken from it, and it goes on as
    if nothing had happened.
    """
    done = None
    if not has_right_to_write(zombie, stage):
        until(lambda: stage.age_leases() == 0, "its leases are over", 30)
        finish(stage)
        assert_that_all_was_done_once(stage)
        done = tables(stage)
    zombie.send(signal.SIGCONT)
    until(lambda: not zombie.is_stopped, "it goes on")
    return done


def rob(zombie: WorkerProcess, stage: Scene, **options: Any) -> None:
    """Have another worker complete every job while *zombie* stands still; let that go on, and end, and change nothing.

    On SQLite it may have the right to write: then it only goes on.
    """
    if refusal(stage):
        zombie.send(signal.SIGCONT)
        return
    until(lambda: stage.age_leases() == 0, "its leases are over", 30)
    stage.worker(*POLLING, waits=False, **options)
    stage.until_all("completed", 60)
    before = tables(stage)

    zombie.send(signal.SIGCONT)
    zombie.send(signal.SIGTERM)
    zombie.exit_code()

    assert tables(stage) == before, "it changed something that was no longer its own"


def has_right_to_write(zombie: WorkerProcess, stage: Scene) -> bool:
    """Tell whether a process that stands still keeps all others from writing, who are told its number.

    If it was stopped between taking the lock and writing its number beside it, they are told the one before; then the
    system must say that the lock is its.
    """
    refused = refusal(stage)
    assert not refused or f"process {zombie.id} had it last" in refused or zombie.id in lock_holders(stage), refused
    return bool(refused)


def lock_holders(stage: Scene) -> set[int]:
    """Tell which processes hold a lock on a file of the stage, by what the system says."""
    files = {file.stat().st_ino for file in stage.directory.rglob("*") if file.is_file()}
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line]
    return {int(words[4]) for words in locks if int(words[5].rpartition(":")[2]) in files}


def refusal(stage: Scene) -> str:
    """Say how others are kept from writing, if they are, by who stands still; on PostgreSQL they never are."""
    if stage.hf.store.database == "postgres":
        return ""
    with Holdfast(stage.hf.settings.database, deadline_seconds=0.5).sync as person:
        try:
            person.queue("nobody").resume()
        except Busy as busy:
            return str(busy)
    return ""


def steer(stage: Scene) -> None:
    """Resume what is paused, and cancel the job that wants it once its handler runs."""
    asked = "SELECT 1 FROM holdfast_job WHERE id = :id AND cancel_requested_at IS NOT NULL"
    has_begun = str(job_id("cancel")) in {each["job"] for each in stage.notes("begin")}
    with suppress(StoreError):  # somebody stands still who has the row, or the right to write
        for (paused,) in stage.rows("SELECT id FROM holdfast_job WHERE status = 'paused'"):
            stage.face.resume(paused)
        # once: who locks a row of a dead worker again and again has the reaper hold off each time
        if has_begun and not stage.rows(asked, id=str(job_id("cancel"))):
            stage.face.cancel(job_id("cancel"))


def let_leases_be_over(stage: Scene) -> None:
    """Have nobody wait for the lease of who is dead; on SQLite the lock of a worker proves that at once."""
    if stage.hf.store.database == "postgres":
        stage.age_leases()


def finish(stage: Scene) -> None:
    """Let a worker without a trap do what is left."""
    stage.open("wait")
    stage.face.cancel(job_id("cancel"))
    let_leases_be_over(stage)
    worker = stage.worker(*POLLING, waits=False)

    def is_finished() -> bool:
        steer(stage)
        return set(stage.statuses()) <= {"completed", "cancelled"} and stage.rows(LEFT) == [(0,)]

    until_on_stage(stage, is_finished, "everything is finished")
    worker.kill()


def until_on_stage(stage: Scene, condition: Callable[[], bool], what: str) -> None:
    """Wait until *condition* holds; else tell all that is known."""
    try:
        until(condition, what, 60)
    except AssertionError as error:
        raise AssertionError(f"{error}; they are {stage.statuses()}; {stage.logs()}") from None


NAMES = ("job", "event", "lane", "queue", "unique", "blocker", "phase", "delivery", "subscription", "meta")


def tables(stage: Scene) -> Tables:
    """Read all that is written about jobs, and whatever else a verb may write."""
    return {name: sorted(stage.rows(f"SELECT * FROM holdfast_{name}"), key=repr) for name in NAMES}
