"""Scenes: what chance brings about too seldom, set by hand and played under a few seeds.

A scene tells the processes when to be born, the people what to ask and the disk when to fail; the engine is the real
one, and the checker looks on as ever. What only this scene can know it says itself, by a `Violation`.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from holdfast.errors import HoldfastError
from holdfast.store import lanes
from holdfast.store.jobs import claiming, completing, exchanging, steering
from tests.law.changes import BY_HAND
from tests.simulation.handlers import WORLD, Fate, elsewhere, steady
from tests.simulation.process import Process
from tests.simulation.violations import Violation
from tests.simulation.world import OPERATOR, POLL_SECONDS, World

MOST_SEEDS = 5
WELL = Fate("well", 0.1)


class Stage:
    """A world in which nothing happens by itself."""

    def __init__(self, world: World) -> None:
        self.world = world

    def give_birth(self, *concurrencies: int) -> list[Process]:
        """Start worker processes with so many slots."""
        self.world.most = len(self.world.processes) + len(concurrencies)
        for each in concurrencies:
            self.world.give_birth(each)
        return self.world.processes[-len(concurrencies) :]

    def start(self, call: Any, *fates: Fate, **options: Any) -> UUID:
        """Have a job started whose attempts come to *fates*; it has, a moment later."""
        job: UUID = self.world.new_id()
        self.world.fates[job] = list(fates)
        self.ask(self.world.people.hf.start(call.options(id=job, **options)))
        return job

    def steer(self, verb: Any, *ids: UUID) -> None:
        """Have people do what they do to jobs."""
        self.ask(self.world.people.store.run(steering.at_once, verb, list(ids), OPERATOR))

    def try_to(self, operation: Any, *args: Any) -> None:
        """Have people ask for something that may be refused."""
        with suppress(HoldfastError):
            self.ask(self.world.people.store.run(operation, *args))

    def ask(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Have people do something, and let that be done."""
        asked = self.world.people.spawn(coroutine)
        while not asked.done():
            self.wait(0.1)
        asked.result()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        machine = self.world.machine
        machine.run(machine.now + seconds)
        if machine.errors:
            raise Violation(machine.errors[0])

    def wait_until(self, is_so: Callable[[], bool], what: str, most: float) -> None:
        """Let time pass until it is so; that it never is within *most* seconds is a violation."""
        until = self.world.machine.now + most
        while not is_so():
            if self.world.machine.now >= until:
                raise Violation(f"{what}: not within {most:g} s")
            self.wait(0.05)

    def suspect(self, *ids: UUID) -> None:
        """Write down that each of these jobs has brought two processes down."""
        connection = self.world.connect()
        connection.executemany("UPDATE holdfast_job SET crashes = 2 WHERE id = ?", [(str(each),) for each in ids])
        connection.close()

    def status(self, job: UUID) -> str:
        """Read how a job stands."""
        ((status,),) = self.world.checker.ask("SELECT status FROM holdfast_job WHERE id = ?", str(job))
        return str(status)

    def steps(self, chain: UUID) -> list[str]:
        """Read how the jobs of a chain stand, in order."""
        sql = (
            "SELECT status FROM holdfast_job WHERE id = ?1 OR (chain_id = ?1 AND chain_index > 0) ORDER BY chain_index"
        )
        return [str(status) for (status,) in self.world.checker.ask(sql, str(chain))]

    def runs(self, job: UUID, attempt: int = 1) -> bool:
        """Tell whether a handler has seen this attempt."""
        return self.world.has_begun(str(job), attempt)

    def wait_for_end(self, what: str, *ids: UUID, most: float = 60.0) -> None:
        """Let time pass until these jobs have completed."""
        self.wait_until(lambda: all(self.status(each) == "completed" for each in ids), what, most)

    def never_reaped(self, why: str) -> None:
        """See that nobody has lost a job."""
        if self.world.reached["reaped"]:
            raise Violation(f"a job was reaped, although {why}")


Play = Callable[[Stage], None]


@dataclass(frozen=True, slots=True)
class Scene:
    """A named scene."""

    name: str
    play: Play


SCENES: dict[str, Scene] = {}


