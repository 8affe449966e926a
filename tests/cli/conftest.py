"""What tests of commands share: a database to which the environment leads, and the command line."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast import Holdfast
from tests.cli.in_process import CommandLine
from tests.support.factories import TASKS


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """The command line."""
    return CommandLine(monkeypatch, capsys)


@pytest.fixture(params=["sqlite", "postgres"])
def led_to(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, new_holdfast: Callable[..., Holdfast]
) -> Holdfast:
    """A face on the database to which the environment leads."""
    made = new_holdfast(request.param, tasks=[TASKS])
    made.sync.open()
    monkeypatch.setenv("HOLDFAST_DATABASE", made.settings.database)
    monkeypatch.setenv("HOLDFAST_SCHEMA_NAME", made.settings.schema_name)
    return made
