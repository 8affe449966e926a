"""Running jobs in the model: claimed, renewed, ended by their worker, or taken back from one that is gone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tests.law.moves import HALTING, outcome
from tests.store.rules import phases
from tests.store.rules.admission import admit, tell
from tests.store.rules.continuing import Next, follow, is_handed_on, refuse
from tests.store.rules.world import QUEUES, Job, Refused, Token, World

BACKOFF_MS = 10_000
SUSPECT, CONVICTED = 2, 3


@dataclass(frozen=True)
class End:
    """How a handler, or its worker, came to an end; *after_ms* is when it wants to run again."""

    how: str
    after_ms: int = 0
    is_crash: bool = False
    gives_back: bool = False
    next: Next | None = None


def claim(world: World, most: int, worker: str, nonce: str) -> list[Job]:
    """Admit, then claim the first *most* jobs that are ready, in their order."""
    for queue in QUEUES:
        admit(world, queue)
    ready = [job for job in world.in_order() if job.is_ready and not world.is_paused(job.queue)]
    claimed = sorted(ready, key=lambda job: job.order)[:most]
    for job in claimed:
        job.status, job.is_ready = "running", False
        job.attempt, job.used = job.attempt + 1, job.used + 1
        job.token, job.worker = Token(job.id, job.number, job.attempt, nonce), worker
        job.lease_until = world.now + job.policy.lease_ms
        job.has_begun = job.crashes < SUSPECT
        world.say(job, "job:started")
    return claimed


def hold(world: World, token: Token) -> str:
    """Say how a claim stands."""
    job = world.jobs.get(token.job)
    if job is None or job.number != token.number:
        return "gone"
    if job.status != "running" or job.token != token:
        return "completed" if job.status == "completed" else "taken"
    return "cancel" if job.wants_cancel else "pause" if job.wants_pause else "held"


def held_by(world: World, token: Token) -> Job | None:
    """Give the job that a token still is the right to run."""
    job = world.jobs.get(token.job)
    return job if job is not None and job.status == "running" and job.token == token else None


def renew(world: World, tokens: Iterable[Token]) -> dict[Token, str]:
    """Prolong what is held; tell how each claim stands."""
    for token in tokens:
        if (job := held_by(world, token)) is not None:
            job.lease_until = world.now + job.policy.lease_ms
    return {token: hold(world, token) for token in tokens}


def progress(world: World, token: Token, percent: int, message: str | None) -> bool:
    """Write down how far a job is, if the token holds; tell whether that was done."""
    if (job := held_by(world, token)) is None:
        return False
    job.progress = (percent, message)
    phases.report(job)
    world.say(job, "job:progress")
    return True


def begin_phase(world: World, token: Token) -> str:
    """Begin the next phase, if the token holds and nobody wants the job to stop; say how the claim stands."""
    job = held_by(world, token)
    if job is None or job.wants_cancel or job.wants_pause:
        return hold(world, token)
    place = phases.next_phase(job.phases) or 0
    job.phases = ["completed" if at < place else "pending" for at in range(len(phases.NAMES))]
    job.phases[place] = "running"
    job.progress = (phases.PERCENT[place], None)
    world.say(job, "job:progress")
    return "held"


def complete_phase(world: World, token: Token) -> str:
    """Complete the phase that is under way, if the token holds, whatever is wanted of the job."""
    if (job := held_by(world, token)) is None:
        return hold(world, token)
    place = job.phases.index("running")
    job.phases[place] = "completed"
    job.results[place] = phases.result(token.attempt)
    job.progress = (phases.PERCENT[place + 1], job.progress[1] if job.progress else None)
    job.crashes = 0
    world.say(job, "job:phase:completed")
    return "held"


def begin(world: World, token: Token) -> bool:
    """Write down that the handler of a suspect begins."""
    if (job := held_by(world, token)) is not None:
        job.has_begun = True
    return job is not None


def judge(job: Job, raised: str) -> End:
    """Say what an attempt that raised something comes to; the first run counts as an attempt."""
    if raised == "an error" and job.used < job.policy.attempts:
        return End("retry", after_ms=BACKOFF_MS * 2 ** (job.used - 1))
    return End("fail")


Answer = tuple[list[Token], dict[Token, str], dict[Token, Refused]]


def settle(world: World, ends: Sequence[tuple[Token, End]]) -> Answer:
    """End attempts whose tokens hold; give those, how the claims of the others stand, and who may not go on so."""
    mine = [(token, job, end) for token, end in ends if (job := held_by(world, token)) is not None]
    going_on = [(job, end.next) for _, job, end in mine if end.next is not None and not job.wants_cancel]
    mistakes = refuse(world, going_on)
    refused = {token: mistakes[job] for token, job, _ in mine if job in mistakes}
    leave(world, [(job, end) for token, job, end in mine if token not in refused])
    known = {token for token, _, _ in mine}
    done = [token for token, _, _ in mine if token not in refused]
    return done, {token: hold(world, token) for token, _ in ends if token not in known}, refused


def reap(world: World, workers: Iterable[str] | None = None) -> int:
    """Take back the jobs whose lease is over, or of *workers* that are proved dead."""
    dead = None if workers is None else set(workers)
    over = [job for job in world.in_order() if job.lease_until is not None and _is_lost(world, job, dead)]
    leave(world, [(job, lost(job)) for job in over])
    return len(over)


def _is_lost(world: World, job: Job, dead: set[str] | None) -> bool:
    return job.worker in dead if dead is not None else (job.lease_until or 0) < world.now


def lost(job: Job) -> End:
    """Say what becomes of a job whose worker is gone: its crashes, its task's policy and its attempts decide."""
    if not job.has_begun:
        return End("give back", gives_back=True)
    if job.crashes + 1 >= CONVICTED:
        return End("poison", is_crash=True)
    if job.policy.on_lost == "retry" and job.used >= job.policy.attempts:
        return End("fail", is_crash=True)
    return End("lost" if job.policy.on_lost == "retry" else job.policy.on_lost, is_crash=True)