def scene(play: Play) -> Scene:
    """Make the function below a scene; its name is that of the function, in words."""
    name = play.__name__.replace("_", " ")
    SCENES[name] = Scene(name, play)
    return SCENES[name]


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a scene."""

    violation: str | None
    history: list[str]
    reached: Counter[str]


def play_scene(scene: Scene, seed: int, folder: Path, template: Path) -> Played:
    """Play a scene in *folder*, on a copy of *template*."""
    world = World(seed, folder, template)
    world.is_staged = True
    WORLD[:] = [world]
    gc.disable()  # nothing is collected in the middle of a turn
    try:
        scene.play(Stage(world))
    except Violation as violation:
        return Played(str(violation), world.history, world.reached)
    finally:
        world.close()
        gc.enable()
    return Played(None, world.history, world.reached)


@scene
def a_write_lock_outlasts_the_leases(stage: Stage) -> None:
    """I-22: nobody can renew while a stranger has the lock, and so nobody is robbed when it goes."""
    world = stage.world
    stage.give_birth(*(world.chance.choice((1, 2, 3)) for _ in range(3)))
    job = stage.start(elsewhere(n=1), Fate("well", 30))
    stage.wait(3 + world.chance.random() * 4)
    world.fate_loop.spawn(world.hold_write_lock(11.5 + world.chance.random() * 2))
    stage.wait_for_end("the job completes", job)
    stage.never_reaped("nobody could write")


@scene
def a_lost_attempt_ends_while_its_worker_runs_the_job_anew(stage: Stage) -> None:
    """I-13, I-23: its lease could not be renewed, its handler will not stop, and nobody else has room for the job."""
    stage.give_birth(1)
    other = stage.start(elsewhere(n=0), Fate("well", 100))
    stage.wait_until(lambda: stage.runs(other), "the neighbour is busy", 20)
    (robbed,) = stage.give_birth(2)
    job = stage.start(steady(n=1), Fate("deaf", 10), Fate("well", 8), Fate("well", 8), Fate("well", 8))
    stage.wait_until(lambda: stage.runs(job), "the job runs", 10)
    robbed.denied.add(claiming.renew)
    stage.wait_until(lambda: stage.world.reached["reaped"] > 0, "the neighbour reaps it", 20)
    stage.wait_until(lambda: len(stage.world.begun) > 2, "the robbed worker runs it anew", 30)
    robbed.denied.clear()
    stage.wait_for_end("the later attempt completes", job, most=30)


@scene
def what_two_loops_claim_at_once_is_sorted_by_suspicion(stage: Stage) -> None:
    """I-24: short jobs come and go on a slow disk, so that both loops are always under way; some are suspects."""
    stage.world.disk.weather.slow = 0.3
    calls = [stage.start(steady(n=n), *[Fate("well", 0.05)] * 20) for n in range(80)]
    stage.suspect(*calls[::4])
    stage.give_birth(3)
    stage.wait_for_end("all of them complete", *calls)


@scene
def a_blocker_closes_before_it_was_counted_anew(stage: Stage) -> None:
    """I-38: one blocker is tried again, so its dependent is to be counted; the other closes before anybody does."""
    again = stage.start(steady(n=1), Fate("fatal", 1), WELL)
    other = stage.start(steady(n=2), Fate("well", 5))
    waiting = stage.start(steady(n=3), WELL, blockers=[again, other])
    stage.give_birth(2)
    stage.wait_until(lambda: stage.status(waiting) == "failed", "it fails by the first", 10)
    third = stage.start(steady(n=4), Fate("well", 10))
    stage.wait_until(lambda: stage.runs(third), "no slot is free, so nobody looks for arrivals", 10)
    stage.steer(steering.retry, again)
    stage.wait_for_end("who waited for both runs", waiting)


@scene
def the_poll_finds_what_no_hint_told(stage: Stage) -> None:
    """I-45: with every hint lost a job waits for the poll, and no longer."""
    stage.world.hints = False
    stage.give_birth(1)
    stage.wait(3 * POLL_SECONDS)
    job = stage.start(steady(n=1), WELL)
    stage.wait_until(lambda: stage.runs(job), "I-45: the job runs", POLL_SECONDS + 1)


@scene
def a_worker_that_cannot_renew_stops_its_handlers(stage: Stage) -> None:
    """I-20: before the lease is over, and so before a neighbour runs the job."""
    (robbed,) = stage.give_birth(1)
    job = stage.start(steady(n=1), Fate("well", 30), WELL)
    stage.wait_until(lambda: stage.runs(job), "the job runs", 10)
    stage.give_birth(1)
    robbed.denied |= {claiming.renew, exchanging.exchange}
    stage.wait_until(lambda: stage.runs(job, 2), "the neighbour runs it", 30)


@scene
def a_cancelled_handler_that_will_not_stop_keeps_its_lease(stage: Stage) -> None:
    """I-21: for as long as it runs; nobody may run the job beside it."""
    stage.give_birth(1, 1)
    job = stage.start(steady(n=1), Fate("deaf", 20))
    stage.wait_until(lambda: stage.runs(job), "the job runs", 10)
    stage.steer(steering.cancel, job)
    stage.wait_until(lambda: stage.status(job) == "cancelled", "the job is cancelled", 30)
    stage.never_reaped("its worker could renew all the time")


@scene
def a_renewal_that_fails_once_is_tried_again(stage: Stage) -> None:
    """I-21: no error ends the renewal."""
    (process,) = stage.give_birth(1)
    job = stage.start(steady(n=1), Fate("well", 20))
    stage.wait_until(lambda: stage.runs(job), "the job runs", 10)
    stage.give_birth(1)
    process.denied.add(claiming.renew)
    stage.wait(2.5)
    process.denied.clear()
    stage.wait_for_end("the job completes", job)
    stage.never_reaped("renewals failed for much less than its lease")
    if stage.world.reached["fenced"]:
        raise Violation("I-21: the handler was stopped, although renewals failed for much less than its lease")


@scene
def a_lane_is_paused_while_its_head_runs(stage: Stage) -> None:
    """I-27: the head ends, and the next one waits until the lane is resumed."""
    stage.give_birth(2)
    first, second = stage.start(steady(n=1), Fate("well", 3), lane="a"), stage.start(steady(n=2), WELL, lane="a")
    stage.wait_until(lambda: stage.runs(first), "the head runs", 10)
    stage.ask(stage.world.people.store.run(lanes.pause_lane, "a", OPERATOR))
    stage.wait_for_end("the head completes", first)
    stage.wait(2 * POLL_SECONDS)
    if stage.runs(second):
        raise Violation("I-27: a job of a paused lane runs")
    stage.ask(stage.world.people.store.run(lanes.resume_lane, "a", OPERATOR))
    stage.wait_for_end("the next one completes", second)


@scene
def a_claim_whose_answer_is_lost_is_read_back(stage: Stage) -> None:
    """I-55: what it took is run, not left until its lease is over; and what ended meanwhile is written down."""
    (process,) = stage.give_birth(2)
    first = stage.start(steady(n=1), Fate("well", 3))
    stage.wait_until(lambda: stage.runs(first), "the first job runs", 10)
    second = stage.start(steady(n=2), WELL, delay=1)
    stage.world.disk.weather.lost_answers = 1.0
    stage.wait_until(lambda: stage.status(second) == "running", "the second is claimed", 10)
    process.denied.add(claiming.claimed_by)  # nor can it be read back, until the first job has ended
    stage.world.disk.weather.lost_answers = 0.0
    stage.wait(4)
    process.denied.clear()
    stage.wait_for_end("both complete", first, second)
    stage.never_reaped("its worker lived, and could read")


@scene
def an_end_is_written_again_when_its_answer_is_lost(stage: Stage) -> None:
    """I-55: nobody knows whether it was committed, so it is kept until that is certain."""
    stage.give_birth(6)
    jobs = [stage.start(steady(n=n), Fate("well", 1 + n / 3)) for n in range(6)]
    stage.wait_until(lambda: all(map(stage.runs, jobs)), "all run", 10)
    stage.world.disk.weather.lost_answers = 1.0
    stage.wait(2.5)  # not so long that the leases, whose renewals are not answered either, are given up
    stage.world.disk.weather.lost_answers = 0.0
    stage.wait_for_end("all complete", *jobs, most=10)
    stage.never_reaped("its worker lived, and could write")


@scene
def people_ask_for_what_must_not_be(stage: Stage) -> None:
    """I-08: whatever is asked of a job in whatever status, only what the law allows happens."""
    stage.give_birth(2)
    ended = stage.start(steady(n=1), WELL)
    stage.wait_for_end("it completes", ended)
    running = stage.start(steady(n=2), Fate("well", 30))
    stage.wait_until(lambda: stage.runs(running), "it runs", 10)
    pending = stage.start(steady(n=3), delay=60)
    paused = stage.start(steady(n=4), paused=True)
    stage.try_to(completing.complete_at_once, ended, ["steady"], str(BY_HAND), OPERATOR)
    for job in (ended, running, pending, paused):
        for verb, *args in ((steering.pause,), (steering.resume,), (steering.retry,), (steering.reschedule, 0, 0)):
            stage.try_to(steering.at_once, verb, [job], *args, OPERATOR)
    stage.try_to(steering.at_once, steering.cancel, [ended], OPERATOR)
    for job in (running, pending, paused):
        stage.try_to(completing.complete_at_once, job, ["steady"], str(BY_HAND), OPERATOR)


@scene
def a_failed_head_is_given_up(stage: Stage) -> None:
    """I-27: its lane is halted until then, and goes on in that commit."""
    stage.give_birth(1)
    first, second = stage.start(steady(n=1), Fate("fatal", 0.1), lane="a"), stage.start(steady(n=2), WELL, lane="a")
    stage.wait_until(lambda: stage.status(first) == "failed", "the head fails", 10)
    stage.wait(2 * POLL_SECONDS)
    if stage.runs(second):
        raise Violation("I-27: a job of a halted lane runs")
    stage.steer(steering.cancel, first)
    stage.wait_for_end("the next one completes", second)


@scene
def a_worker_shuts_down_while_a_head_runs(stage: Stage) -> None:
    """I-30: the job is given back, and its lane is not halted."""
    (process,) = stage.give_birth(1)
    job = stage.start(steady(n=1), Fate("well", 30), WELL, lane="a")
    stage.wait_until(lambda: stage.runs(job), "the head runs", 10)
    assert process.worker is not None
    stopping = process.spawn(process.worker.stop())
    stage.wait_until(stopping.done, "the worker stops", 10)
    stage.give_birth(1)
    stage.wait_for_end("another one runs it", job)


@scene
def a_process_dies_of_a_job_that_is_to_be_cancelled(stage: Stage) -> None:
    """I-25, I-31: the request outlives the process, and comes before what a loss would lead to."""
    (process,) = stage.give_birth(1)
    job = stage.start(steady(n=1), Fate("deaf", 30))
    stage.wait_until(lambda: stage.runs(job), "it runs", 10)
    stage.steer(steering.cancel, job)
    stage.world.kill(process)
    stage.give_birth(1)
    stage.wait_until(lambda: stage.status(job) == "cancelled", "it is cancelled", 30)


@scene
def a_process_dies_of_a_job_that_is_to_be_paused(stage: Stage) -> None:
    """I-25: here, too; and it is not run again before somebody resumes it."""
    (process,) = stage.give_birth(1)
    job = stage.start(steady(n=1), Fate("deaf", 30), WELL)
    stage.wait_until(lambda: stage.runs(job), "it runs", 10)
    stage.steer(steering.pause, job)
    stage.world.kill(process)
    stage.give_birth(1)
    stage.wait_until(lambda: stage.status(job) == "paused", "it is paused", 30)
    stage.steer(steering.resume, job)
    stage.wait_for_end("it completes", job)


@scene
def a_job_that_failed_by_its_blocker_is_given_up(stage: Stage) -> None:
    """I-08: who waits no longer is moved by its blocker neither when that is tried again nor when it completes."""
    stage.give_birth(2)
    blocker = stage.start(steady(n=1), Fate("fatal", 1), Fate("well", 3))
    given_up = stage.start(steady(n=2), WELL, blockers=[blocker])
    stage.wait_until(lambda: stage.status(given_up) == "failed", "it fails by its blocker", 10)
    stage.steer(steering.cancel, given_up)
    stage.steer(steering.retry, blocker)
    waiting = stage.start(steady(n=3), WELL, blockers=[blocker])
    stage.wait_until(lambda: stage.runs(blocker, 2), "the blocker runs again", 10)
    stage.steer(steering.pause, waiting)
    stage.wait_for_end("the blocker completes", blocker)
    stage.wait(2 * POLL_SECONDS)
    if (stage.status(given_up), stage.status(waiting)) != ("cancelled", "paused"):
        raise Violation(f"I-08: they are {stage.status(given_up)} and {stage.status(waiting)}")


@scene
def an_outage_outlasts_the_leases(stage: Stage) -> None:
    """I-22: who comes back first leaves the others one lease to come back, too."""
    stage.give_birth(1)
    job = stage.start(elsewhere(n=1), Fate("deaf", 40))
    stage.wait_until(lambda: stage.runs(job), "it runs", 10)
    (owner,) = stage.world.processes
    stage.give_birth(1)
    stage.wait(6)
    stage.ask(stage.world.have_outage(14))
    owner.denied.add(claiming.renew)
    stage.wait(19)
    owner.denied.clear()
    stage.wait_for_end("the job completes", job)
    stage.never_reaped("its worker had one lease to come back")


@scene
def good_and_bad_wishes_share_a_commit(stage: Stage) -> None:
    """I-64: the bad one fails alone."""
    stage.give_birth(1)
    ended = stage.start(steady(n=0), WELL)
    stage.wait_for_end("it completes", ended)
    people = stage.world.people
    wishes = [people.hf.start(steady(n=n).options(id=stage.world.new_id())) for n in range(8)]
    wishes.insert(4, people.store.run(steering.at_once, steering.pause, [ended], OPERATOR))
    tasks = [people.spawn(each) for each in wishes]
    stage.wait_until(lambda: all(task.done() for task in tasks), "all are answered", 10)
    if [task.exception() is None for task in tasks] != [number != 4 for number in range(9)]:
        raise Violation("I-64: somebody heard of another's error")
