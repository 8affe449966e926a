"""Rows become typed: stored texts are read by the types of the tasks that are known here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from holdfast.models import BULK, Event, Job, StoredChain
from holdfast.tasks.registry import Tasks
from holdfast.tasks.task import Task
from holdfast.unreadable import json_or_text


class Decoder:
    """Reads jobs and chains by the types of *tasks*; those of tasks that are not known here stay plain JSON."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    def job(self, job: Job) -> Job:
        """Read the input and the output of *job*."""
        input_, output = self.values(job.task, job.input, job.output)
        return replace(job, input=input_, output=output)

    def values(self, task: str, input_: str, output: str | None) -> tuple[Any, Any]:
        """Read the input and the output of a job of the task of this name."""
        known = self._known(task)
        return _read(input_, known and known.decode_input), _read(output, known and known.decode_output)

    def event(self, event: Event) -> Event:
        """Read the job of *event*, if it has one."""
        return event if event.job is None else replace(event, job=self.job(event.job))

    def chain(self, chain: StoredChain[Any]) -> StoredChain[Any]:
        """Read the output of *chain*, which is that of its last job."""
        if chain.output is None:
            return chain
        return replace(chain, output=self.output(chain.last_task, chain.output))

    def output(self, task: str, text: str | None) -> Any:
        """Read an output of the task of this name."""
        known = self._known(task)
        return _read(text, known and known.decode_output)

    def _known(self, name: str) -> Task[..., Any] | None:
        if name == BULK:
            from holdfast.tasks.bulk_task import bulk_task  # few programs act on many jobs

            return bulk_task()
        return self._tasks.get(name) if name in self._tasks else None


class AsStored(Decoder):
    """Reads nothing: inputs and outputs stay the JSON texts that they are, as they are written for those outside."""

    def job(self, job: Job) -> Job:
        return job  # not a copy, which would be a third of what a list of jobs costs

    def values(self, task: str, input_: str, output: str | None) -> tuple[Any, Any]:
        return input_, output

    def output(self, task: str, text: str | None) -> Any:
        return text


def _read(text: str | None, decode: Callable[[str], Any] | None) -> Any:
    """Read a stored value by its type; one that no longer fits it is given as plain JSON, or as text, and not lost."""
    if text is None:
        return None
    if decode is None:
        return json_or_text(text)
    try:
        return decode(text)
    except Exception:  # noqa: BLE001 - it does not fit, or a validator of the user's has raised whatever it likes
        return json_or_text(text)
