"""Calls become jobs: options and the task's policy make a `Start`, with an id of our own, and a runner writes it.

Whoever starts something goes through here: the verbs of both faces, and blocks in handlers, which start over their own
transaction. A task whose code lives elsewhere is started by what its owner wrote down of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from holdfast import current_block
from holdfast.client.chain_handle import ChainHandle, GetResult, H, Handles
from holdfast.client.wrong_calls import check_call
from holdfast.database.tx import Runner, plain
from holdfast.errors import InvalidInput, Misuse, TooMany, TransactionRequired, UnknownTask, UsageError, got
from holdfast.ids import IdMaker, refuse_too_many
from holdfast.logging import RUNNING_JOB, RUNNING_TENANT, reason_of, say
from holdfast.models import Continuation, Start, TaskRecord
from holdfast.runtime import Runtime
from holdfast.store import task_rows, webhooks
from holdfast.store.chains import creation
from holdfast.store.rows import SILENT
from holdfast.store.webhooks import OF_SETTINGS, NewSubscription
from holdfast.tasks.calls import Call, Options, StartOptions, Unset, check_arguments
from holdfast.tasks.decoder import Decoder
from holdfast.tasks.registry import Tasks, unknown_task

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.schedules import NewSchedule, StoredCall
    from holdfast.settings import Settings
    from holdfast.store.tenants import TenantView
    from holdfast.tasks.redactions import TaskRedactions
    from holdfast.webhooks.addresses import AddressRules

R = TypeVar("R")

logger = logging.getLogger(__name__)

INHERITABLE = frozenset({"queue", "priority", "tags", "webhook", "lane"})
"""What a continuation has from its predecessor, unless its call or its task says otherwise."""

USUAL: dict[str, Any] = {"queue": "default", "priority": 0, "history": True}
"""What a task has that says nothing."""

NO_ID = UUID(int=0)


class Tenant(Protocol):
    """Whose jobs a `Holdfast` starts, and whether it may."""

    @property
    def name(self) -> str | None:
        """The name of the tenant; None where there is none."""

    @property
    def made_at(self) -> datetime | None:
        """When it was made, as far as that is known: one of the same name that was made later is another one."""

    async def admit(self) -> None:
        """Raise `TenantSuspended` or `TenantNotFound` if nothing may be started there."""

    def admit_sync(self) -> None:
        """Do the same, blocking."""

    async def view(self) -> TenantView | None:
        """Read what the registry says of it now, and who serves it; None where there is no tenant."""

    def view_sync(self) -> TenantView | None:
        """Do the same, blocking."""


class NoTenant:
    """No tenant: all may be started."""

    name = None
    made_at = None

    async def admit(self) -> None:
        """Let it be started."""

    def admit_sync(self) -> None:
        """Let it be started."""

    async def view(self) -> None:
        """Say that there is none."""

    def view_sync(self) -> None:
        """Say that there is none."""


NO_TENANT = NoTenant()


class Starter:
    """Starts calls of the tasks of one registry, under one set of settings."""

    def __init__(self, tasks: Tasks, settings: Settings, runtime: Runtime, tenant: Tenant = NO_TENANT) -> None:
        self.tasks = tasks
        self.tenant = tenant
        """Whose jobs these are; `tenant.name` is None in the control place, and where there are no tenants."""
        self.decoder = Decoder(tasks)
        self._runtime = runtime
        self.new_id = IdMaker(runtime.wall_ms, runtime.chance)
        self.settings = settings
        if settings.webhook:
            self.addresses.check(settings.webhook)
        self.get_result: dict[type[ChainHandle[Any]], GetResult] = {}
        """How each face waits for a result; for chains that are started in a block, and waited for behind it."""
        self._recorded_in: datetime | None = None
        """When the tenant was made where that was written which we think is written."""
        self._recorded: set[str] = set()
        self._recorded_schedules: set[str] = set()
        self._has_recorded_webhook = False
        self._strangers: dict[str, TaskRecord] = {}
        self._plans: dict[str, tuple[Options, Start]] = {}
        self.hidden_keys: tuple[str, ...] = ()
        """Keys whose values are hidden from those who edit, beside what is secret by its name."""

    @cached_property
    def redactions(self) -> TaskRedactions:
        """What readers are not shown of the jobs of each task."""
        from holdfast.tasks.redactions import TaskRedactions  # only a program that shows jobs to others needs it

        return TaskRedactions(self.tasks, self._runtime.monotonic)

    @cached_property
    def addresses(self) -> AddressRules:
        """Which addresses webhooks may go to."""
        from holdfast.webhooks.addresses import AddressRules  # only a program with webhooks needs it

        return AddressRules.of(self.settings)

    async def record(self, runner: Runner) -> None:
        """Write down what is new of the tasks and schedules of this program, and its webhook: strangers must know."""
        if (made_at := self.tenant.made_at) != self._recorded_in:
            self.forget()
            self._recorded_in = made_at
        runner = plain(runner)  # it is nobody's act
        await self._record_tasks(runner)
        if len(self._recorded_schedules) < len(self.tasks.schedules):
            await self._record_schedules(runner)
        if self.settings.webhook is not None and not self._has_recorded_webhook:
            await self._record_webhook(runner, self.settings.webhook)
            self._has_recorded_webhook = True

    async def _record_webhook(self, runner: Runner, url: str) -> None:
        """Make, change or remove the subscription of the settings; a restart finds it as it is, and writes nothing."""
        found = await runner.read(webhooks.find_subscription, OF_SETTINGS)
        if not url:
            if found is not None:
                await runner.run(webhooks.unsubscribe, OF_SETTINGS)
            return
        wanted = NewSubscription(self.new_id(), url, self.settings.webhook_events, name=OF_SETTINGS)
        if found is None or not wanted.is_like(found):
            await runner.run(webhooks.subscribe, wanted)

    async def _record_tasks(self, runner: Runner) -> None:
        fresh = [task for task in self.tasks if task.is_recorded_here and task.name not in self._recorded]
        if fresh:
            # under former names as well: whoever steers or reaps a job goes by the name that it was stored under
            records = [task.record()._replace(name=name) for task in fresh for name in task.names]
            if changed := await runner.read(task_rows.changed, records):
                await runner.run(task_rows.record, changed)
            self._recorded |= {task.name for task in fresh}

    async def _record_schedules(self, runner: Runner) -> None:
        """Write down the schedules that are declared anew; one that cannot start its call says so, and stops nobody."""
        from holdfast.store import schedules

        fresh = {name: each for name, each in self.tasks.schedules.items() if name not in self._recorded_schedules}
        is_tenant = self.tenant.name is not None
        if not (self.settings.tenants or is_tenant):
            self._refuse_schedules_of_tenants([name for name, each in fresh.items() if each.for_tenants])
        here = [each.schedule for each in fresh.values() if each.for_tenants is is_tenant]
        declared = [each._replace(declared=each.fingerprint) for each in here]
        if changed := await runner.read(schedules.changed, declared):
            await self._put(runner, [await self._in_trouble_or_not(runner, each) for each in changed])
        self._recorded_schedules |= fresh.keys()

    async def _put(self, runner: Runner, wanted: Sequence[NewSchedule]) -> None:
        """Write schedules down; those that are too many are left out, and stop no program."""
        from holdfast.store import schedules

        try:
            await runner.run(schedules.put, wanted)
        except TooMany as error:
            if len(wanted) == 1:
                (each,) = wanted
                say(logger, "schedule_in_trouble", schedule=each.name, task=each.call.task, reason=reason_of(error))
                return
            for each in wanted:
                await self._put(runner, [each])

    def _refuse_schedules_of_tenants(self, names: Sequence[str]) -> None:
        if names:
            raise Misuse(
                f"schedule {names[0]!r} is declared with tenants=True, and this Holdfast has no tenants; write "
                "Holdfast(…, tenants=True), or leave tenants= out of the declaration"
            )

    async def _in_trouble_or_not(self, runner: Runner, wanted: NewSchedule) -> NewSchedule:
        try:
            await self.check_stored(runner, wanted.call)
        except UsageError as error:
            say(logger, "schedule_in_trouble", schedule=wanted.name, task=wanted.call.task, reason=reason_of(error))
            return wanted._replace(trouble=reason_of(error))
        return wanted

    def forget(self) -> None:
        """Forget what is written down: the database may be another when it is next used."""
        self._recorded, self._strangers, self._has_recorded_webhook = set(), {}, False
        self._recorded_schedules = set()
        if "redactions" in self.__dict__:
            self.redactions.forget()

    async def start(
        self, runner: Runner, calls: Sequence[Call[Any]], handles: Handles[H], from_chain: UUID | None = None
    ) -> list[H]:
        """Start a chain for each call, in order; a unique key that *from_chain* holds is handed over.

        What a handler starts has the handler's job as its parent, unless the call says otherwise, or it is for another
        tenant than the handler's.
        """
        starts = await self._starts_of(runner, calls)
        running = RUNNING_JOB.get()
        if running is not None and RUNNING_TENANT.get() == self.tenant.name:  # else its id is nobody's in this place
            parent = UUID(running.id)
            starts = [_child(*each, parent) for each in zip(starts, calls, strict=True)]
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
        policy = {} if record is None else task_rows.read_policy(task, record.policy)
        return {name for name in INHERITABLE & USUAL.keys() if policy.get(name, USUAL[name]) != USUAL[name]}

    def is_elsewhere(self, task: str) -> bool:
        """Tell whether the code of *task* is not here, so that what its owner wrote down of it is needed."""
        return task not in self.tasks or self.tasks.get(task).is_declared

    async def check_stored(self, runner: Runner, call: StoredCall) -> None:
        """Raise `UsageError` if *call*, which a schedule is to keep, cannot be started."""
        found = await runner.read(task_rows.find, [call.task]) if self.is_elsewhere(call.task) else []
        if not found and call.task not in self.tasks:
            raise await self._unknown(runner, call.task)
        self.stored_start(call, found[0] if found else None)

    def stored_start(self, call: StoredCall, record: TaskRecord | None) -> Start:
        """Make the start of a call that a schedule keeps; *record* is what the task's owner wrote down of it."""
        from holdfast.tasks.scheduled_calls import read_call

        made = read_call(call, self.tasks.get(call.task) if call.task in self.tasks else None)
        if record is None and made.task not in self.tasks:
            raise unknown_task(made.task, self.tasks.names)
        return self._plan(made, record)

    def take(self, calls: Sequence[Call[R]], connection: object) -> list[Call[R]]:
        """Take *calls* as used, whatever comes of them, and hold the setting `require_connection`."""
        taken = take_calls(calls)
        if connection is None:
            current_block.refuse_start(self.tenant.name)
            self.require_connection()
        return taken

    def require_connection(self) -> None:
        """Raise for who writes in a transaction of our own, under the setting `require_connection`."""
        if self.settings.require_connection:
            raise TransactionRequired(
                "this Holdfast has require_connection=True; pass connection= with the transaction of the job's data"
            )

    async def _starts_of(self, runner: Runner, calls: Sequence[Call[Any]]) -> list[Start]:
        """Fill in what owners wrote down of tasks whose code is not here; what was found of them is kept."""
        known = self._strangers  # `forget()` may put another in its place while this reads
        if missing := {each.task for each in calls if each.chosen.is_for_owner} - known.keys():
            found = await runner.read(task_rows.find, sorted(missing))
            known |= {each.name: each for each in found}
            if unknown := [each for each in sorted(missing) if each not in known and each not in self.tasks]:
                raise await self._unknown(runner, unknown[0])
        return [self._start_of(each, known.get(each.task)) for each in calls]

    async def record_of(self, runner: Runner, name: str) -> TaskRecord:
        """Read what its owner wrote down of a task whose code is not here; raise `UnknownTask`."""
        found = await runner.read(task_rows.find, [name])
        if not found:
            raise await self._unknown(runner, name)
        return found[0]

    async def _unknown(self, runner: Runner, name: str) -> UnknownTask:
        """Make the error for a task that nobody knows, with the nearest names of those that are known anywhere."""
        return unknown_task(name, {*self.tasks.names, *(await runner.read(task_rows.policies))})

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
        if record is not None and call.task not in self.tasks:
            check_arguments(call.arguments, record.input_schema)
        policy = USUAL | (dict(task_rows.read_policy(call.task, record.policy)) if record is not None else {})
        options = call.chosen
        self._refuse_other_queue(call, policy)
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
            attempts=options.attempts,
            parent=None if isinstance(options.parent, Unset) else options.parent,
        )

    def _refuse_other_queue(self, call: Call[Any], owners: Mapping[str, Any]) -> None:
        """Raise `InvalidInput` for a question in another queue than its task's: there nobody would look for it."""
        own = self.tasks.get(call.task).policy if call.task in self.tasks else None
        queue, asks = (own.queue, own.asks) if own is not None else (owners["queue"], owners.get("asks"))
        if asks is not None and call.chosen.queue not in (None, queue):
            raise InvalidInput(
                f"task {call.task!r} asks a person, and its questions wait in queue {queue!r}; leave queue= out, or "
                "declare another task for them",
                "options.queue",
            )


