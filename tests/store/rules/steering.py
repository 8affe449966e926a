"""What people do in the model: start, cancel, pause, resume, retry, reschedule, delete; hold lanes and queues."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from tests.law.moves import HALTING, sources
from tests.store.rules import phases
from tests.store.rules.admission import admit_named, free_in_vain, is_to_put_back
from tests.store.rules.world import POLICIES, Grave, Job, Lane, Refused, World


@dataclass(frozen=True)
class Spec:
    """One start as a caller writes it; *delay* and *within* are milliseconds."""

    task: str
    id: UUID | None = None
    lane: str | None = None
    priority: int = 0
    delay: int = 0
    paused: bool = False
    key: str | None = None
    scope: str = "open"
    within: int | None = None
    blockers: tuple[UUID, ...] = ()
    on_blocker_failure: str = "fail"
    text: str = ""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Started:
    """What a caller is answered."""

    id: UUID
    task: str
    status: str
    is_twin: bool


def start(world: World, specs: Sequence[Spec], ids: Sequence[UUID]) -> list[Started]:
    """Start a chain for each of *specs*, under *ids*; who meets an id or a key is given the chain that has it."""
    _refuse_starts(world, list(zip(specs, ids, strict=True)))
    answers: list[Started] = []
    for spec, id_ in zip(specs, ids, strict=True):
        twin = id_ if id_ in world.jobs else None
        if twin is None and spec.key is not None:
            twin = world.holder(spec.task, spec.key)
        job = _insert(world, spec, id_) if twin is None else world.first(world.jobs[twin])
        answers.append(Started(job.id, job.task, world.current(job.id).status, is_twin=twin is not None))
    return answers


def _refuse_starts(world: World, wanted: Sequence[tuple[Spec, UUID]]) -> None:
    tasks: dict[UUID, str] = {}
    if any("\0" in spec.text or any("\ud800" <= letter <= "\udfff" for letter in spec.text) for spec, _ in wanted):
        raise Refused("invalid_input")
    for spec, id_ in wanted:
        if tasks.setdefault(id_, spec.task) != spec.task:
            raise Refused("wrong_task", id_)
    for spec, id_ in wanted:
        if id_ in spec.blockers:
            raise Refused("blocker_cycle", id_)
    missing = {chain for spec, _ in wanted for chain in spec.blockers if chain not in world.jobs}
    if missing:
        raise Refused("chain_not_found", min(missing))
    for id_, task in tasks.items():
        if id_ in world.jobs and world.jobs[id_].task != task:
            raise Refused("wrong_task", id_)


def _insert(world: World, spec: Spec, id_: UUID) -> Job:
    world.count += 1
    status = "paused" if spec.paused else "blocked" if spec.blockers else "pending"
    job = Job(
        id=id_,
        number=world.count,
        task=spec.task,
        lane=spec.lane,
        priority=spec.priority,
        input=spec.text,
        status=status,
        run_at=world.now + spec.delay,
        chain=id_,
        queue=POLICIES[spec.task].queue,
        tags=spec.tags,
        blockers=tuple(world.jobs[each].chain for each in spec.blockers),
        on_blocker_failure=spec.on_blocker_failure,
        key=spec.key,
    )
    world.jobs[id_] = job
    if status == "blocked":
        job.wake = world.now
    elif status == "pending" and (spec.lane is not None or spec.delay):
        job.wake = job.run_at
    elif status == "pending":
        world.make_ready(job)
    if spec.key is not None:
        world.take_key(job, spec.scope, spec.within)
    world.say(job, "job:enqueued")
    return job


def start_again(world: World, job_id: UUID, new_id: UUID) -> Started:
    """Start a chain anew as it began; it waits for nothing. A key that it still holds after its end is handed over."""
    (current,) = world.named([job_id])
    job = world.first(current)
    spec = Spec(job.task, lane=job.lane, priority=job.priority, key=job.key, text=job.input, tags=job.tags)
    if job.key is not None and not current.is_open and world.holder(job.task, job.key) == job.id:
        held = world.keys.pop((job.task, job.key))
        spec = replace(spec, scope=held.scope, within=held.within)
    return start(world, [spec], [new_id])[0]


ONE_OF_THEM = "one of them"
"""Of several that were named and are to be refused, any may be told."""

Verb = Callable[[World, Sequence[UUID]], list[str]]


def at_once(world: World, verb: Verb, ids: Sequence[UUID]) -> list[str]:
    """Do *verb*, and what it leaves to admission, in one commit: on a connection of our own."""
    answers = verb(world, ids)
    admit_named(world, ids)
    return answers


def _answer(world: World, ids: Sequence[UUID], answers: dict[Job, str]) -> list[str]:
    return [answers[world.current(each)] for each in ids]


def _refuse(jobs: Sequence[Job], *allowed: str) -> None:
    for job in jobs:
        if job.status not in allowed:
            raise Refused("status_conflict", job.id)


def leave_to_admission(world: World, job: Job, *, concerns_chain: bool = True) -> None:
    """Have admission pass on the lane of a job that has ended, and tell who waits for its chain if that concerns it."""
    job.wake = world.now if job.lane is not None or job.is_watched else None
    if concerns_chain and world.first(job).is_watched:
        world.first(job).wake = world.now


def say_freed(world: World, job: Job, was: str) -> None:
    if world.is_head(job) and was in HALTING:
        world.say_of("lane:resumed", job.lane, job.id)


def cancel(world: World, ids: Sequence[UUID]) -> list[str]:
    """Cancel at once what does not run, by request what runs; what has ended for good is left."""
    answers = {}
    for job in world.named(ids):
        if job.status == "running":
            answers[job] = "requested"
            _request(world, job, "pause" if job.policy.cancels_by_pausing else "cancel")
        elif job.status in ("completed", "cancelled"):
            answers[job] = "already terminal"
        else:
            answers[job] = "cancelled"
            _cancel(world, job)
    return _answer(world, ids, answers)


def _request(world: World, job: Job, what: str) -> None:
    """Ask a running handler for something; who asks again changes nothing."""
    if what == "cancel" and not job.wants_cancel:
        job.wants_cancel = True
        world.say(job, "job:cancelling")
    if what == "pause" and not job.wants_pause:
        job.wants_pause = True
        world.say(job, "job:pausing")


def _cancel(world: World, job: Job) -> None:
    say_freed(world, job, job.status)
    job.status, job.is_ready, job.waits_for = "cancelled", False, []
    phases.cancel(job)
    world.step_out(job)
    world.close(job)
    leave_to_admission(world, job)
    world.say(job, "job:cancelled")


def pause(world: World, ids: Sequence[UUID]) -> list[str]:
    """Pause at once what waits, by request what runs; in its place a job keeps it."""
    jobs = world.named(ids)
    _refuse(jobs, *sources("pause", "request"))
    answers = {}
    for job in jobs:
        answers[job] = "requested" if job.status == "running" else "paused"
        if job.status == "running":
            _request(world, job, "pause")
            continue
        job.status, job.is_ready, job.is_counted, job.waits_for = "paused", False, False, []
        is_first_wanted = job.index == 0 and is_to_put_back(world, job)
        job.wake = world.now if job.owes_turn or is_first_wanted else None
        world.say(job, "job:paused")
        if world.is_head(job):
            world.say_of("lane:halted", job.lane, job.id)
    return _answer(world, ids, answers)


def resume(world: World, ids: Sequence[UUID]) -> list[str]:
    """Let paused jobs go on in their place, with the attempts that they have used."""
    jobs = world.named(ids)
    _refuse(jobs, *sources("resume"))
    for job in jobs:
        say_freed(world, job, job.status)
        _let_go_on(world, job)
    return _answer(world, ids, {job: job.status for job in jobs})


def retry(world: World, ids: Sequence[UUID]) -> list[str]:
    """Run failed or cancelled jobs again with a new budget; their keys must be free."""
    jobs = world.named(ids)
    _refuse(jobs, *sources("retry"))
    take_keys(world, jobs)
    for job in jobs:
        say_freed(world, job, job.status)
        job.used = job.crashes = 0
        job.run_at = world.now
        _let_go_on(world, job)
    return _answer(world, ids, {job: job.status for job in jobs})


def _let_go_on(world: World, job: Job) -> None:
    world.open_again(job)
    job.wake = max(job.run_at, world.now) if job.status == "pending" else world.now
    _keep_standing(world, job)
    if job.index > 0 and world.first(job).is_watched:
        world.first(job).wake = world.now
    world.say(job, "job:resumed")


def _keep_standing(world: World, job: Job) -> None:
    """Leave who stands behind the head there; have who still owes its lane's turn looked at now."""
    if world.has_place(job) and not world.is_head(job):
        job.wake = None
    elif job.owes_turn or (job.index == 0 and is_to_put_back(world, job)):
        job.wake = world.now


