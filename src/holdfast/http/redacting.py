"""What of inputs, outputs and errors is shown to whom: by who asks, by secret keys, by the tasks' own paths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.app import Holdfast
from holdfast.errors import InvalidSettings, got
from holdfast.models import DELIVER, RESERVED, Event, Job
from holdfast.tasks.redactions import TaskRedactions
from holdfast.wire.job_json import event_object, job_object
from holdfast.wire.redaction import Redaction


class Shown:
    """What one reader may see of the jobs of one place."""

    def __init__(self, reader: Redaction, rules: Rules | None = None) -> None:
        self.reader = reader
        """What they may see of any task; what the task itself hides comes on top of it."""
        self._rules = rules

    @property
    def payloads(self) -> bool:
        """Tell whether inputs, outputs and the details of errors are shown at all."""
        return self.reader.payloads

    def of(self, task: str) -> Redaction:
        """Give what they may see of the jobs of *task*."""
        return self.reader if self._rules is None else self._rules.of(task, self.reader)

    def hides(self, path: str, value: object, tasks: Sequence[str] = ()) -> bool:
        """Tell whether *value* would be hidden at *path* of the input of jobs of *tasks*, or without them of any."""
        for key in reversed(path.split(".")):
            value = {key: value}
        return any(each.value(value) is not value for each in self._of_all(tasks))

    def _of_all(self, tasks: Sequence[str]) -> Iterable[Redaction]:
        """Give what they may see of the jobs of *tasks*, without them of those of any task."""
        return [self.reader, *(self.of(each) for each in (tasks or (self._rules.names() if self._rules else ())))]

    def job(self, job: Job, *, brief: bool = False) -> dict[str, Any]:
        """Write a job as it is stored."""
        return job_object(job, self.of(job.task), brief=brief)

    def event(self, event: Event, *, brief: bool = False) -> dict[str, Any]:
        """Write an event of the log."""
        task = event.job.task if event.job is not None else event.facts.get("task", "")
        return event_object(event, self.of(task), brief=brief)


NOTHING_SHOWN = Shown(Redaction(payloads=False))


class Rules:
    """What the tasks of one place hide; a task that nobody has told of yet hides everything for a moment."""

    def __init__(self, place: Holdfast) -> None:
        self._place = place
        self._tasks = TaskRedactions(place.tasks, place._runtime.monotonic)
        self._asked: set[str] = set()

    async def refresh(self) -> None:
        """Read what tasks have written down, if that was long ago, or a job of an unknown task was asked for."""
        await self._tasks.refresh(self._place.store, self._asked)
        self._asked.clear()

    def names(self) -> Iterable[str]:
        """Name the tasks that hide something, or may."""
        return self._tasks.names()

    def of(self, task: str, reader: Redaction) -> Redaction:
        """Give what *reader* may see of the jobs of *task*."""
        if task == DELIVER:  # it has receivers' addresses and answers; /api/deliveries tells who may see them
            return Redaction(payloads=False)
        if not self._tasks.knows(task) and task and not task.startswith(RESERVED):
            self._asked.add(task)
            return Redaction(payloads=False)
        return self._tasks.of(task, reader)


class Redacting:
    """Makes what each reader may see; *keys* are hidden beside what is secret by its name."""

    def __init__(self, keys: Iterable[str]) -> None:
        if isinstance(keys, str):
            raise InvalidSettings(f"redact must be a list of keys, {got(keys)}; write redact=[{keys!r}]")
        self.keys = tuple(keys)
        self._rules: dict[str | None, Rules] = {}

    async def of(self, place: Holdfast, tenant: str | None, *, payloads: bool) -> Shown:
        """Give what a reader may see in *place*, that of *tenant*."""
        if (rules := self._rules.get(tenant)) is None:
            rules = self._rules[tenant] = Rules(place)
        await rules.refresh()
        return Shown(Redaction(payloads, self.keys), rules)
