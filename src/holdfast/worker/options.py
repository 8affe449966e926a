"""How a worker works: what `hf.worker()` takes, and which tasks of which queues that means."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from holdfast.errors import InvalidSettings, got
from holdfast.keywords import refuse_unknown
from holdfast.store.jobs.claiming import Want
from holdfast.tasks.calls import check_any, is_name
from holdfast.tasks.registry import Tasks
from holdfast.tasks.task import Policy, check_middleware
from holdfast.tenancy import check_tenant_name
from holdfast.worker.attempts.attempt import Middleware

MANY = 2**31
WORKER_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
"""It goes into log lines, lock files and `job.worker`, so it holds nothing that must be quoted there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works; times in seconds.

    The last four are for tasks with `run_in="process"`: *app* is where child processes find the Holdfast object, if
    that is no name of a module; *children* how many there are at most, by default one for each core; *child_jobs* after
    how many jobs one is replaced, and *child_megabytes* above which size. If *app* is given, jobs of all other tasks
    that have crashed twice run in child processes as well, each alone.

    With *tenants* it serves these instead of its own place: how many slots each may have at most, `*` for all others.
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
    tenants: Mapping[str, int] | None = None
    host: str | None = None
    """For the worker of one tenant: the id of the worker of tenants that has opened it."""

    def __post_init__(self) -> None:
        if isinstance(self.queues, str):
            raise InvalidSettings(f"queues must be a list of names, {got(self.queues)}; write queues=[{self.queues!r}]")
        if self.queues is not None and not self.queues:
            raise InvalidSettings("queues is empty, so nothing would run; name a queue, or leave queues out")
        for each in self.queues or ():
            check_any("queue", each)
        if type(self.concurrency) is not int or self.concurrency < 1:
            raise InvalidSettings(f"concurrency must be a whole number of at least 1, {got(self.concurrency)}")
        if not _is_number(self.poll) or not self.poll > 0:
            raise InvalidSettings(f"poll must be seconds above 0, {got(self.poll)}")
        if self.grace is not None and not (_is_number(self.grace) and self.grace >= 0):
            raise InvalidSettings(f"grace must be seconds, or None to wait for running jobs, {got(self.grace)}")
        if self.name is not None and not (is_name(self.name) and WORKER_NAME.fullmatch(self.name)):
            raise InvalidSettings(
                f"a worker cannot be named {str(self.name)[:60]!r}; use 1 to 100 letters, digits, '.', '_' and '-'"
            )
        check_middleware(self.middleware, InvalidSettings)
        if not isinstance(self.webhooks, bool):
            raise InvalidSettings(f"webhooks must be True or False, {got(self.webhooks)}")
        if self.app is not None and not all(str(self.app).partition(":")):
            raise InvalidSettings(
                f'app must be the import path of your Holdfast object, {got(self.app)}; write app="shop.jobs:hf"'
            )
        for name in ("children", "child_jobs"):
            value = getattr(self, name)
            if not (name == "children" and value is None) and not (type(value) is int and value >= 1):
                raise InvalidSettings(f"{name} must be a whole number of at least 1, {got(value)}")
        limit = self.child_megabytes
        if limit is not None and not (_is_number(limit) and limit > 0):
            raise InvalidSettings(f"child_megabytes must be a number above 0, or None for no limit, {got(limit)}")
        if self.tenants is not None:
            _check_tenants(self.tenants)

    @classmethod
    def of(cls, given: WorkerKeywords) -> WorkerOptions:
        """Take the keywords of `hf.worker()`; raise `Misuse` for one that it does not have."""
        refuse_unknown(given, WorkerKeywords.__optional_keys__, "hf.worker()")
        return cls(**given)


def _check_tenants(tenants: object) -> None:
    if not isinstance(tenants, Mapping) or not tenants:
        given = "got an empty one" if isinstance(tenants, Mapping) else got(tenants)
        raise InvalidSettings(
            f'tenants must map names to their slots, {given}; write tenants={{"*": 1}} to serve all of them'
        )
    for name, slots in tenants.items():
        if name != "*":
            check_tenant_name(name)
        if type(slots) is not int or slots < 1:
            raise InvalidSettings(f"tenants[{name!r}] must be a whole number of slots of at least 1, {got(slots)}")


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
    tenants: Mapping[str, int] | None


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