def _child(start: Start, call: Call[Any], parent: UUID) -> Start:
    return start._replace(parent=parent) if call.chosen.parent is Unset.UNSET else start


def with_options(call: Call[R], options: StartOptions, more: Sequence[object] = ()) -> Call[R]:
    """Add the keywords of a start to its call, if it is one; *more* is what followed it, and should not be there."""
    check_call(call, options, more)
    return call.options(**options) if options else call


def take_calls(calls: Sequence[Call[R]]) -> list[Call[R]]:
    """Take *calls* as used; refuse what is no call."""
    if isinstance(calls, Call):
        raise Misuse("start_many() takes a list of calls, got one call; write `hf.start_many([task(argument=…)])`")
    if not isinstance(calls, Iterable):
        raise Misuse(f"start_many() takes a list of calls, {got(calls)}; write `hf.start_many([task(argument=…)])`")
    given = list(calls)  # once: what makes its calls as it goes gives them to the first who asks
    for each in given:
        check_call(each, {})
    for each in given:
        each.consume()
    refuse_too_many(given)
    return given


def take_continuation(call: Call[R]) -> Call[R]:
    """Take the call that a chain goes on with as used; refuse options that only the start of a chain can have."""
    (taken,) = take_calls([call])
    if taken.chosen.parent is not Unset.UNSET:
        raise Misuse("a continuation has no parent of its own: it belongs to its chain; start() makes a child")
    if taken.chosen.unique is not None:
        raise Misuse("a continuation takes no unique=: the chain keeps the unique key that it was started with")
    return taken
