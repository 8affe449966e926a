"""What tests of the HTTP API share: an open face on an empty database, on each of the two."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from holdfast import Holdfast
from tests.support.factories import TASKS


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    """A face on either database, with the tasks of the factories."""
    face = new_holdfast(request.param, tasks=[TASKS])
    async with face:
        yield face
