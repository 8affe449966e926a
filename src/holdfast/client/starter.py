"""Calls become jobs: options and the task's policy make a `Start`, with an id of our own, and a runner writes it.

Whoever starts something goes through here: the verbs of both faces, and blocks in handlers, which start over their own
transaction. A task whose code lives elsewhere is started by what its owner wrote down of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar
from uuid import UUID

from holdfast import current_block
from holdfast.client.chain_handle import H, Handles
from holdfast.database.tx import Runner
from holdfast.errors import Misuse, TransactionRequired, UnknownTask
from holdfast.ids import IdMaker
from holdfast.models import Continuation, Start, TaskRecord
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.store import task_rows
from holdfast.store.chains import creation
from holdfast.store.rows import SILENT
from holdfast.tasks.calls import Call, Options, check_arguments
from holdfast.tasks.decoder import Decoder
from holdfast.tasks.registry import Tasks
from holdfast.webhooks.addresses import AddressRules

R = TypeVar("R")

INHERITABLE = frozenset({"queue", "priority", "tags", "webhook", "lane"})
"""What a continuation has from its predecessor, unless its call or its task says otherwise."""

USUAL: dict[str, Any] = {"queue": "default", "priority": 0, "history": True}
"""What a task has that says nothing."""

NO_ID = UUID(int=0)


class Starter:
    """Starts calls of the tasks of one registry, under one set of settings."""

    def __init__(self, tasks: Tasks, settings: Settings, runtime: Runtime) -> None:
        self.tasks = tasks
        self.decoder = Decoder(tasks)
        self.new_id = IdMaker(runtime.wall_ms, runtime.chance)
        self.addresses = AddressRules.of(settings)
        """Which addresses webhooks may go to."""
        self.settings = settings
        self._recorded: set[str] = set()
        self._strangers: dict[str, TaskRecord] = {}
        self._plans: dict[str, tuple[Options, Start]] = {}

    async def record_tasks(self, runner: Runner) -> None:
        """Write down what is new of the tasks whose code is here."""
        fresh = [task for task in self.tasks if not task.is_declared and task.name not in self._recorded]
        if fresh:
            records = [task.record() for task in fresh]
            if changed := await runner.read(task_rows.changed, records):
                await runner.run(task_rows.record, changed)
            self._recorded |= {task.name for task in fresh}

    def forget(self) -> None:
        """Forget what is written down: the database may be another when it is next used."""
        self._recorded, self._strangers = set(), {}

    async def start(
        self, runner: Runner, calls: Sequence[Call[Any]], handles: Handles[H], from_chain: UUID | None = None
    ) -> list[H]:
        """Start a chain for each call, in order; a unique key that *from_chain* holds is handed over."""
        starts = await self._starts_of(runner, calls)
        if from_chain is not None:
            starts = [each._replace(from_chain=from_chain) if each.unique is not None else each for each in starts]
        if not starts:
            return []
        started = await runner.gather(creation.start, starts)
        return [
            handles.new(start, each) if each.met is None else handles(self.decoder.chain(each.met))
            for start, each in zip(starts, started, strict=True)
        ]

    async def continuation_of(self, runner: Runner, call: Call[Any]) -> Continuation:
        """Turn the call that a chain goes on with into what the store takes."""
        (start,) = await self._starts_of(runner, [call])
        return Continuation(start, INHERITABLE - call.chosen.given - self._said_by_owner(call.task))

    def _said_by_owner(self, task: str) -> set[str]:
        """Name what the owner of a task whose code is not here has chosen for it; what is usual counts as not said."""
        record = self._strangers.get(task)
        policy = {} if record is None else json.loads(record.policy)
        return {name for name in INHERITABLE & USUAL.keys() if policy.get(name, USUAL[name]) != USUAL[name]}

    def take(self, calls: Sequence[Call[R]], connection: object) -> list[Call[R]]:
        """Take *calls* as used, whatever comes of them, and hold the setting `require_connection`."""
        taken = take_calls(calls)
        if connection is None:
            current_block.refuse_start()
        if connection is None and self.settings.require_connection:
            raise TransactionRequired(
                "this Holdfast has require_connection=True; pass connection= with the transaction of the job's data"
            )
        return taken

    async def _starts_of(self, runner: Runner, calls: Sequence[Call[Any]]) -> list[Start]:
        """Fill in what owners wrote down of tasks whose code is not here; what was found of them is kept."""
        known = self._strangers  # `forget()` may put another in its place while this reads
        if missing := {each.task for each in calls if each.chosen.is_for_owner} - known.keys():
            found = await runner.read(task_rows.find, sorted(missing))
            known |= {each.name: each for each in found}
        return [self._start_of(each, known.get(each.task)) for each in calls]

    def _start_of(self, call: Call[Any], record: TaskRecord | None) -> Start:
        """Make the start of *call*; the calls of a task that choose nothing share their options, and so a plan."""
        options, plan = self._plans.get(call.task, (None, None))
        if plan is None or options is not call.chosen:
            plan = self._plan(call, record)
            if not call.chosen.is_for_owner:
                self._plans[call.task] = call.chosen, plan
        return plan.another(call.chosen.id or self.new_id(), call.arguments)

    def _plan(self, call: Call[Any], record: TaskRecord | None) -> Start:
        """Make a start of what is chosen for *call*, and of what the task's owner has written down of it."""
        if call.task not in self.tasks:
            if record is None:
                raise UnknownTask(call.task)
            check_arguments(call.arguments, record.input_schema)
        policy = USUAL | (json.loads(record.policy) if record is not None else {})
        options = call.chosen
        webhook = SILENT if options.webhook is None else None
        if isinstance(options.webhook, str):
            webhook = options.webhook
            self.addresses.check(webhook)
        return Start(
            id=NO_ID,
            named=options.id is not None,
            task=call.task,
            input=call.arguments,
            queue=options.queue if options.queue is not None else policy["queue"],
            priority=options.priority if options.priority is not None else policy["priority"],
            history=options.history if options.history is not None else policy["history"],
            lane=options.lane,
            tags=options.tags,
            delay_ms=options.delay_ms or 0,
            run_at_ms=options.run_at_ms,
            paused=options.paused,
            blockers=options.blockers,
            on_blocker_failure=options.on_blocker_failure,
            unique=options.unique,
            webhook=webhook,
        )


def take_calls(calls: Sequence[Call[R]]) -> list[Call[R]]:
    """Take *calls* as used; refuse what is no call."""
    if isinstance(calls, Call):
        raise Misuse("several are started from a list of calls; write `hf.start_many([task(argument=…)])`")
    given = list(calls)  # once: what makes its calls as it goes gives them to the first who asks
    for each in given:
        if not isinstance(each, Call):
            raise Misuse(f"{each!r} is not a call; call the task: `hf.start(task(argument=…))`")
    for each in given:
        each.consume()
    return given


def take_continuation(call: Call[R]) -> Call[R]:
    """Take the call that a chain goes on with as used; refuse options that only the start of a chain can have."""
    (taken,) = take_calls([call])
    if taken.chosen.id is not None:
        raise Misuse("a continuation gets its own id: a chain has one successor, and a repeat of it writes nothing")
    if taken.chosen.unique is not None:
        raise Misuse("a continuation has no unique key of its own: the chain keeps the one that it was started with")
    return taken
