"""Passes of retention: what has ended long enough ago is marked stale, and what has been stale long enough is deleted.

Every worker makes one now and then; there is no leader, and two at once pass over each other's rows. A pass takes a
batch of each task and outcome in turn, so that one with a long backlog holds up no other; a worker's pass ends after
some batches, and the next one goes on there. Hooks are called between the look and the deed, outside any transaction.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from holdfast.database.tx import Runner
from holdfast.errors import Busy, InvalidInput, StoreError, Unreadable
from holdfast.fault_points import reach
from holdfast.logging import level_beside, reason_of, say
from holdfast.retention import INTERNAL, STAGES, Hook, Retained, Retention, RetentionCount, Stage, Times, is_internal
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.states import Status
from holdfast.store import access, audit, journal, retention, schedules, task_rows, unique, workers
from holdfast.store.log import pruning
from holdfast.store.retention import BEGINNING, DueChain, RetentionGroup, WalkPosition
from holdfast.store.unique import Turn
from holdfast.tasks.decoder import Decoder
from holdfast.tasks.registry import Tasks
from holdfast.unreadable import CANNOT_READ, tell
from holdfast.worker.upkeep.hooks import ChainHooks, Hooks

FIRST_SECONDS = 20.0
BUSY_SECONDS = 60.0
IDLE_SECONDS = 600.0
MOST_BATCHES = 100
ASTRAY_SECONDS = 30 * 86_400.0
LOG_SECONDS = 3_600.0
"""How long the log keeps at least what it says of deleted jobs, lanes and queues: readers that were away for a restart,
or slept with their laptop, go on where they were, however short the times of retention are."""

AS_USUAL = Retention()

logger = logging.getLogger(__name__)


async def forget_records(runner: Runner, audit_seconds: float | None, *, is_whole: bool = False) -> None:
    """Forget sessions, tokens and links that are over, and entries of the audit older than *audit_seconds*.

    One batch of the former, unless *is_whole*. The control place of tenants has them, too, which has no other retention
    where workers serve tenants alone.
    """
    while any(old := await runner.read(access.find_old)):
        await runner.run(access.delete_old, old)
        if not is_whole:
            break
    if audit_seconds is None:
        return
    age_ms = round(audit_seconds * 1000)
    if await runner.read(audit.has_old, age_ms):
        for _ in range(MOST_BATCHES):
            if await runner.run(audit.delete_old, age_ms) < audit.MOST_DELETED:
                break


class RetentionPass:
    """Passes over what has ended in the database of *runner*; *usual* are the times of tasks that name none.

    Hooks are those of *tasks*, called by *hooks*. Chains with a hook whose code is not here are left to others.
    Journals of jobs that have ended go *journal_seconds* after their last entry, or with their jobs. Entries of the
    audit go *audit_seconds* after they were written, or never.
    """

    def __init__(
        self,
        runner: Runner,
        tasks: Tasks,
        usual: Times,
        hooks: Hooks,
        journal_seconds: float | None = None,
        audit_seconds: float | None = None,
    ) -> None:
        self._runner = runner
        self._tasks = tasks
        self._decoder = Decoder(tasks)
        self._usual = usual
        self._journal_seconds = journal_seconds
        self._audit_seconds = audit_seconds
        self._hooks = hooks
        self._left_off: dict[tuple[Stage, str, Status], WalkPosition] = {}
        self._key_position: Turn | None = None
        self._orphan_position: int | None = None
        self._journal_position: journal.JournalPosition | None = None
        self._tick_position: str | None = None

    async def run(self, *, dry_run: bool = False, most_batches: int | None = None) -> Retained:
        """Make one pass; with *dry_run* only tell what it would do, and change nothing.

        With *most_batches* each stage ends after that many, and the next pass goes on there.
        """
        policies = _Policies(self._tasks, await self._runner.read(task_rows.policies), self._usual)
        counts: defaultdict[tuple[str, Status], Counter[str]] = defaultdict(Counter)
        is_done = True
        for stage in STAGES:
            walks = await self._due(stage, policies, dry_run)
            for _ in count() if most_batches is None else range(most_batches):
                if not walks:
                    break
                walk = walks.popleft()
                if await self._take_batch(walk, counts[walk.group.task, walk.group.outcome]):
                    walks.append(walk)
            self._left_off |= {each.key: each.position for each in walks}
            is_done = is_done and not walks
        journals = 0 if dry_run else await self._forget_journals(is_whole=most_batches is None)
        trimmed = 0 if dry_run else await self._tidy(is_whole=most_batches is None)
        found = [(group, each) for group, each in sorted(counts.items()) if each.total()]
        told = tuple(RetentionCount(task=task, outcome=outcome, **each) for (task, outcome), each in found)
        return Retained(counts=told, trimmed=trimmed, journals=journals, is_done=is_done)

    async def _due(self, stage: Stage, policies: _Policies, dry_run: bool) -> deque[_Walk]:
        walks = deque[_Walk]()
        for group in await self._runner.read(retention.groups, stage):
            age = getattr(policies.times(group.task, group.outcome), stage)
            if age is not None and group.now_ms - group.oldest_ms >= age * 1000:
                walk = _Walk(stage, group, round(age * 1000), policies, dry_run)
                if not dry_run:
                    walk.position = self._left_off.pop(walk.key, BEGINNING)
                walks.append(walk)
        return walks

    async def _take_batch(self, walk: _Walk, counts: Counter[str]) -> bool:
        """Take the next batch of *walk* through its stage, and tell whether more may follow."""
        batch, has_more = await self._runner.read(retention.find, walk.stage, walk.group, walk.age_ms, walk.position)
        if not batch:
            return False
        at_rest = await self._runner.read(retention.at_rest, walk.stage, batch)
        ripe = [each for each in batch if each.seq in at_rest]
        willing = sorted(await self._willing(walk, ripe))
        done = willing if walk.dry_run else await self._act(walk, willing)
        counts["stale" if walk.stage == "stale" else "deleted"] += len(done)
        counts["postponed"] += len(ripe) - len(willing)
        counts["kept"] += len(batch) - len(ripe) + len(willing) - len(done)
        walk.position = walk.position.behind(batch, () if walk.dry_run else done)
        return has_more

    async def _willing(self, walk: _Walk, batch: Sequence[DueChain]) -> set[int]:
        """Call the hooks of *batch*; answer which chains may go through the stage."""
        stage, policies = walk.stage, walk.policies
        asked = [each for each in batch if policies.may_be_hooked(stage, walk.group.task, each.jobs)]
        willing = {each.seq for each in batch} - {each.seq for each in asked}
        chains = await self._runner.read(retention.jobs_of, asked) if asked else {}
        hooked = []
        for seq, jobs in chains.items():
            if any(policies.is_elsewhere(stage, job.task) for job in jobs):
                continue
            found = [(hook, job) for job in jobs if (hook := policies.hook(stage, job.task)) is not None]
            calls = [(hook, self._decoder.job(job)) for hook, job in found]
            if calls and not walk.dry_run:
                hooked.append(ChainHooks(seq, stage, calls))
            else:
                willing.add(seq)
        if hooked:
            willing |= await self._hooks.run(hooked)
            reach("retain.after_hook")
        return willing

    async def _act(self, walk: _Walk, seqs: Sequence[int]) -> list[int]:
        """Mark or delete chains; if one of them is in the way of the others, each alone."""
        if not seqs:
            return []
        operation = retention.mark if walk.stage == "stale" else retention.delete
        try:
            return await self._runner.run(operation, walk.group, walk.age_ms, seqs)
        except Busy:
            if len(seqs) == 1:
                return []
            return [seq for each in seqs for seq in await self._act(walk, [each])]

    async def _tidy(self, *, is_whole: bool) -> int:
        """Remove what belongs to nobody any more, all of it or the next piece; answer how much of it was log."""
        trimmed = await self._trim() + await self._forget_orphans()
        while is_whole and self._orphan_position is not None:
            trimmed += await self._forget_orphans()
        await self._sweep_keys()
        while is_whole and self._key_position is not None:
            await self._sweep_keys()
        await self._forget_ticks()
        while is_whole and self._tick_position is not None:
            await self._forget_ticks()
        await forget_records(self._runner, self._audit_seconds, is_whole=is_whole)
        age_ms = round(ASTRAY_SECONDS * 1000)
        if gone := await self._runner.read(workers.list_astray, age_ms):
            await self._runner.run(workers.forget_astray, gone, age_ms)
        return trimmed

    async def _forget_journals(self, *, is_whole: bool) -> int:
        """Delete journals that have an age of their own; one batch, or all that are due."""
        if self._journal_seconds is None:
            return 0
        age_ms, deleted = round(self._journal_seconds * 1000), 0
        while True:
            position = self._journal_position or journal.JournalPosition()
            jobs, self._journal_position = await self._runner.read(journal.find_old, age_ms, position)
            deleted += await self._runner.run(journal.delete_old, jobs, age_ms) if jobs else 0
            if not is_whole or self._journal_position is None:
                return deleted

    async def _trim(self) -> int:
        if self._usual.stale is None or self._usual.delete is None:
            return 0
        age_ms = round(max(self._usual.stale + self._usual.delete, LOG_SECONDS) * 1000)
        trimmed = 0
        if await self._runner.read(pruning.has_old, age_ms):
            for _ in range(MOST_BATCHES):
                trimmed += (removed := await self._runner.run(pruning.prune, age_ms))
                if removed < pruning.MOST_EVENTS:
                    break
        return trimmed

    async def _forget_orphans(self) -> int:
        gone, self._orphan_position = await self._runner.read(pruning.orphans, self._orphan_position or 0)
        return await self._runner.run(pruning.delete_events, gone) if gone else 0

    async def _forget_ticks(self) -> None:
        ticks, self._tick_position = await self._runner.read(schedules.old_ticks, self._tick_position or "")
        if ticks:
            await self._runner.run(schedules.forget_ticks, ticks)

    async def _sweep_keys(self) -> None:
        walked = await self._runner.read(unique.walk, self._key_position or Turn())
        self._key_position = walked.last
        try:
            if walked.lost:
                await self._runner.run(unique.free, walked.lost)
            if walked.over:
                await self._runner.run(unique.sweep, walked.over)
        except Busy as error:  # somebody is just writing keys; there is no hurry
            say(logger, "keys_not_swept", trace=error, reason=reason_of(error))


class _Policies:
    """What is known of all tasks: by the code that is here, else by what their owners have written down."""

    def __init__(self, tasks: Tasks, recorded: Mapping[str, Mapping[str, Any]], usual: Times) -> None:
        self._tasks = tasks
        self._usual = usual
        kept = {name: policy.get("retention") for name, policy in recorded.items()}
        self._records: dict[str, dict[str, Any]] = {name: each for name, each in kept.items() if isinstance(each, dict)}

    def times(self, task: str, outcome: Status) -> Times:
        if is_internal(task):
            return INTERNAL
        own = self._own(task)
        return (self._recorded(task) if own is None else own).times(outcome, self._usual)

    def _recorded(self, task: str) -> Retention:
        """Read what is written down of *task*; what cannot be read is as the settings say."""
        try:
            return Retention.from_record(self._records.get(task, {}))
        except (*CANNOT_READ, InvalidInput) as error:
            tell(Unreadable("holdfast_task", task, f"the retention of its policy: {error}"))
            return AS_USUAL

    def hook(self, stage: Stage, task: str) -> Hook | None:
        """Give the hook of *task*, if its code is here."""
        own = self._own(task)
        return None if own is None else own.hook(stage)

    def is_elsewhere(self, stage: Stage, task: str) -> bool:
        """Tell whether *task* has a hook whose code is not here."""
        return self._own(task) is None and stage in self._records.get(task, {}).get("hooks", ())

    def may_be_hooked(self, stage: Stage, task: str, jobs: int) -> bool:
        """Tell whether a chain of *task* may have a hook, here or elsewhere; several *jobs* may be of any tasks."""
        tasks = [task] if jobs == 1 else [*self._records, *(each.name for each in self._tasks)]
        return any(self.hook(stage, each) is not None or self.is_elsewhere(stage, each) for each in tasks)

    def _own(self, task: str) -> Retention | None:
        if task not in self._tasks or (found := self._tasks.get(task)).is_declared:
            return None
        return found.policy.retention or AS_USUAL


@dataclass(slots=True)
class _Walk:
    """A way along one group, and how far it has come."""

    stage: Stage
    group: RetentionGroup
    age_ms: int
    policies: _Policies
    dry_run: bool
    position: WalkPosition = BEGINNING

    @property
    def key(self) -> tuple[Stage, str, Status]:
        return self.stage, self.group.task, self.group.outcome


def usual_times(settings: Settings) -> Times:
    """Give the times of tasks that name none."""
    return Times(settings.stale_after_seconds, settings.delete_after_seconds)


async def make_passes(retention_pass: RetentionPass, runtime: Runtime) -> None:
    """Make the passes of a worker until cancelled: soon after one that had something to do, else rarely."""
    seconds = FIRST_SECONDS
    while True:
        await runtime.sleep(seconds * (0.75 + 0.5 * runtime.chance.random()))
        seconds = await make_pass(retention_pass)


async def make_pass(retention_pass: RetentionPass) -> float:
    """Make one pass of a worker; answer after how many seconds the next one is due."""
    try:
        done = await retention_pass.run(most_batches=MOST_BATCHES)
    except Exception as error:  # noqa: BLE001 - whatever it is, the next pass comes
        say(logger, "retention_failed", level=level_beside(error), trace=error, reason=reason_of(error))
        return BUSY_SECONDS if isinstance(error, StoreError) else IDLE_SECONDS
    if done.stale or done.deleted:
        say(logger, "retention_passed", stale=done.stale, deleted=done.deleted, trimmed=done.trimmed)
    return BUSY_SECONDS if done.stale or done.deleted or not done.is_done else IDLE_SECONDS
