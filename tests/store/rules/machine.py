"""The rule machine: it draws steps, takes each on every side and in the model, and compares answers and what is stored.

A rule's name is a sentence, so that a failing run reads as a story. Claims that were lost and jobs that were deleted
can still be drawn, on purpose: they are the zombies.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.models import RUN_PHASE
from holdfast.outcomes import Facts, Fail, Kind, Outcome, Pause, Reschedule
from holdfast.outcomes import judge as really_judge
from holdfast.store import admission
from holdfast.store.jobs import claiming as engine
from holdfast.store.jobs import reaping, settling
from holdfast.store.jobs.settling import Settlement
from tests.law.moves import TERMINAL, sources
from tests.store.rules import completing, keeping, phases, running, steering
from tests.store.rules.admission import admit
from tests.store.rules.comparison import Comparison, Versions, compare_sides
from tests.store.rules.continuing import Next
from tests.store.rules.drawing import (
    COMMITTED,
    LANES,
    OWN,
    ROLLED_BACK,
    EveryRule,
    anybody,
    batches,
    claims,
    counts,
    delays,
    ends,
    forms,
    has_room,
    has_room_for_one_that_waits,
    hows,
    is_halted,
    is_moving,
    is_paused,
    jobs_that_are,
    keys,
    lanes,
    lanes_that,
    likely_blockers,
    may_be_completed,
    may_go_on,
    messages,
    more_keys,
    nexts,
    other_tasks,
    policies,
    priorities,
    rarely,
    scopes,
    some,
    some_claim,
    some_lane,
    some_suspect,
    tags,
    tasks,
    texts,
    times,
    workers,
)
from tests.store.rules.running import End
from tests.store.rules.sides import (
    MOST_EVENTS,
    Error,
    Side,
    answer_of,
    begin_phase,
    complete_phase,
    continuation_of,
    error_of,
    instant,
)
from tests.store.rules.steering import Spec, at_once
from tests.store.rules.world import BEGIN, MINUTE, POLICIES, QUEUES, USUAL_QUEUE, Token, World

WANTS = [engine.Want(queue, task, policy.lease_ms) for task, policy in POLICIES.items() for queue in QUEUES]
CHANCE = Random(0)
STEP_MS = 10
NOBODY = UUID(int=0)
QUIET = 2**53


class JobsMachine(RuleBasedStateMachine):
    """Everything that callers, workers, people and the engine do to jobs, called J1, J2, …, and by claims, C1, C2, …"""

    def __init__(self, sides: Sequence[Side]) -> None:
        super().__init__()
        self.sides = sides
        self.world = World()
        self.versions = Versions()
        self.ids: dict[str, UUID] = {}
        self.tokens: dict[str, Token] = {}
        self.nonces = 0
        # else each example does without most rules, and few get as far as an attempt that ends
        self._rules_strategy.enabled_rules_strategy = st.just(EveryRule())  # type: ignore[arg-type]
        for side in sides:
            side.begin(BEGIN)

    # ---- how a step is taken

    def ask(self, real: Callable[[Side], Any], model: Callable[[World], Any], *, undone: bool = False) -> Any:
        """Take a step on every side and in the model, and compare what is answered; undo it in the model if asked."""
        answers = [answer_of(partial(real, side)) for side in self.sides]
        world = copy.deepcopy(self.world) if undone else self.world
        expected = answer_of(partial(model, world))
        for side, answer in zip(self.sides, answers, strict=True):
            if isinstance(answer, Error) and isinstance(expected, Error) and expected.about == steering.ONE_OF_THEM:
                answer = replace(answer, about=steering.ONE_OF_THEM)  # noqa: PLW2901
            assert answer == expected, f"{side.name} answers {answer}, but by the law it is {expected}"
        self.compare()
        return expected

    def steer(self, how: str, verb: str, names: Sequence[str], model: steering.Verb, **options: Any) -> None:
        """Let people steer jobs, on our own connection or on a caller's."""
        ids = [self.ids[each] for each in names]

        def real(side: Side) -> Any:
            return self.lend(side, how, partial(getattr(side.hf.sync, f"{verb}_many"), ids, **options))

        def law(world: World) -> list[str]:
            return at_once(world, model, ids) if how == OWN else model(world, ids)

        self.ask(real, law, undone=how == ROLLED_BACK)

    def start(self, how: str, specs: Sequence[Spec]) -> None:
        """Let a caller start chains; ids that the engine makes are taken from its answer."""
        made: list[UUID] = []

        def real(side: Side) -> Any:
            calls = side.calls(specs)
            started = self.lend(side, how, lambda **connection: side.hf.sync.start_many(calls, **connection))
            made[:] = made or [each.id for each in started]
            return started

        def law(world: World) -> Any:
            ids = [each.id or new for each, new in zip(specs, made or [NOBODY] * len(specs), strict=True)]
            return steering.start(world, specs, ids)

        answer = self.ask(real, law, undone=how == ROLLED_BACK)
        self.remember([] if isinstance(answer, Error) or how == ROLLED_BACK else [each.id for each in answer])

    def lend(self, side: Side, how: str, call: Callable[..., Any]) -> Any:
        """Do *call* on our own connection, or lend it a caller's, whose transaction then ends as asked."""
        if how == OWN:
            return call()
        with side.transaction(commits=how == COMMITTED) as connection:
            answer = caught(lambda: call(connection=connection))
        return told(answer)

    def remember(self, ids: Sequence[UUID]) -> None:
        """Give names to jobs that are new."""
        for each in ids:
            if each not in self.ids.values():
                self.ids[f"J{len(self.ids) + 1}"] = each

    def new_id(self) -> UUID:
        """Choose an id as a caller does."""
        return self.new_ids(1)[0]

    def new_ids(self, count: int) -> list[UUID]:
        """Choose ids that no job has had."""
        known = set(self.ids.values())
        return [id_ for number in range(1, len(known) + count + 1) if (id_ := UUID(int=number)) not in known][:count]

    # ---- callers

    @initialize(batch=batches)
    def somebody_starts_the_first_jobs(self, batch: list[tuple[str, str | None, str | None, int, int]]) -> None:
        """Begin with some jobs: an example without any has little to tell."""
        self.start_batch(OWN, batch)

    @precondition(has_room)
    @rule(
        how=hows, is_named=st.booleans(), task=tasks, lane=lanes, key=keys, scope=scopes, delay=delays,
        priority=priorities, paused=rarely, text=texts, tags=tags,
    )  # fmt: skip
    def somebody_starts_a_job(self, how: str, is_named: bool, scope: tuple[str, int | None], **options: Any) -> None:
        """Start one job, with an id of the caller's or of ours."""
        id_ = self.new_id() if is_named else None
        self.start(how, [Spec(id=id_, scope=scope[0], within=scope[1], **options)])

    @precondition(has_room)
    @rule(how=hows, batch=batches)
    def somebody_starts_several_jobs(self, how: str, batch: list[tuple[str, str | None, str | None, int, int]]) -> None:
        """Start a batch, in which keys may meet."""
        self.start_batch(how, batch)

    def start_batch(self, how: str, batch: Sequence[tuple[str, str | None, str | None, int, int]]) -> None:
        """Start a batch with ids that the engine makes."""
        self.start(
            how,
            [
                Spec(task, lane=lane, key=key, delay=delay, priority=priority)
                for task, lane, key, delay, priority in batch
            ],
        )

    @precondition(has_room_for_one_that_waits)
    @rule(
        how=hows, task=tasks, lane=lanes, key=more_keys, first=likely_blockers, second=likely_blockers, count=counts,
        on_blocker_failure=policies, delay=delays, paused=rarely,
    )  # fmt: skip
    def somebody_starts_a_job_that_waits(self, how: str, first: str, second: str, count: int, **options: Any) -> None:
        """Start a job with one or two blockers, some of which may be gone, the same, or closed."""
        blockers = (self.ids[first], self.ids[second])[:count]
        self.start(how, [Spec(id=self.new_id(), blockers=blockers, **options)])

    @rule(how=hows, job=anybody, task=tasks, key=keys, is_doubled=st.booleans())
    def somebody_starts_an_id_again(self, how: str, job: str, task: str, key: str | None, is_doubled: bool) -> None:
        """Repeat a start after an unknown outcome: the same id, perhaps twice in a batch, perhaps of another task."""
        id_ = self.ids[job]
        is_named = any(id_ in each.blockers for each in self.world.jobs.values())
        if id_ in self.world.jobs or not is_named:  # else who waits for the chain of old would wait for the new one
            self.start(how, [Spec(task, id=id_, key=key)] * (1 + is_doubled))

    @precondition(has_room)
    @rule(how=hows, job=jobs_that_are(*TERMINAL))
    def somebody_starts_a_job_anew(self, how: str, job: str) -> None:
        """Start a new chain as an old one began."""
        made: list[UUID] = []
        old = self.ids[job]

        def real(side: Side) -> Any:
            started = self.lend(side, how, partial(side.hf.sync.start_again, old))
            made[:] = made or [started.id]
            return started

        answer = self.ask(
            real,
            lambda world: steering.start_again(world, old, made[0] if made else NOBODY),
            undone=how == ROLLED_BACK,
        )
        self.remember([] if isinstance(answer, Error) or how == ROLLED_BACK else [answer.id])

    # ---- workers

    @rule(most=st.sampled_from((1, 2, 10)), worker=workers)
    def a_worker_claims(self, most: int, worker: str) -> None:
        """Admit what has arrived, and claim."""
        self.nonces += 1
        nonce = f"nonce-{self.nonces}"
        naps: list[tuple[bool, int | None]] = []

        def real(side: Side) -> list[tuple[Token, int]]:
            claims = side.call(engine.admit_and_claim, WANTS, most, worker, nonce)
            claimed = [(self.token_of(each), each.used) for each in claims.jobs]
            side.tokens |= {token: each.token for (token, _), each in zip(claimed, claims.jobs, strict=True)}
            naps.append((claims.more, claims.next_ms))
            return claimed

        def law(world: World) -> list[tuple[Token | None, int]]:
            return [(job.token, job.used) for job in running.claim(world, most, worker, nonce)]

        before = self.world.now
        for token, _ in self.ask(real, law):
            self.tokens[f"C{len(self.tokens) + 1}"] = token
        for more, next_ms in naps:
            self.oversleeps(before, more, next_ms)

    def token_of(self, claimed: engine.Claimed) -> Token:
        """Name a claim as the model does."""
        id_ = UUID(claimed.id)
        number = self.world.jobs[id_].number if id_ in self.world.jobs else 0
        return Token(id_, number, claimed.token.attempt, claimed.token.nonce)

    def oversleeps(self, now: int, more: bool, next_ms: int | None) -> None:
        """Hold that a worker which is told how long it may sleep does not sleep past what admission has to do."""
        wakes = [job.wake for job in self.world.jobs.values() if job.wake is not None]
        if wakes and not more:
            assert next_ms is not None, "a worker sleeps for ever, but something is to be admitted"
            assert now + next_ms <= max(min(wakes), now), f"a worker sleeps {next_ms} ms, past {min(wakes) - now}"

    @precondition(some_claim)
    @rule(first=claims, second=claims, count=counts, how=ends, other=ends, delay=delays)
    def workers_end_attempts(self, first: str, second: str, count: int, how: str, other: str, delay: int) -> None:
        """Settle one or two attempts in a batch, which may have lost their leases long ago."""
        batch = {second: other, first: how} if count == 2 else {first: how}
        given = [(self.tokens[claim], end, delay) for claim, end in batch.items()]

        def real(side: Side) -> Any:
            settled = side.call(settling.settle, [self.settlement(side, *each) for each in given])
            assert settled.busy == []
            known = {each: token for token, each in side.tokens.items()}
            assert settled.refused == {}
            return [known[each] for each in settled.done], lost_of(settled, known)

        def law(world: World) -> Any:
            ends = [(token, self.end(world, token, how, delay)) for token, how, _ in given]
            return running.settle(world, ends)[:2]

        self.ask(real, law)

    @precondition(may_go_on)
    @rule(first=claims, second=claims, count=counts, following=nexts, also=nexts)
    def workers_continue_chains(
        self, first: str, second: str, count: int, following: dict[str, Any], also: dict[str, Any]
    ) -> None:
        """Complete one or two attempts in a batch, each continued by a job, which may have to wait for the other."""
        names = list(dict.fromkeys((second, first)[-count:]))
        made = zip(names, self.new_ids(len(names)), (following, also), strict=False)
        given = {self.tokens[name]: self.next(id_, **options) for name, id_, options in made}

        def real(side: Side) -> Any:
            batch = [self.continued(side, token, next_) for token, next_ in given.items()]
            settled = side.call(settling.settle, batch)
            assert settled.busy == []
            known = {each: token for token, each in side.tokens.items()}
            refused = {known[each]: error_of(error) for each, error in settled.refused.items()}
            return [known[each] for each in settled.done], lost_of(settled, known), refused

        def law(world: World) -> Any:
            ends = [(token, End("complete", next=next_)) for token, next_ in given.items()]
            done, lost, refused = running.settle(world, ends)
            return done, lost, {token: error_of(error) for token, error in refused.items()}

        self.ask(real, law)
        self.remember([next_.id for next_ in given.values() if next_.id in self.world.jobs])

    def next(self, id_: UUID, names: Sequence[str], **options: Any) -> Next:
        """Say what is to follow; it waits for jobs by their names. A task that says its queue inherits none."""
        own = POLICIES[options["task"]].queue
        options["queue"] = options["queue"] or (None if own == USUAL_QUEUE else own)
        return Next(id_, blockers=tuple(self.ids[name] for name in names), **options)

    def continued(self, side: Side, token: Token, next_: Next) -> Settlement:
        """Say to the store that an attempt has completed, and what follows."""
        job = self.world.jobs.get(token.job)
        outcome = Outcome(Kind.COMPLETE, successor=continuation_of(next_))
        return Settlement(side.tokens[token], outcome, POLICIES["print" if job is None else job.task].halts_lane)

    def end(self, world: World, token: Token, how: str, delay: int) -> End:
        """Say in the model how an attempt ends."""
        job = running.held_by(world, token)
        if how in ("an error", "a fatal error"):
            return End("fail") if job is None else running.judge(job, how)
        return End(how, after_ms=delay if how == "reschedule" else 0)

    def settlement(self, side: Side, token: Token, how: str, delay: int) -> Settlement:
        """Say to the store how an attempt ends; what was raised is judged as a worker judges it."""
        job = self.world.jobs.get(token.job)
        task = "print" if job is None else job.task
        used = 1 if job is None else job.used
        facts = Facts(token.attempt, used, "ann")
        retry = side.hf.tasks.get(task).policy.retry
        raised = {
            "an error": OSError("no"),
            "a fatal error": Fail("never"),
            "pause": Pause("look at it"),
            "reschedule": Reschedule(after=delay / 1000),
        }
        plain = {
            "complete": Outcome(Kind.COMPLETE, output='"done"'),
            "give back": Outcome(Kind.GIVE_BACK, reason="shutdown"),
            "cancel": Outcome(Kind.CANCEL, reason="cancelled"),
        }
        outcome = plain[how] if how in plain else really_judge(raised[how], facts, retry, CHANCE)
        return Settlement(side.tokens[token], outcome, POLICIES[task].halts_lane)

    @precondition(some_claim)
    @rule(first=claims, second=claims)
    def workers_renew_leases(self, first: str, second: str) -> None:
        """Renew leases, held and lost."""
        batch = [self.tokens[claim] for claim in dict.fromkeys((first, second))]

        def real(side: Side) -> dict[Token, str]:
            holds = side.call(engine.renew, [side.tokens[token] for token in batch])
            return {token: str(holds[side.tokens[token]]) for token in batch}

        self.ask(real, lambda world: running.renew(world, batch))

    @precondition(some_claim)
    @rule(claim=claims, percent=st.sampled_from((0, 50, 100)), message=messages)
    def a_handler_tells_its_progress(self, claim: str, percent: int, message: str | None) -> None:
        """Write progress under a token."""
        token = self.tokens[claim]
        job = running.held_by(self.world, token)
        is_between = job is not None and bool(job.phases) and not job.has_run_phase
        phase = None if is_between else RUN_PHASE
        self.ask(
            lambda side: bool(
                side.call(engine.progress, [engine.ProgressReport(side.tokens[token], percent, message, phase)])
            ),
            lambda world: running.progress(world, token, percent, message),
        )

    @precondition(some_suspect)
    @rule(claim=claims)
    def the_handler_of_a_suspect_begins(self, claim: str) -> None:
        """Write down that a handler begins for which the claim has waited."""
        token = self.tokens[claim]
        self.ask(
            lambda side: side.call(engine.begin, side.tokens[token]),
            lambda world: running.begin(world, token),
        )

    @precondition(some_claim)
    @rule(claim=claims)
    def a_handler_begins_a_phase(self, claim: str) -> None:
        """Begin the next phase under a token, held or lost."""
        token = self.tokens[claim]
        job = running.held_by(self.world, token)
        if job is None or not (job.has_run_phase or phases.next_phase(job.phases) is None):
            self.ask(
                lambda side: side.call(begin_phase, side.tokens[token]),
                lambda world: running.begin_phase(world, token),
            )

    @precondition(some_claim)
    @rule(claim=claims)
    def a_handler_completes_a_phase(self, claim: str) -> None:
        """Complete the phase that is under way, under a token, held or lost."""
        token = self.tokens[claim]
        job = running.held_by(self.world, token)
        if job is None or ("running" in job.phases and not job.has_run_phase):
            self.ask(
                lambda side: side.call(complete_phase, side.tokens[token]),
                lambda world: running.complete_phase(world, token),
            )

    # ---- the engine

    @rule(milliseconds=times)
    def time_passes(self, milliseconds: int) -> None:
        """Let time pass."""
        self.tick(milliseconds)
        self.compare()

    def tick(self, milliseconds: int) -> None:
        """Set every clock."""
        self.world.now += milliseconds
        for side in self.sides:
            side.set_time(self.world.now)

    @rule(queue=st.sampled_from(QUEUES))
    def the_engine_admits(self, queue: str) -> None:
        """Take one step of admission for a queue that nobody serves."""

        def real(side: Side) -> None:
            side.call(admission.admit, queue)

        self.ask(real, partial(admit, queue=queue))

    @precondition(some("running"))
    @rule()
    def the_reaper_comes_round(self) -> None:
        """Take back what has an expired lease."""
        self.ask(lambda side: side.call(reaping.reap, QUIET).count, running.reap)

    @precondition(some("running"))
    @rule(worker=workers)
    def a_worker_is_proved_dead(self, worker: str) -> None:
        """Take back what a dead worker had, lease or not."""
        self.ask(
            lambda side: len(side.call(reaping.reap_dead, [worker])),
            lambda world: running.reap(world, [worker]),
        )

    # ---- people

    @precondition(some(*sources("cancel", "request")))
    @rule(how=hows, first=jobs_that_are(*sources("cancel", "request")), second=anybody, count=counts)
    def somebody_cancels(self, how: str, first: str, second: str, count: int) -> None:
        """Cancel jobs."""
        self.steer(how, "cancel", [first, second][:count], steering.cancel)

    @precondition(some(*sources("pause", "request")))
    @rule(how=hows, first=jobs_that_are(*sources("pause", "request")), second=anybody, count=counts)
    def somebody_pauses(self, how: str, first: str, second: str, count: int) -> None:
        """Pause jobs."""
        self.steer(how, "pause", [first, second][:count], steering.pause)

    @precondition(some("running"))
    @rule(how=hows, job=jobs_that_are("running"), verb=st.sampled_from(("cancel", "cancel", "pause")))
    def somebody_asks_a_handler_to_stop(self, how: str, job: str, verb: str) -> None:
        """Ask for what a handler may have been asked for already."""
        self.steer(how, verb, [job], steering.cancel if verb == "cancel" else steering.pause)

    @precondition(may_be_completed)
    @rule(how=hows, job=jobs_that_are(*sources("complete outside")), task=other_tasks)
    def somebody_completes(self, how: str, job: str, task: str | None) -> None:
        """Complete a job without a worker, perhaps taking it for one of another task."""
        id_ = self.ids[job]
        asked = task or self.task_of(id_)
        steps = [completing.Step(output='"by hand"')]

        def real(side: Side) -> Any:
            return self.lend(side, how, partial(side.hf.sync.complete, side.hf.tasks.get(asked), id_, "by hand"))

        def law(world: World) -> str:
            completing.complete(world, id_, asked, steps, at_once=how == OWN)
            return "completed"

        self.ask(real, law, undone=how == ROLLED_BACK)

    def task_of(self, id_: UUID) -> str:
        """Name the task of the current job of a chain."""
        return self.world.current(id_).task if id_ in self.world.jobs else "print"

    @precondition(may_be_completed)
    @rule(how=hows, job=jobs_that_are(*sources("complete outside")), form=forms, following=nexts)
    def somebody_takes_a_job_in_the_hand(self, how: str, job: str, form: str, following: dict[str, Any]) -> None:
        """Look at a job; then finish it, or go on and leave the next one, or finish that as well."""
        id_, made = self.ids[job], list[UUID]()
        task = self.task_of(id_)
        following = {**following, "text": "next"}

        def real(side: Side) -> Any:
            block = partial(side.hf.sync.completing, side.hf.tasks.get(task), id_)
            ids, seen = told(self.lend(side, how, partial(self.work, side, block, form, following)))
            made[:] = made or ids
            return seen

        def law(world: World) -> list[str]:
            next_ = self.next(made[0] if made else NOBODY, **following)
            steps = [completing.Step(next=next_)] if form.startswith("continue") else []
            steps += [completing.Step(output='"by hand"')] if form.endswith("finish") else []
            return completing.complete(world, id_, task, steps, at_once=how == OWN)

        answer = self.ask(real, law, undone=how == ROLLED_BACK)
        self.remember([] if isinstance(answer, Error) or how == ROLLED_BACK else made)

    def work(
        self, side: Side, block: Callable[..., Any], form: str, following: dict[str, Any], **connection: Any
    ) -> tuple[list[UUID], list[str]]:
        """Do with a job in the hand what *form* says; give the ids that were made, and what was seen."""
        made, seen = [], []
        with block(**connection) as job:
            seen.append(str(job.status))
            if form.startswith("continue"):
                job = job.continue_with(side.call_of(self.next(NOBODY, **following)))  # noqa: PLW2901
                made.append(job.id)
                seen.append(str(job.status))
            if form.endswith("finish"):
                job.finish("by hand")
        return made, seen

    @precondition(some(*sources("resume")))
    @rule(how=hows, job=jobs_that_are(*sources("resume")))
    def somebody_resumes(self, how: str, job: str) -> None:
        """Resume a job."""
        self.steer(how, "resume", [job], steering.resume)

    @precondition(some(*sources("retry")))
    @rule(how=hows, first=jobs_that_are(*sources("retry")), second=anybody, count=counts)
    def somebody_retries(self, how: str, first: str, second: str, count: int) -> None:
        """Retry jobs."""
        self.steer(how, "retry", [first, second][:count], steering.retry)

    @precondition(some(*sources("reschedule")))
    @rule(how=hows, job=jobs_that_are(*sources("reschedule")), delay=st.sampled_from((None, 0, MINUTE)))
    def somebody_reschedules_or_triggers(self, how: str, job: str, delay: int | None) -> None:
        """Have a job run at another time, or now."""
        verb = lambda world, ids: steering.reschedule(world, ids, delay or 0)  # noqa: E731 - a verb with its time
        if delay is None:
            self.steer(how, "trigger", [job], verb)
        else:
            self.steer(how, "reschedule", [job], verb, after=delay / 1000)

    @rule(how=hows, first=anybody, second=anybody, count=counts, cascade=st.booleans())
    def somebody_deletes(self, how: str, first: str, second: str, count: int, cascade: bool) -> None:
        """Delete chains, perhaps with all they wait for."""
        batch = [self.ids[first], self.ids[second]][:count]
        self.ask(
            lambda side: self.lend(side, how, partial(side.hf.sync.delete_many, batch, cascade=cascade)),
            lambda world: steering.delete(world, batch, cascade),
            undone=how == ROLLED_BACK,
        )

    @precondition(lambda machine: keeping.has_work(machine.world))
    @rule()
    def somebody_lets_go_of_what_is_old(self) -> None:
        """Make a pass of retention."""

        def real(side: Side) -> tuple[int, int]:
            done = side.hf.sync.retain()
            return done.stale, done.deleted

        self.ask(real, keeping.retain)

    @precondition(some_lane(is_moving))
    @rule(key=lanes_that(is_moving))
    def somebody_pauses_a_lane(self, key: str) -> None:
        """Pause a lane, whether it has jobs or not."""
        self.ask(lambda side: side.hf.sync.lane(key).pause(), lambda world: steering.pause_lane(world, key))

    @precondition(some_lane(is_paused))
    @rule(key=lanes_that(is_paused))
    def somebody_resumes_a_lane(self, key: str) -> None:
        """Resume a lane."""
        self.ask(lambda side: side.hf.sync.lane(key).resume(), lambda world: steering.resume_lane(world, key))

    @precondition(some_lane(is_halted))
    @rule(key=lanes_that(is_halted))
    def somebody_skips_the_job_that_halts_a_lane(self, key: str) -> None:
        """Set a halting job aside."""
        self.ask(lambda side: side.hf.sync.lane(key).skip(), lambda world: steering.skip(world, key))

    @precondition(lambda machine: not machine.world.paused_queues)
    @rule(name=st.sampled_from(QUEUES), milliseconds=st.sampled_from((None, 31_000)))
    def somebody_pauses_a_queue(self, name: str, milliseconds: int | None) -> None:
        """Pause a queue, for some time or until it is resumed."""
        until = None if milliseconds is None else instant(self.world.now + milliseconds)
        self.ask(
            lambda side: side.hf.sync.queue(name).pause(until=until),
            lambda world: steering.pause_queue(world, name, milliseconds),
        )

    @precondition(lambda machine: machine.world.paused_queues)
    @rule(name=st.sampled_from(QUEUES))
    def somebody_resumes_a_queue(self, name: str) -> None:
        """Resume a queue."""
        self.ask(lambda side: side.hf.sync.queue(name).resume(), lambda world: steering.resume_queue(world, name))

    # ---- readers

    @rule(key=st.sampled_from(LANES))
    def somebody_looks_at_a_lane(self, key: str) -> None:
        """Ask how a lane stands."""

        def real(side: Side) -> tuple[object, ...]:
            info = side.hf.sync.lane(key).info()
            return info.depth, info.head, info.halted_by, info.paused_at is not None

        self.ask(real, lambda world: steering.lane_info(world, key))

    @rule(status=st.sampled_from(("scheduled", "waiting", "blocked", "running", "failed")))
    def somebody_lists_jobs(self, status: str) -> None:
        """List jobs, oldest first, by a stored status or by a word that people are shown."""

        def real(side: Side) -> list[UUID]:
            return [job.id for job in side.hf.sync.list_jobs(status=status, order="oldest")]

        self.ask(real, lambda world: [job.id for job in world.in_order() if status in (job.status, world.shown(job))])

    @precondition(lambda machine: len(machine.world.unread) > MOST_EVENTS)
    @rule()
    def a_reader_reads_on_in_the_log(self) -> None:
        """Read what has happened since the last time, with a cursor."""
        self.ask(Side.read_on, keeping.read_on)

    @rule(job=anybody)
    def somebody_looks_at_a_job(self, job: str) -> None:
        """Read a job, which may be gone: itself, whatever has followed it."""
        id_ = self.ids[job]

        def law(world: World) -> str:
            world.named([id_])
            return world.jobs[id_].status

        self.ask(lambda side: side.hf.sync.get_job(id_), law)

    @rule(job=anybody)
    def somebody_looks_at_a_chain(self, job: str) -> None:
        """Read the chain of a job: its status and its output are those of its last one."""
        id_ = self.ids[job]

        def real(side: Side) -> tuple[object, ...]:
            chain = side.hf.sync.get_chain(id_)
            steps = [each.id for each in side.hf.sync.list_chain_jobs(id_)]
            return chain.id, chain.task, str(chain.status), chain.last_task, steps

        self.ask(real, partial(steering.chain_info, job_id=id_))

    # drawn more often than the rest: without these nothing else gets far
    claims_2 = claims_3 = claims_4 = a_worker_claims
    ends_2 = ends_3 = ends_4 = workers_end_attempts
    goes_on_2 = goes_on_3 = workers_continue_chains
    retries_2 = somebody_retries
    waits_2 = waits_3 = somebody_starts_a_job_that_waits

    # ---- what must be so after every step

    def compare(self) -> None:
        """Compare all that can be seen with the model, and the sides with each other."""
        seen = [side.look() for side in self.sides]
        for key in [key for key in self.world.lanes if self.world.is_between_heads(key)]:
            if key in seen[0].heads or key not in seen[0].lanes:
                self.world.pass_on(key)
        for side, each in zip(self.sides, seen, strict=True):
            Comparison(side.name, self.world, each).all()
        self.versions.compare(seen[0])
        for other in seen[1:]:
            compare_sides(seen[0], other)
        self.world.said.clear()
        self.tick(STEP_MS)


def lost_of(settled: settling.Settled, known: Mapping[engine.Token, Token]) -> dict[Token, str]:
    """Say which claims were lost, as the model does."""
    return {known[each]: str(hold) for each, hold in settled.lost.items()}


def caught(call: Callable[[], Any]) -> Any:
    """Give what is raised as a value, so that the caller's transaction goes on to its end."""
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - it is raised again when the transaction has ended
        return error


def told(answer: Any) -> Any:
    """Raise what was caught."""
    if isinstance(answer, Exception):
        raise answer
    return answer
