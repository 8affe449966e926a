"""The thread that renews leases and waits for results outlives whatever its step raises (I-21)."""

from __future__ import annotations

import logging
import threading

import pytest

from holdfast import threads
from holdfast.threads import StepThread
from tests.support.log_lines import name_of


def test_a_step_that_raises_is_called_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(threads, "AFTER_FAILURE_SECONDS", 0.01)
    called = threading.Semaphore(0)

    def step() -> float | None:
        called.release()
        raise ZeroDivisionError

    shell = StepThread(step, "holdfast-test")
    shell.wake()

    assert all(called.acquire(timeout=5) for _ in range(3))
    shell.stop()
    assert {name_of(record) for record in caplog.records} == {"step_failed"}


def test_an_application_whose_logging_fails_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "AFTER_FAILURE_SECONDS", 0.01)
    called = threading.Semaphore(0)

    def step() -> float | None:
        called.release()
        raise ZeroDivisionError

    def refuse(record: logging.LogRecord) -> bool:
        raise OSError(record.name)

    threads.logger.addFilter(refuse)
    shell = StepThread(step, "holdfast-test")
    shell.wake()

    try:
        assert all(called.acquire(timeout=5) for _ in range(3))
    finally:
        shell.stop()
        threads.logger.removeFilter(refuse)
