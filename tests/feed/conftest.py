"""What the tests of the feed share: sleepers that trust their mark soon, and faces on either database."""

from __future__ import annotations

import pytest

from holdfast.database import hints


@pytest.fixture(autouse=True)
def quick_to_fall_asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let sleepers trust their mark soon: no statement takes that long here."""
    monkeypatch.setattr(hints, "STATEMENT_SECONDS", 0.2)


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    """Each of the two databases."""
    return str(request.param)