def take_keys(world: World, jobs: Sequence[Job], *, reopens: bool = True) -> None:
    """Take the keys of chains that open again, and of those that failed by them and will be blocked again.

    A chain that completes after all does not open again, but who failed by it does.
    """
    wanted = [world.key_of(job) for job in jobs]
    for job, key in zip(jobs, wanted, strict=True):
        twin = None if key is None else world.holder(*key)
        if reopens and (twin not in (None, job.chain) or (key is not None and wanted.count(key) > 1)):
            raise Refused("unique_conflict", job.chain if len(jobs) == 1 else ONE_OF_THEM)
    opening = list(jobs)
    for job in opening:
        if reopens or job not in jobs:
            world.take_key(job)
        if job in jobs or world.has_its_key(job):
            opening += [each for each in world.in_order() if _comes_along(each, job) and each not in opening]


def _comes_along(job: Job, blocker: Job) -> bool:
    """Tell whether a job that failed by a blocker is blocked again when that is tried again."""
    return blocker.chain in job.failed_by and job.status == "failed"


def reschedule(world: World, ids: Sequence[UUID], delay: int) -> list[str]:
    """Have pending jobs run in *delay* milliseconds; a place in a lane is kept."""
    jobs = world.named(ids)
    _refuse(jobs, *sources("reschedule"))
    for job in jobs:
        job.run_at, job.is_ready = world.now + delay, False
        job.wake = job.run_at
        _keep_standing(world, job)
        world.say(job, "job:rescheduled")
    return _answer(world, ids, {job: job.status for job in jobs})


