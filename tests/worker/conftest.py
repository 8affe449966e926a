"""What tests of handlers share: both databases, handlers of both colours, and a table of the user's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from holdfast import Holdfast
from tests.store.open_blocks import make_table
from tests.worker.colours import COLOURS, Colour


@pytest.fixture(params=COLOURS)
async def colour(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Colour]:
    """One of the four, open, empty, and with an empty table `bill`."""
    database, name = request.param.split("-")
    hf = new_holdfast(database)
    await hf.open()
    await hf.store.run(make_table)
    yield Colour(hf, is_async=name == "async")
    await hf.close()
