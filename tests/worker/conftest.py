"""What tests of handlers share: both databases, handlers of both colours, and a table of the user's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from holdfast import Holdfast
from tests.store.open_blocks import make_table
from tests.worker.colours import COLOURS, Colour
from tests.worker.providers import Often, database_and_options, provided

OVER_PROVIDERS = ("test_blocks", "test_inside_blocks", "test_losing")
"""The contract files that run over the transactions of every library too."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test of handlers in four ways, and one of the contract of blocks over every provider too."""
    is_chosen = any("colour" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "colour" in metafunc.fixturenames and not is_chosen:
        name = metafunc.module.__name__.rpartition(".")[2]
        stacks = provided(None, Often.EVERYWHERE) if name in OVER_PROVIDERS else []
        metafunc.parametrize("colour", [*COLOURS, *stacks], indirect=True)


@pytest.fixture
async def colour(
    request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast], tmp_path: Path
) -> AsyncIterator[Colour]:
    """One of the four, or the transactions of a library; open, empty, and with an empty table `bill`."""
    async with AsyncExitStack() as at_end:
        database, is_async, options = await database_and_options(request, tmp_path, at_end)
        hf = new_holdfast(database, **options)
        await hf.open()
        await hf.store.run(make_table)
        yield Colour(hf, is_async=is_async)
        await hf.close()
