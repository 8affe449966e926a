"""Import paths, `module:name`, by which another process finds an object again.

A program that was started as a script, or with -m, is the module `__main__` only in its own process. A child runs it
once more under another name, so that what stands below `if __name__ == "__main__"` is left out.
"""

from __future__ import annotations

import importlib
import runpy
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from holdfast.errors import Misuse

MAIN = "__main__"
SECOND_MAIN = "__mp_main__"
"""What a script is called where it is imported by a child; the name that the standard library gives it too."""


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
    """Import what the import path *path* names."""
    module, _, names = path.partition(":")
    found: object = sys.modules[MAIN] if module == MAIN else importlib.import_module(module)
    for name in names.split("."):
        if not hasattr(found, name):
            raise Misuse(f"there is no {path} in a child process, which imports its modules anew; define it there")
        found = getattr(found, name)
    return found


@dataclass(frozen=True, slots=True)
class Main:
    """The program of this process: the module that it was started with, or the file."""

    module: str | None
    file: str | None

    @classmethod
    def here(cls) -> Main:
        """Say what this process was started with."""
        main = sys.modules[MAIN]
        file = getattr(main, "__file__", None)
        return cls(
            module=None if main.__spec__ is None else main.__spec__.name,
            file=str(Path(file).resolve()) if file is not None and Path(file).is_file() else None,
        )

    def run(self) -> None:
        """Run the program as an import, and have it be `__main__` here."""
        spec = find_spec(self.module) if self.module is not None else None
        main = _stand_in(spec, self.file)
        if self.module is not None:
            found = runpy.run_module(self.module, run_name=SECOND_MAIN, alter_sys=True)
        else:
            found = runpy.run_path(self.file or "", run_name=SECOND_MAIN)
        vars(main).update({name: value for name, value in found.items() if not name.startswith("__")})
        sys.modules[SECOND_MAIN] = main


def _stand_in(spec: ModuleSpec | None, file: str | None) -> ModuleType:
    """Put an empty `__main__` in the place of ours: tasks without a name are called after it, as in the worker."""
    main = ModuleType(SECOND_MAIN)
    main.__spec__, main.__file__ = spec, file
    sys.modules[MAIN] = main
    return main
