"""`/api/tasks`: the tasks that some program has recorded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel

from holdfast.http.endpoint import Inquiry, NoBody, NoQuery
from holdfast.http.problems import NoSuchTask
from holdfast.inventory import TaskInfo
from holdfast.wire.figures_json import TotalObject, series_object
from holdfast.wire.objects import Instant, Written, writer_of


def _dict(policy: Mapping[str, Any]) -> dict[str, Any]:
    return dict(policy)


def _list(words: Iterable[str]) -> list[str]:
    return list(words)


class TaskObject(BaseModel):
    """A task, as the programs that have its code have written it down."""

    name: str
    queue: str | None
    policy: Annotated[dict[str, Any], Written(_dict)]
    input_schema: Annotated[dict[str, Any], Written(_dict)]
    output_schema: Annotated[dict[str, Any], Written(_dict)]
    version: str
    updated_at: Instant
    served_by: Annotated[list[str], Written(_list)]


class TaskList(BaseModel):
    """The tasks, by name."""

    items: list[TaskObject]


class TaskWithFigures(TaskObject):
    """A task, and what its attempts have come to in the last hour."""

    last_hour: TotalObject


task_object = writer_of(TaskObject)


async def list_all(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """List the tasks: their policies, their types, and who serves them."""
    return {"items": [_task(ask, each) for each in await ask.hf.list_tasks()]}


async def read(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """Read a task, with its figures of the last hour."""
    name = ask.path["name"]
    found = next((each for each in await ask.hf.list_tasks() if each.name == name), None)
    if found is None:
        raise NoSuchTask(f"no program has recorded a task {name!r} here; GET /api/tasks lists those that are")
    return {**_task(ask, found), "last_hour": series_object(await ask.hf.stats(task=name))["total"]}


def _task(ask: Inquiry[Any, Any], task: TaskInfo) -> dict[str, Any]:
    """Write a task; the default of a hidden argument is hidden, too."""
    written, shown = task_object(task), ask.shown.of(task.name)
    schemas = {name: shown.schema(written[name]) for name in ("input_schema", "output_schema")}
    return {**written, **schemas}