def delete(world: World, ids: Sequence[UUID], cascade: bool) -> list[UUID]:
    """Delete chains, with *cascade* all they wait for, unless a job of another chain needs one, now or when retried."""
    chains = list(dict.fromkeys(world.jobs[each].chain for each in ids if each in world.jobs))
    for chain in chains:
        waited_for = [each for job in world.steps(chain) for each in job.blockers] if cascade else []
        chains += [each for each in dict.fromkeys(waited_for) if each in world.jobs and each not in chains]
    others = [job for job in world.jobs.values() if needs_its_blockers(job) and job.chain not in chains]
    if any(set(chains) & set(job.blockers) for job in others):
        raise Refused("still_referenced")
    firsts = world.in_order(world.jobs[chain] for chain in chains)
    for job in [job for chain in chains for job in reversed(world.steps(chain))]:
        remove(world, job)
    free_in_vain(world, set(chains))
    return [job.id for job in firsts]


def needs_its_blockers(job: Job) -> bool:
    """Tell whether *job* waits, or may be retried and would wait again."""
    return job.is_open or (job.stale_at is None and job.status != "completed")


def remove(world: World, job: Job) -> None:
    """Delete a job; if it held its lane, something stays of it until that is passed on."""
    say_freed(world, job, job.status)
    if job.lane is not None and (world.is_head(job) or job.owes_turn):
        world.graves.append(Grave(job.queue, job.lane, world.now))
    world.step_out(job)
    world.free_key(job, "open", "any")
    del world.jobs[job.id]
    world.unread = [(at, said) for at, said in world.unread if said.job != job.id]
    world.say_of("job:deleted", job.id)


def pause_lane(world: World, key: str) -> None:
    """Let no job of a lane begin; one that runs is left to finish."""
    lane = world.lanes.setdefault(key, Lane())
    lane.is_paused = True
    if lane.head is not None:
        lane.head.is_ready = False
    world.say_of("lane:paused", key)


def resume_lane(world: World, key: str) -> bool:
    """Let the jobs of a lane begin again; tell whether it was paused."""
    lane = world.lanes.get(key)
    if lane is None or not lane.is_paused:
        return False
    lane.is_paused = False
    if lane.head is not None and lane.head.wake is None:
        world.wake_head(lane)
    world.pass_on(key)
    world.say_of("lane:resumed", key, None)
    return True


def skip(world: World, key: str) -> UUID | None:
    """Set the job that halts a lane aside, as it is, and let the next one have its turn."""
    if key not in world.lanes:
        raise Refused("lane_not_found", key)
    head = world.lanes[key].head
    if head is None or head.status not in HALTING:
        return None
    world.step_out(head)
    world.pass_on(key)
    world.say_of("lane:resumed", key, head.id)
    return head.id


def lane_info(world: World, key: str) -> tuple[int, UUID | None, UUID | None, bool]:
    """Tell how many stand in a lane, whose turn it is, who halts it, and whether it is paused."""
    lane = world.lanes.get(key, Lane())
    if lane.head is None:
        return len(lane.line), None, None, lane.is_paused
    halting = lane.head.id if lane.head.status in HALTING else None
    return len(lane.line), lane.head.id, halting, lane.is_paused


def chain_info(world: World, job_id: UUID) -> tuple[UUID, str, str, str, list[UUID]]:
    """Tell how the chain of a job stands, and which jobs it has: its end and its state are those of its last one."""
    if job_id not in world.jobs:
        raise Refused("chain_not_found", job_id)
    chain, last = world.first(world.jobs[job_id]), world.current(job_id)
    return chain.id, chain.task, last.status, last.task, [job.id for job in world.steps(chain.id)]


def pause_queue(world: World, name: str, milliseconds: int | None) -> None:
    """Claim nothing from a queue until it is resumed, or for some time."""
    world.paused_queues[name] = None if milliseconds is None else world.now + milliseconds
    world.say_of("queue:paused", name)


def resume_queue(world: World, name: str) -> bool:
    """Claim from a queue again; tell whether it was paused."""
    if name not in world.paused_queues:
        return False
    del world.paused_queues[name]
    world.say_of("queue:resumed", name)
    return True
