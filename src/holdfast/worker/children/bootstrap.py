"""How a child process begins: what its worker tells it first, and what it takes of the application that it imports."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any, Self

from holdfast.client.providers import Opener
from holdfast.client.starter import Starter
from holdfast.database.sqlite import SqliteStore
from holdfast.database.tx import Store
from holdfast.errors import Misuse
from holdfast.runtime import Runtime
from holdfast.settings import Settings
from holdfast.tasks.task import Task
from holdfast.worker.children.import_path import MAIN, Main, import_path_of

NAME_THE_APP = 'write hf.worker(app="module:name"), where importing that module makes the same Holdfast'

IN_CHILD = (
    "this is a child process of a worker, and has no worker of its own; if a module begins one when it is imported, "
    'put that below `if __name__ == "__main__":`'
)

_children: set[int] = set()
"""This process, if it is a child of a worker."""

ENGINE = "__holdfast_engine__"
"""The attribute of a Holdfast that has its `ChildEngine`."""


def mark_as_child() -> None:
    """Mark this process as a child: a worker in it would have children that have workers, for ever."""
    _children.add(os.getpid())


@dataclass(frozen=True, slots=True)
class Launch:
    """How the children of a worker begin; *tasks* are those that run there."""

    app: str
    middleware: tuple[str, ...]
    main: Main | None
    database: str
    tasks: tuple[str, ...]

    def first_message(self, worker: str) -> dict[str, Any]:
        """Give the first message to a child of *worker*."""
        return {
            "app": self.app,
            "middleware": self.middleware,
            "main": None if self.main is None else asdict(self.main),
            "path": sys.path,
            "arguments": sys.argv,
            "worker": worker,
            "parent": os.getpid(),
        }

    @classmethod
    def of(
        cls,
        application: object,
        app: str | None,
        settings: Settings,
        store: Store,
        tasks: Sequence[Task[..., Any]],
        middleware: Sequence[object],
    ) -> Self:
        """Say how children of a worker of *application* begin, or raise `Misuse`; *app* is its path, if known."""
        if os.getpid() in _children:
            raise Misuse(IN_CHILD)
        modules = [each.function.__module__ for each in tasks if each.function is not None]
        path = app or import_path_of(application, modules)
        if path is None:
            raise Misuse(
                f'task {tasks[0].name} runs in child processes (run_in="process"), which import the application, but '
                f"no module has this Holdfast as a name of its own; {NAME_THE_APP}"
            )
        middleware_paths = tuple(_middleware_path(each) for each in middleware)
        is_main = any(each.startswith(f"{MAIN}:") for each in (path, *middleware_paths))
        main = Main.here() if is_main else None
        if main is not None and main.module is None and main.file is None:
            raise Misuse(f"a child process cannot import what is typed or given by -c; {NAME_THE_APP}")
        names = tuple(each.name for each in tasks)
        return cls(path, middleware_paths, main, database_digest(settings, store), names)


@dataclass(frozen=True, slots=True)
class ChildEngine:
    """The parts of one Holdfast."""

    store: Store
    opener: Opener
    starter: Starter
    runtime: Runtime


def _middleware_path(function: object) -> str:
    path = import_path_of(function, [str(getattr(function, "__module__", MAIN))])
    if path is None:
        raise Misuse(
            f"middleware {getattr(function, '__qualname__', function)} cannot be imported by a child process, and "
            'there are tasks with run_in="process"; define it at the top of a module, or give it to these tasks'
        )
    return path


def database_digest(settings: Settings, store: Store) -> str:
    """Give a digest that is equal for the same database, and does not reveal where it is.

    A file is where the store has it: the directory that its name began in may not be that of this process any more.
    """
    where = store.path if isinstance(store, SqliteStore) else settings.database
    return sha256(f"{where}\n{settings.schema_name}".encode()).hexdigest()
