"""How a child process begins: what its worker tells it first, and how it finds again what it imports.

It finds that by import paths, `module:name`. A program that was started as a script, or with -m, is the module
`__main__` only in its own process. A child runs it once more under another name, so that what stands below
`if __name__ == "__main__"` is left out.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from holdfast.database.sqlite.store import SqliteStore
from holdfast.database.tx import Store
from holdfast.errors import Misuse
from holdfast.logging import logging_in_force
from holdfast.settings import Settings
from holdfast.tasks.task import Task

NAME_THE_APP = 'write hf.worker(app="module:name"), the import path of the same Holdfast object'

IN_CHILD = (
    "this process is a child of a worker, and cannot run a worker itself; if a module starts a worker when it is "
    'imported, move that below `if __name__ == "__main__":`'
)

MAIN = "__main__"
SECOND_MAIN = "__mp_main__"
"""What a script is called where it is imported by a child; the name that the standard library gives it too."""

_children: set[int] = set()
"""This process, if it is a child of a worker."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the children of a worker begin."""

    app: str
    middleware: tuple[str, ...]
    main: dict[str, str | None] | None
    database: str
    tenant: str | None = None
    """Whose jobs they run, of the tenants of that object."""

    @classmethod
    def of(
        cls,
        application: object,
        app: str | None,
        settings: Settings,
        store: Store,
        tasks: Sequence[Task[..., Any]],
        middleware: Sequence[object],
        tenant: str | None = None,
    ) -> Self:
        """Say how children of a worker of *application* begin, or raise `Misuse`; *app* is its path, if known.

        The worker may be one of its tenant *tenant*: then the children find that by the name.
        """
        if os.getpid() in _children:
            raise Misuse(IN_CHILD)
        modules = [each.function.__module__ for each in tasks if each.function is not None]
        path = app or import_path_of(application, modules)
        if path is None:
            raise Misuse(
                f'task {tasks[0].name} runs in child processes (run_in="process"), which import your Holdfast '
                f"object, but no module has it as a name at its top level; {NAME_THE_APP}"
            )
        middleware_paths = tuple(_middleware_path(each) for each in middleware)
        is_main = any(each.startswith(f"{MAIN}:") for each in (path, *middleware_paths))
        main = program_here() if is_main else None
        if main is not None and not any(main.values()):
            raise Misuse(
                f"a child process cannot import code that was typed into Python or given by `python -c`; {NAME_THE_APP}"
            )
        return cls(path, middleware_paths, main, database_digest(settings, store), tenant)

    def first_message(self, worker: str, megabytes: float | None) -> dict[str, Any]:
        """Give the first message to a child of *worker*, which runs no other job once it has more than *megabytes*."""
        return {
            "app": self.app,
            "tenant": self.tenant,
            "middleware": self.middleware,
            "main": self.main,
            "path": sys.path,
            "arguments": sys.argv,
            "worker": worker,
            "megabytes": megabytes,
            "parent": os.getpid(),
            "log": None if (log := logging_in_force()) is None else log._asdict(),
        }


def mark_as_child() -> None:
    """Mark this process as a child: a worker in it would have children that have workers, for ever."""
    _children.add(os.getpid())


def database_digest(settings: Settings, store: Store) -> str:
    """Give a digest that is equal for the same database, and does not reveal where it is.

    A file is where the store has it: the directory that its name began in may not be that of this process any more.
    """
    where = store.path if isinstance(store, SqliteStore) else settings.database
    return sha256(f"{where}\n{settings.schema_name}".encode()).hexdigest()


def _middleware_path(function: object) -> str:
    path = import_path_of(function, [str(getattr(function, "__module__", MAIN))])
    if path is None:
        raise Misuse(
            f"a child process cannot import middleware {getattr(function, '__qualname__', function)}, and child "
            'processes run tasks with run_in="process" (and suspects, if app= is given); define it at the top level '
            "of a module, or give it to the tasks"
        )
    return path


def import_path_of(wanted: object, modules: Iterable[str] = ()) -> str | None:
    """Find a name at the top of a module that is *wanted*, in *modules* first; None if there is none.

    A script that has it from elsewhere comes last: it would be run whole.
    """
    others = sorted(sys.modules, key=lambda name: name in (MAIN, SECOND_MAIN))
    for name in dict.fromkeys((*modules, *others)):
        module = sys.modules.get(name)
        if not isinstance(module, ModuleType):  # libraries put all kinds of things there
            continue
        for attribute, value in list(vars(module).items()):
            if value is wanted:
                return f"{MAIN if name == SECOND_MAIN else name}:{attribute}"
    return None


def import_object(path: str) -> object:
    module, _, names = path.partition(":")
    found: object = sys.modules[MAIN] if module == MAIN else importlib.import_module(module)
    for name in names.split("."):
        if not hasattr(found, name):
            raise Misuse(
                f"{path} does not exist in a child process, which imports its modules again; define it at the top "
                "level of the module"
            )
        found = getattr(found, name)
    return found


def program_here() -> dict[str, str | None]:
    """Say what this process was started with: the module, or the file."""
    main = sys.modules[MAIN]
    file = getattr(main, "__file__", None)
    return {
        "module": None if main.__spec__ is None else main.__spec__.name,
        "file": str(Path(file).resolve()) if file is not None and Path(file).is_file() else None,
    }


def run_program(module: str | None, file: str | None) -> None:
    """Run the program of the worker as an import, and have it be `__main__` here."""
    main = ModuleType(SECOND_MAIN)
    main.__spec__, main.__file__ = find_spec(module) if module is not None else None, file
    sys.modules[MAIN] = main  # empty at first: tasks without a name are called after it, as in the worker
    if module is not None:
        found = runpy.run_module(module, run_name=SECOND_MAIN, alter_sys=True)
    else:
        found = runpy.run_path(file or "", run_name=SECOND_MAIN)
    vars(main).update({name: value for name, value in found.items() if not name.startswith("__")})
    sys.modules[SECOND_MAIN] = main
