"""What Holdfast logs and how it looks: sentences with facts, the context of a job, text and JSON lines.

A line is written by `say`: the message is a sentence, and its facts are also fields of the record, beside `event_name`,
the name of the line in `log_events`. The template stays in `record.msg` and the facts in `record.args`, so that tools
that group lines by their template can do so. What comes from outside is escaped in the sentence: a line break or an
escape sequence in the name of a task cannot forge a line.

Applications use `JobFilter`; `TextFormatter` and `JsonFormatter` are those of `holdfast worker`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

from holdfast.errors import StoreError, TenantNotFound
from holdfast.log_events import EVENTS

MOST_CHARACTERS = 500
CONTEXT = ("job", "task", "chain", "attempt", "tenant")
USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LoggedJob(Protocol):
    """The job whose handler runs, as far as lines of its handler tell of it."""

    @property
    def id(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def chain_id(self) -> str: ...
    @property
    def token(self) -> HasAttempt: ...


class HasAttempt(Protocol):
    """What knows which attempt runs."""

    @property
    def attempt(self) -> int: ...


logger = logging.getLogger(__name__)

RUNNING_JOB: ContextVar[LoggedJob | None] = ContextVar("holdfast_running_job", default=None)
"""The job whose handler runs in this context."""

RUNNING_TENANT: ContextVar[str | None] = ContextVar("holdfast_running_tenant", default=None)
"""The tenant whose job that is, or whose worker's task this is, if it is one's."""


class KeptLogs(NamedTuple):
    """Where the records of a handler go beside the log, from a level on."""

    level: int
    keep: Callable[[logging.LogRecord], None]


KEPT_LOGS: ContextVar[KeptLogs | None] = ContextVar("holdfast_kept_logs", default=None)
"""Who keeps what is logged in this context."""


class _Keeper(logging.Handler):
    """Hands every record to whoever keeps those of its context; what Holdfast itself logs is not a handler's."""

    def emit(self, record: logging.LogRecord) -> None:
        kept = KEPT_LOGS.get()
        if kept is not None and record.levelno >= kept.level and record.name.partition(".")[0] != "holdfast":
            kept.keep(record)


_KEEPER = _Keeper()


def keep_logs(level: str, keep: Callable[[logging.LogRecord], None]) -> None:
    """Have *keep* called with each record that is logged in this context from *level* on; loggers' levels still count.

    It is called in the thread that logs, and must neither wait nor raise.
    """
    logging.getLogger().addHandler(_KEEPER)  # once: a logger takes no handler twice
    KEPT_LOGS.set(KeptLogs(logging.getLevelNamesMapping()[level], keep))


class JobFilter(logging.Filter):
    """Adds `job`, `task`, `chain`, `attempt` and `tenant` to every record that a handler makes; else they are None.

    A record that a worker of many tenants makes for one of them has its `tenant`, too. The engine's own threads, such
    as the one that renews leases, do not know the tenant. Put it on your own log handler, and use the fields in its
    format. A field that a record has already is kept.

    >>> handler = logging.StreamHandler()
    >>> handler.addFilter(JobFilter())
    >>> handler.setFormatter(logging.Formatter("%(levelname)s %(message)s job=%(job)s attempt=%(attempt)s"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields to *record*; lets every record pass."""
        found = job_fields()
        for name in CONTEXT:
            if not hasattr(record, name):
                setattr(record, name, found.get(name))
        return True


def job_fields() -> dict[str, str | int]:
    """Give `job`, `task`, `chain`, `attempt`, and the `tenant`, of the handler that calls this; nothing elsewhere.

    In a worker of many tenants, what is done for one of them gives the `tenant` also where no handler runs; but the
    engine's own threads do not inherit it.
    """
    found: dict[str, str | int] = {}
    if (job := RUNNING_JOB.get()) is not None:
        found = {"job": job.id, "task": job.task, "chain": job.chain_id, "attempt": job.token.attempt}
    if (tenant := RUNNING_TENANT.get()) is not None:
        found["tenant"] = tenant
    return found


def say(
    logger: logging.Logger,
    event: str,
    /,
    *,
    level: int | None = None,
    trace: BaseException | None = None,
    **facts: object,
) -> None:
    """Log the line *event* with its *facts*; *trace* is the error whose traceback follows it. Never raises."""
    line = EVENTS[event]
    level = line.level if level is None else level
    if not logger.isEnabledFor(level):
        return
    shown = [{name: _shown(value) for name, value in facts.items()}] if facts else []
    extra = {"event_name": event, **facts}
    with suppress(Exception):  # a filter of the application's may raise, and no job is to depend on it
        logger.log(level, line.sentence, *shown, exc_info=trace, extra=extra, stacklevel=2)


class StoredTraceback(Exception):
    """Stands for an error of which there is only the *text* of its traceback, as a child process has sent it."""

    def __init__(self, text: str) -> None:
        super().__init__(f"\n{text.rstrip()}")


def level_beside(error: Exception) -> int:
    """Give the level at which *error* is told by what a worker does beside its jobs: the worker itself says more of it.

    It says that its database is in trouble; and that its tenant was dropped is no trouble at all.
    """
    return logging.DEBUG if isinstance(error, StoreError | TenantNotFound) else logging.ERROR


