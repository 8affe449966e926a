"""Log lines: sentences with facts, escaped; text for people, JSON for programs; whose set-up is left alone."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.logging import (
    RUNNING_JOB,
    RUNNING_TENANT,
    JobFilter,
    JsonFormatter,
    LogOptions,
    StoredTraceback,
    TextFormatter,
    job_fields,
    logging_in_force,
    reason_of,
    say,
    set_up_logging,
)

FORGED = "x\r\n2026-11-17 00:00:00.000 ERROR   forged\x1b[2J\u2028\u202e"


@dataclass(frozen=True)
class Token:
    attempt: int = 2


@dataclass(frozen=True)
class Job:
    id: str = "0198"
    task: str = "pack"
    chain_id: str = "0197"
    token: Token = Token()


@dataclass
class Log:
    """A logger that writes into a text."""

    logger: logging.Logger
    written: io.StringIO

    @property
    def text(self) -> str:
        return self.written.getvalue()


@pytest.fixture
def log() -> Iterator[Log]:
    logger, written = logging.getLogger("holdfast.test"), io.StringIO()
    logger.addHandler(logging.StreamHandler(written))
    logger.propagate, level = False, logger.level
    logger.setLevel(logging.DEBUG)
    yield Log(logger, written)
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(level)


def formatted(log: Log, formatter: logging.Formatter) -> Log:
    log.logger.handlers[0].setFormatter(formatter)
    return log


def test_the_message_is_a_sentence_and_its_facts_are_fields(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    log.logger.addHandler(caplog.handler)

    say(log.logger, "event_loop_blocked", seconds=3.1, by="job 7 (task pack)", job="7")

    (record,) = caplog.records
    assert log.text == (
        "The event loop has been blocked for 3.1 s by job 7 (task pack); meanwhile no other handler runs\n"
    )
    assert (record.levelname, vars(record)["event_name"], vars(record)["seconds"], vars(record)["job"]) == (
        "WARNING", "event_loop_blocked", 3.1, "7"
    )  # fmt: skip
    assert "%(seconds)s" in record.msg  # by which tools group lines


def test_no_line_can_be_forged_by_what_it_is_about(log: Log) -> None:
    """A7."""
    formatted(log, TextFormatter(place=2))
    log.logger.handlers[0].addFilter(JobFilter())

    say(log.logger, "child_lacks_task", trace=StoredTraceback(FORGED), task=FORGED, app=FORGED)
    token = RUNNING_JOB.set(Job(task=FORGED))
    log.logger.warning("own %s", FORGED)
    RUNNING_JOB.reset(token)

    first, *trace, last = log.text.splitlines()
    assert "task x\\r\\n2026" in first
    assert trace
    assert all(each.startswith("    ") for each in trace)
    assert "forged" in last
    assert not {"\x1b", "\r", "\u2028", "\u202e"} & set(log.text)


@pytest.mark.parametrize("facts", [{"task": FORGED, "app": "shop:hf"}, {"task": "pack", "app": [FORGED, "shop:hf"]}])
def test_no_line_can_be_forged_where_the_application_has_its_own_formatter(log: Log, facts: dict[str, Any]) -> None:
    """A7: an embedded worker writes through the log handlers of its application, which escape nothing."""
    formatted(log, logging.Formatter("%(levelname)s %(message)s"))

    say(log.logger, "child_lacks_task", **facts)

    (line,) = log.text.splitlines()
    assert "x\\r\\n2026" in line
    assert line.isprintable()


def test_a_json_line_has_every_field_and_the_traceback(log: Log) -> None:
    formatted(log, JsonFormatter(place=2))

    say(log.logger, "step_failed", trace=StoredTraceback("Traceback\n  at home"), part=FORGED, reason="no")

    (line,) = log.text.splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "error",
        "logger": "holdfast.test",
        "message": found["message"],
        "place": 2,
        "event_name": "step_failed",
        "part": FORGED,
        "reason": "no",
        "traceback": found["traceback"],
    }
    assert "at home" in found["traceback"]


def test_a_text_line_of_the_application_ends_with_its_job(log: Log) -> None:
    formatted(log, TextFormatter())
    log.logger.handlers[0].addFilter(JobFilter())

    log.logger.info("outside")
    token = RUNNING_JOB.set(Job())
    log.logger.info("inside")
    RUNNING_JOB.reset(token)

    outside, inside = log.text.splitlines()
    assert outside.endswith("holdfast.test: outside")
    assert inside.endswith("holdfast.test: inside [job 0198 task pack chain 0197 attempt 2]")


def test_the_filter_adds_the_job_and_keeps_what_a_record_has() -> None:
    record, other = logging.makeLogRecord({"task": "own"}), logging.makeLogRecord({})
    token = RUNNING_JOB.set(Job())

    assert JobFilter().filter(record)
    assert job_fields() == {"job": "0198", "task": "pack", "chain": "0197", "attempt": 2}
    RUNNING_JOB.reset(token)
    JobFilter().filter(other)

    assert [vars(record)[name] for name in ("job", "task", "chain", "attempt")] == ["0198", "own", "0197", 2]
    assert [vars(other)[name] for name in ("job", "task", "chain", "attempt")] == [None] * 4
    assert job_fields() == {}


def test_a_line_that_is_logged_for_a_tenant_names_it_once(log: Log) -> None:
    formatted(log, TextFormatter())
    log.logger.handlers[0].addFilter(JobFilter())
    token = RUNNING_TENANT.set("acme")

    assert job_fields() == {"tenant": "acme"}
    say(log.logger, "database_available", seconds=3)
    say(log.logger, "tenant_served_again", tenant="acme", seconds=3)
    log.logger.info("own")
    RUNNING_TENANT.reset(token)

    without, with_it, own = log.text.splitlines()
    assert without.endswith(" [tenant acme] [database_available]")
    assert with_it.endswith("Tenant acme can be served again, after 3 s [tenant_served_again]")
    assert own.endswith("holdfast.test: own [tenant acme]")


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "MemoryError"),
        (OSError(24, "Too many open files"), "OSError: [Errno 24] Too many open files"),
        (ValueError("first\nsecond"), "ValueError: first"),
        (Unreadable(), "Unreadable: (its message cannot be read)"),
    ],
)
def test_a_reason_is_never_empty(error: Exception, reason: str) -> None:
    """A12."""
    assert reason_of(error) == reason


def bare(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """Make the root logger as it is in a program that has set up nothing; inside the test, for pytest sets it up."""
    root, ours = logging.getLogger(), logging.getLogger("holdfast")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    monkeypatch.setattr(ours, "level", logging.NOTSET)
    root.manager._clear_cache()  # type: ignore[attr-defined]  # what a logger knows of the level of its parents
    monkeypatch.setattr("holdfast.logging._in_force", None)
    return root


def test_a_command_shows_what_the_application_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """B1."""
    bare(monkeypatch)

    set_up_logging(LogOptions())

    logging.getLogger("shop").info("a line of the shop")

    assert "INFO    shop: a line of the shop" in capsys.readouterr().err
    assert logging_in_force() == LogOptions()


def test_a_command_shows_its_lines_after_dictconfig_has_disabled_their_loggers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare(monkeypatch)
    ours, theirs = logging.getLogger("holdfast.worker.attempts.failures"), logging.getLogger("holdfasten")
    for each in (ours, theirs):  # as dictConfig does it
        monkeypatch.setattr(each, "disabled", True)

    set_up_logging(LogOptions())
    ours.error("a job failed")
    theirs.error("not ours")

    told = capsys.readouterr().err
    assert "a job failed" in told
    assert "not ours" not in told


@pytest.mark.parametrize("options", [LogOptions(), LogOptions("debug", "json")])
def test_a_command_leaves_the_logging_of_an_application_alone(
    options: LogOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B1."""
    root, written = bare(monkeypatch), io.StringIO()
    own: Any = logging.StreamHandler(written)
    root.handlers.append(own)

    set_up_logging(options)

    assert (root.handlers, root.level) == ([own], logging.WARNING)
    assert logging.getLogger("holdfast").level == (logging.DEBUG if options.level else logging.NOTSET)
    assert ("--log-format json has no effect" in written.getvalue()) is (options.format is not None)
