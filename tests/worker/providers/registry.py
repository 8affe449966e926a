"""Finds the stacks: every file of this folder that has a tuple `STACKS`."""

from __future__ import annotations

from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest

from tests.worker.providers.interface import Often, Stack


def find() -> tuple[Stack, ...]:
    """Collect the stacks of all files, by the files' names."""
    here = __name__.rpartition(".")[0]
    names = sorted(each.name for each in iter_modules([str(Path(__file__).parent)]))
    others = [import_module(f"{here}.{name}") for name in names if name not in ("interface", "registry")]
    return tuple(stack for module in others for stack in module.STACKS)


STACKS = find()


async def database_and_options(
    request: pytest.FixtureRequest, folder: Path, at_end: AsyncExitStack
) -> tuple[str, bool, dict[str, Any]]:
    """Read the parameter of a fixture, a stack or a way's name: the database, the colour, and options of a Holdfast."""
    stack = request.param
    if not isinstance(stack, Stack):
        database, colour = stack.split("-")
        return database, colour == "async", {}
    url = request.getfixturevalue("empty_url") if stack.database == "postgres" else str(folder / "jobs.db")
    provider = await at_end.enter_async_context(stack.open(url))
    return stack.database, stack.is_async, {"transactions": provider}


def provided(database: str | None = None, *often: Often) -> list[Any]:
    """Give the stacks, or those on one database, as parameters of a test; those not so *often* are for the long run."""
    return [
        pytest.param(each, marks=[] if each.often in often else [pytest.mark.long], id=str(each))
        for each in STACKS
        if database in (None, each.database)
    ]
