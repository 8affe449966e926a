"""The built-in task `holdfast.bulk` as callers know it: its arguments, its output, its queue."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from holdfast.bulks import BulkAct, BulkResult
from holdfast.models import BULK, BULK_QUEUE, JobQuery
from holdfast.tasks.calls import Options
from holdfast.tasks.signatures import read_fields
from holdfast.tasks.task import Policy, Task

if TYPE_CHECKING:
    from pydantic import TypeAdapter

OPTIONS = Options(queue=BULK_QUEUE, priority=0, history=True, given=frozenset({"queue"}))
"""What all its jobs have; to name its queue is for Holdfast alone."""


@dataclass(frozen=True, slots=True)
class BulkInput:
    """The arguments of one step: what is to be done, and what it has come to so far."""

    act: BulkAct
    so_far: BulkResult


@cache
def bulk_task() -> Task[..., BulkResult]:
    """Give the task without its code, which every worker has: to start it, and to read its results."""
    return Task(BULK, read_fields(BulkInput, BulkResult), policy=Policy(), chosen=OPTIONS, place="holdfast")


def stored_filter(wanted: JobQuery) -> dict[str, Any]:
    """Write what *wanted* narrows as JSON values, which `read_filter` reads."""
    from pydantic_core import to_jsonable_python

    usual = JobQuery()._asdict()
    narrowed = {name: value for name, value in wanted._asdict().items() if value != usual[name]}
    return {name: to_jsonable_python(value) for name, value in narrowed.items()}


def read_filter(stored: dict[str, Any]) -> JobQuery:
    """Read what `stored_filter` wrote; raise `ValueError` if it is not that."""
    return _reader().validate_python(stored)


@cache
def _reader() -> TypeAdapter[JobQuery]:
    from pydantic import TypeAdapter

    return TypeAdapter(JobQuery)