GOES_ON = ("retry", "reschedule", "give back", "lost")
LEADS_TO = {
    "complete": outcome("complete"),
    "retry": outcome("retry later"),
    "reschedule": outcome("reschedule running"),
    "give back": outcome("give back", "pending"),
    "lost": outcome("reap", "pending"),
    "fail": outcome("fail"),
    "poison": outcome("reap", "failed"),
    "pause": outcome("pause running"),
    "cancel": outcome("cancel running"),
}
GIVEN_BACK = ("give back", "reschedule", "pause")
"""What uses up no attempt, unless the worker was lost."""


def as_requested(job: Job, end: End) -> End:
    """Put what was asked for first: a cancel before everything, a pause before whatever would go on."""
    if job.wants_cancel:
        return replace(end, how="cancel", next=None)
    goes_on = end.how in GOES_ON or (end.is_crash and end.how != "poison")
    return replace(end, how="pause") if job.wants_pause and goes_on else end


def leave(world: World, ending: Sequence[tuple[Job, End]]) -> None:
    """Move jobs out of running, together; then their lanes go on, and who waits for them is told."""
    asked = [(job, as_requested(job, end)) for job, end in ending]
    passing = {lane for job, end in asked if (lane := _leave(world, job, end)) is not None}
    for lane in sorted(passing):
        world.pass_on(lane)
    firsts = [world.first(job) for job, _ in asked]
    tell(world, {first.id: first.closed_as for first in firsts if first.closed_as is not None})


def _leave(world: World, job: Job, end: End) -> str | None:
    """Move one job out of running; name its lane if it leaves that."""
    job.status, event = LEADS_TO[end.how]
    job.worker = job.lease_until = None
    job.used -= int(end.how in GIVEN_BACK and not end.is_crash)
    job.interrupted += int(end.how == "give back")
    job.crashes += int(end.is_crash)
    phases.end(job, end.how)
    if end.next is not None:
        job.successor = end.next.id
    world.say(job, event)
    if end.next is not None:
        return _go_on(world, job, end.next)
    if job.status == "pending":
        job.run_at = job.wake = world.now + end.after_ms
        return None
    if not job.is_open:
        world.close(job)
    if job.status == "completed":
        job.output = '"done"'
        world.say(job, "chain:completed")
    if not world.is_head(job):
        return None
    if job.status in HALTING and job.policy.halts_lane:
        world.say_of("lane:halted", job.lane, job.id)
        return None
    world.step_out(job)
    return job.lane


def _go_on(world: World, job: Job, next_: Next) -> str | None:
    """Let a job that has completed be followed; name its lane if the chain leaves its place there."""
    is_head, hands_on = world.is_head(job), is_handed_on(world, job, next_)
    successor = follow(world, job, next_)
    if hands_on and is_head:
        world.wake_head(world.lanes[successor.lane or ""])
    return job.lane if is_head and not hands_on else None
