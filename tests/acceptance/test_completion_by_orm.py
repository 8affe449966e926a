"""Handlers that write by an object mapper inside `complete()`, and whatever may happen at our statements there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.crash_cases import places
from tests.acceptance.scenarios import SCENARIOS
from tests.acceptance.walks import failures, walk, ways

WALKS = ways({name: each for name, each in SCENARIOS.items() if each.needs})


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("name", "database", "mode"), places(WALKS, ()))
def test_what_the_orm_wrote_and_the_completion_are_there_both_or_neither(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, database: str, mode: str
) -> None:
    """Q-07, F-03, F-15, I-55: `kill -9` and all else, also at the COMMIT of the object mapper's own transaction."""
    wrong = walk(request, tmp_path, name, database, mode)

    assert not wrong, failures(wrong)
