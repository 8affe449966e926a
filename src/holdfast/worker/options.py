"""How a worker works: what `hf.worker()` takes, and which tasks of which queues that means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

from holdfast.errors import InvalidSettings
from holdfast.store.jobs.claiming import Want
from holdfast.tasks.calls import NAME_LENGTH, check_any, is_name
from holdfast.tasks.registry import Tasks
from holdfast.tasks.task import Policy
from holdfast.worker.attempts.attempt import Middleware

MANY = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works; times in seconds.

    The last four are for tasks with `run_in="process"`: *app* is where child processes find the Holdfast object, if
    that is no name of a module; *children* how many there are at most, by default one for each core; *child_jobs* after
    how many jobs one is replaced, and *child_megabytes* above which size. If *app* is given, jobs of all other tasks
    that have crashed twice run in child processes as well, each alone.
    """

    queues: Sequence[str] | None = None
    concurrency: int = 100
    name: str | None = None
    grace: float | None = 20.0
    poll: float = 2.0
    middleware: Sequence[Middleware] = ()
    webhooks: bool = True
    app: str | None = None
    children: int | None = None
    child_jobs: int = 10_000
    child_megabytes: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.queues, str):
            raise InvalidSettings(f"queues is a list of names; write queues=[{self.queues!r}]")
        if self.queues is not None and not self.queues:
            raise InvalidSettings(
                "queues names none, so nothing would run; name some, or leave it out for the usual ones"
            )
        for each in self.queues or ():
            check_any("queue", each)
        if type(self.concurrency) is not int or not _is_number(self.poll) or not _is_number(self.grace or 0):
            raise InvalidSettings("a worker takes a whole number as concurrency, and seconds as poll and grace")
        if self.concurrency < 1 or not self.poll > 0 or not (self.grace is None or self.grace >= 0):
            raise InvalidSettings(
                "a worker takes a concurrency of at least 1, poll > 0 and grace >= 0, or None to wait"
            )
        if self.name is not None and not is_name(self.name):
            raise InvalidSettings(f"the name of a worker is a text of 1 to {NAME_LENGTH} printable characters")
        if callable(self.middleware) or not all(map(callable, self.middleware)):
            raise InvalidSettings("middleware is a list of functions (ctx, next), also if it has one entry")
        if not isinstance(self.webhooks, bool):
            raise InvalidSettings("webhooks is True, or False for a worker that leaves them to others")
        if self.app is not None and not all(str(self.app).partition(":")):
            raise InvalidSettings('app is the place of a Holdfast object; write app="module:name"')
        for name in ("children", "child_jobs"):
            value = getattr(self, name)
            if not (name == "children" and value is None) and not (type(value) is int and value >= 1):
                raise InvalidSettings(f"{name} is a whole number of at least 1")
        limit = self.child_megabytes
        if limit is not None and not (_is_number(limit) and limit > 0):
            raise InvalidSettings("child_megabytes is a number above 0, or None for no limit")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class WorkerKeywords(TypedDict, total=False):
    """The keywords of `hf.worker()`: the fields of `WorkerOptions`."""

    queues: Sequence[str] | None
    concurrency: int
    name: str | None
    grace: float | None
    poll: float
    middleware: Sequence[Middleware]
    webhooks: bool
    app: str | None
    children: int | None
    child_jobs: int
    child_megabytes: float | None


def wants_of(tasks: Tasks, queues: Sequence[str] | None) -> list[Want]:
    """Name every (queue, task) that the worker serves: its own queues, or `default` and those that its tasks name."""
    own = [task for task in tasks if not task.is_declared]
    served = queues if queues is not None else sorted({"default", *(task.policy.queue for task in own)})
    return [
        Want(queue, name, round(task.policy.lease * 1000), ahead_below(task.policy))
        for queue in served
        for task in own
        for name in task.names
    ]


def ahead_below(policy: Policy) -> int:
    """Say how many attempts a job may have used that is claimed ahead, at most: to begin it twice must do no harm."""
    if policy.on_lost != "retry":
        return 0
    return MANY if policy.retry.attempts is None else policy.retry.attempts - 1
