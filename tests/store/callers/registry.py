"""Finds the stacks: every file of this folder that has a tuple `STACKS`."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from tests.store.callers.interface import Stack


def find() -> tuple[Stack, ...]:
    """Collect the stacks of all files, by the files' names."""
    here = __name__.rpartition(".")[0]
    names = sorted(each.name for each in iter_modules([str(Path(__file__).parent)]))
    others = [import_module(f"{here}.{name}") for name in names if name not in ("interface", "registry")]
    return tuple(stack for module in others for stack in module.STACKS)


STACKS = find()
