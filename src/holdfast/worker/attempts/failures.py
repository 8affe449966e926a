"""Says in the log that an attempt failed: with its error, and with what becomes of the job.

The first failure of a job and the last have the traceback; those between are a line each, for they mostly repeat it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from holdfast.logging import StoredTraceback, say
from holdfast.models import DELIVER, INTERNAL_QUEUE
from holdfast.outcomes import MESSAGE_LENGTH, Kind, Outcome
from holdfast.store.jobs.claiming import Claimed
from holdfast.store.jobs.reaping import TakenBack
from holdfast.unreadable import object_of
from holdfast.wire.redaction import without_passwords
from holdfast.worker.attempts.aborts import AbortReason

logger = logging.getLogger(__name__)

MOST_ERRORS = 50
ON_REQUEST = (AbortReason.PAUSED, AbortReason.CANCELLED)


def log_failure(job: Claimed, outcome: Outcome, error: BaseException | None = None) -> None:
    """Log an attempt of *job* that came to *outcome*, unless it did well or was stopped because somebody asked for it.

    *error* is what the handler raised, if that was in this process.
    """
    written: dict[str, Any] = json.loads(outcome.error) if outcome.error is not None else {}
    trace = _trace(error, written)
    facts: dict[str, Any] = {"job": job.id, "task": job.task, "chain": job.chain_id, "attempt": job.token.attempt}
    match outcome.kind:
        case Kind.RETRY | Kind.LOST:
            facts |= {"error": in_short(written), "seconds": round(outcome.delay_ms / 1000, 1)}
            # a receiver that is away is nobody's bug: a webhook has its history, and is logged when it is given up
            level = logging.DEBUG if job.queue == INTERNAL_QUEUE else logging.WARNING
            say(logger, "attempt_failed", level=level, trace=trace if job.used <= 1 else None, **facts)
        case Kind.FAIL if job.task == DELIVER:
            given = object_of(job.input)
            host = urlsplit(str(given.get("url", ""))).hostname  # the path may hold what only the receiver may know
            facts |= {"error": in_short(written), "reason": outcome.reason}
            say(logger, "webhook_failed", **facts, receiver=host, told=given.get("event"), about=given.get("target"))
        case Kind.FAIL:
            say(logger, "job_failed", trace=trace, **facts, error=in_short(written), reason=outcome.reason)
        case Kind.PAUSE if outcome.reason not in ON_REQUEST:
            say(logger, "job_paused", trace=trace, **facts, reason=outcome.reason)
        case _:
            return


def log_losses(taken: Iterable[TakenBack]) -> None:
    """Log which of the jobs that were lost with their workers do not run again by themselves."""
    for each in taken:
        facts: dict[str, Any] = {"job": each.id, "task": each.task, "chain": each.chain_id, "attempt": each.attempt}
        written = json.loads(each.outcome.error or "{}")
        match each.outcome.kind:
            case Kind.FAIL:
                say(logger, "job_failed", **facts, error=in_short(written), reason=each.outcome.reason)
            case Kind.PAUSE:
                say(logger, "job_paused", **facts, reason=each.outcome.reason)
            case _:
                pass


def in_short(written: dict[str, Any]) -> str:
    """Give the type and the first line of the message of an error, as it is written to the history."""
    kind, message = written.get("type", "no error"), without_passwords(str(written.get("message", "")))
    return f"{kind}: {message.splitlines()[0]}" if message else str(kind)


def _trace(error: BaseException | None, written: dict[str, Any]) -> BaseException | None:
    """Give the error whose traceback is to be shown, if any, without the frames that called the handler."""
    if not written.get("traceback"):  # the handler asked for a pause, or the error is the engine's own
        return None
    shown = without_passwords(written["traceback"])
    if error is None or shown != written["traceback"] or not _is_readable(error):
        return StoredTraceback(shown)
    return error.with_traceback(_from_handler_on(error.__traceback__))


def _is_readable(error: BaseException) -> bool:
    """Tell whether a log can be given *error* itself: its texts, and those of its causes, are short and are texts."""
    ahead, seen = [error], set[int]()
    try:
        while ahead:
            each = ahead.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            if len(seen) > MOST_ERRORS or len(str(each).encode()) > MESSAGE_LENGTH:
                return False
            inner = each.exceptions if isinstance(each, BaseExceptionGroup) else ()
            ahead += [other for other in (each.__cause__, each.__context__, *inner) if other is not None]
    except Exception:  # noqa: BLE001 - its texts are the user's: they may raise, or be no text that can be written
        return False
    return True


def _from_handler_on(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_next is not None:
        if not str(trace.tb_frame.f_globals.get("__name__")).startswith("holdfast."):
            break
        trace = trace.tb_next
    return trace
