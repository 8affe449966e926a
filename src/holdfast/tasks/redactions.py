"""What is hidden of the jobs of each task: by the code that is here, and by what is written down of all others.

A server of many programs has the code of few tasks. So what tasks hide stands in their rows, and is read again when it
is some seconds old, or when a task comes along of which nothing was known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from holdfast.database.tx import Runner
from holdfast.models import RESERVED
from holdfast.store import task_rows
from holdfast.tasks.registry import Tasks
from holdfast.wire.redaction import Redaction

KEPT_SECONDS = 10.0
MOST_STRANGERS = 1_000
AGAIN_SECONDS = 1.0
"""How soon it is read again for a task of which nothing is known."""


class TaskRedactions:
    """Knows what each task hides; one for all readers of a place."""

    def __init__(self, tasks: Tasks, monotonic: Callable[[], float]) -> None:
        self._tasks = tasks
        self._monotonic = monotonic
        self._written: dict[str, tuple[str, ...]] = {}
        self._strangers: set[str] = set()
        """Tasks of which nothing was written down when it was read last."""
        self._read_at: float | None = None

    async def refresh(self, runner: Runner, names: Iterable[str] = ()) -> None:
        """Read what is written down, if that was long ago, or if nothing is known of one of the tasks *names*."""
        unknown = {name for name in names if name not in self._written and not name.startswith(RESERVED)}
        now = self._monotonic()
        if self._read_at is not None:
            age = now - self._read_at
            if age < (AGAIN_SECONDS if unknown else KEPT_SECONDS) and unknown <= self._strangers:
                return
        self._written = await runner.read(task_rows.redactions)
        self._strangers = (self._strangers if len(self._strangers) < MOST_STRANGERS else set()) | unknown
        self._read_at = now

    async def read(self, runner: Runner, task: str, keys: tuple[str, ...] = ()) -> Redaction:
        """Give what everybody who may see payloads may see of the jobs of *task*, if *keys* are hidden, too."""
        await self.refresh(runner, [task])
        return self.of(task, Redaction(keys=keys))

    def of(self, task: str, redaction: Redaction) -> Redaction:
        """Give what a reader may see of the jobs of *task*, who may see what *redaction* says of all."""
        return redaction.of_task(self._paths(task))

    def names(self) -> set[str]:
        """Name the tasks of which something is known."""
        return {*self._tasks.names, *self._written}

    def knows(self, task: str) -> bool:
        """Tell whether it is known what *task* hides: by its code, its row, or because it has neither."""
        return task in self._tasks or task in self._written or task in self._strangers

    def forget(self) -> None:
        """Forget what was read: the database may be another when it is next used."""
        self._written, self._strangers, self._read_at = {}, set(), None

    def _paths(self, task: str) -> tuple[str, ...]:
        here = tuple(self._tasks.get(task).policy.redact) if task in self._tasks else ()
        written = self._written.get(task, ())
        return written if not here or here == written else tuple(dict.fromkeys((*here, *written)))