def reason_of(error: BaseException) -> str:
    """Give the type and the first line of the message of *error*: an error of the system may have no message."""
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001 - `__str__` may be a user's
        text = "(its message cannot be read)"
    name = type(error).__qualname__
    return f"{name}: {text.splitlines()[0]}" if text else name


def printable(text: str) -> str:
    """Escape what would end a line of *text* or change how a terminal shows it."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{_shown(name)}={_shown(each)}" for name, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_shown, value)) or "none"
    text = printable(str(value))
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class LogOptions(NamedTuple):
    """How a command logs; None is the usual: `info`, as `text`. *place* is the number of the worker process, if any."""

    level: str | None = None
    format: str | None = None
    place: int | None = None


_in_force: LogOptions | None = None


def set_up_logging(options: LogOptions) -> None:
    """Log to stderr, also what the application logs; if that has set up logging by itself, leave it alone."""
    global _in_force
    _in_force = options
    _enable_our_loggers()
    ours, root = logging.getLogger("holdfast"), logging.getLogger()
    if ours.hasHandlers():
        if options.level is not None:
            ours.setLevel(options.level.upper())
        if options.format is not None:
            say(logger, "log_format_not_used", format=options.format)
        return
    always = {} if options.place is None else {"place": options.place}
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(JobFilter())
    handler.setFormatter(JsonFormatter(**always) if options.format == "json" else TextFormatter(**always))
    root.addHandler(handler)
    if options.level is not None or root.level == logging.WARNING:  # Python's own: nobody has chosen another
        root.setLevel((options.level or "info").upper())


def _enable_our_loggers() -> None:
    """Undo what `dictConfig` does to loggers that exist already: it disables them, unless it is told otherwise."""
    for name, each in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] == "holdfast" and isinstance(each, logging.Logger):
            each.disabled = False


def logging_in_force() -> LogOptions | None:
    """Give how the command logs whose process this is, so that its child processes do the same; None in a program."""
    return _in_force


class TextFormatter(logging.Formatter):
    """Writes a record as a line for people: `2026-11-17 12:30:00.123 WARNING sentence [event_name]`.

    If it is logged for a tenant whom the sentence does not name, `[tenant acme]` stands behind that. The lines of a
    traceback are indented, so that nothing in an error looks like a line of the log. *always* are facts of the whole
    process.
    """

    def __init__(self, **always: object) -> None:
        super().__init__()
        self._process = "".join(f"[{name} {value}] " for name, value in always.items())

    def format(self, record: logging.LogRecord) -> str:
        """Write *record*."""
        name = vars(record).get("event_name")
        message = _message_of(record)
        if name is not None:
            line = f"{message}{_tenant_of(record)} [{name}]"
        else:
            line = f"{printable(record.name)}: {message}{_context_of(record)}"
        when = f"{_instant_of(record):%Y-%m-%d %H:%M:%S}.{int(record.msecs):03d}"
        below = [*_trace_of(record, self), *_lines_of(vars(record).get("stack"))]
        return "\n    ".join([f"{when} {record.levelname:<7} {self._process}{line}", *below])


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON: time, level, logger, message, and every field; *always* are in each."""

    def __init__(self, **always: object) -> None:
        super().__init__()
        self._always = always

    def format(self, record: logging.LogRecord) -> str:
        """Write *record*."""
        fields = {name: value for name, value in vars(record).items() if name not in USUAL and value is not None}
        trace = _trace_of(record, self)
        return json.dumps(
            {
                "time": _instant_of(record).isoformat(timespec="milliseconds"),
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": _message_of(record),
                **self._always,
                **fields,
                **({"traceback": "\n".join(trace)} if trace else {}),
            },
            default=str,
            skipkeys=True,
        )


def _instant_of(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _message_of(record: logging.LogRecord) -> str:
    try:
        return printable(record.getMessage())
    except Exception as error:  # noqa: BLE001 - a record of somebody else whose facts do not fit its template
        return printable(f"{record.msg} ({reason_of(error)})")


def _context_of(record: logging.LogRecord) -> str:
    found = {name: vars(record).get(name) for name in CONTEXT}
    if found["job"] is None:
        return _tenant_of(record)
    if found["chain"] == found["job"]:
        del found["chain"]
    return " [" + " ".join(f"{name} {printable(str(value))}" for name, value in found.items() if value) + "]"


def _tenant_of(record: logging.LogRecord) -> str:
    """Name the tenant, unless it is among the facts, which the sentence tells."""
    tenant = vars(record).get("tenant")
    if tenant is None or (isinstance(record.args, Mapping) and "tenant" in record.args):
        return ""
    return f" [tenant {printable(str(tenant))}]"


def _trace_of(record: logging.LogRecord, formatter: logging.Formatter) -> list[str]:
    trace = record.exc_text or ""
    if record.exc_info and not trace:
        trace = formatter.formatException(record.exc_info)
    return [*_lines_of(trace), *_lines_of(record.stack_info)]


def _lines_of(text: object) -> list[str]:
    return [printable(each) for each in str(text or "").split("\n") if each.strip()]
