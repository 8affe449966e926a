"""The lines of Holdfast in a log that a test has caught, by their names."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest


def name_of(record: logging.LogRecord) -> str:
    """Give the name of a line of ours; what others have logged is named by its text."""
    return str(vars(record).get("event_name", record.getMessage()))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Name all lines that were logged, in their order."""
    return [name_of(each) for each in caplog.records]


def named(caplog: pytest.LogCaptureFixture, name: str) -> Sequence[logging.LogRecord]:
    """Give the records of the line *name*."""
    return [each for each in caplog.records if name_of(each) == name]
