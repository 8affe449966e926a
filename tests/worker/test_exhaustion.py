"""A worker whose process lacks memory or descriptors for long ends, and says so; a database that is away ends none."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.errors import Unavailable
from holdfast.store import polls
from holdfast.worker.claiming import exhaustion
from tests.support.conditions import until
from tests.support.log_lines import lines, named


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let every look for work raise *error*, and have no patience with it."""

    async def waiting_work(*_: Any) -> None:
        raise error

    monkeypatch.setattr(exhaustion, "EXHAUSTED_SECONDS", 0.0)
    monkeypatch.setattr(polls, "waiting_work", waiting_work)


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_a_worker_without_memory_ends_and_says_why(
    database: str, new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """A12."""
    hf = new_holdfast(database)
    failing(monkeypatch, MemoryError())

    async with hf:
        worker = hf.worker(poll=0.05)
        with pytest.raises(BaseExceptionGroup):
            async with asyncio.timeout(30), worker:
                await asyncio.wait([worker.ended])

    (said,) = named(caplog, "worker_gives_up")
    assert said.getMessage().endswith("lacked memory or file descriptors: MemoryError")


async def test_a_database_that_is_away_ends_no_worker(
    new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hf, tried = new_holdfast("sqlite"), asyncio.Event()
    failing(monkeypatch, Unavailable("away"))
    monkeypatch.setattr(exhaustion, "is_exhausted", lambda error: tried.set() or real(error))

    async with hf, hf.worker(poll=0.05) as worker:
        await until(tried.is_set, "it has thought of giving up", 30)
        assert not worker.ended.done()

    assert "worker_gives_up" not in lines(caplog)


real = exhaustion.is_exhausted


def test_a_process_without_descriptors_is_known_whatever_a_driver_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    wrapped = Unavailable("it cannot be opened")
    wrapped.__cause__ = OSError(errno.ENOMEM, "Cannot allocate memory")
    assert exhaustion.is_exhausted(wrapped)
    assert not exhaustion.is_exhausted(Unavailable("it cannot be opened"))

    monkeypatch.setattr(os, "open", refuse)
    assert exhaustion.is_exhausted(Unavailable("it cannot be opened"))
