"""How a worker command is, all its processes together: what is written down every two seconds, and what is wrong in it.

There are two kinds of wrong. *Stuck* is what a restart would mend: nothing was written for long, or a process neither
says anything nor lets its event loop go round. The rest a restart would only make worse: the database is away, or a
process is down and will be started again anyway.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal, TypeAlias

from pydantic_core import to_jsonable_python

from holdfast.worker.health import Health

BEAT_SECONDS = 2.0
SILENT_SECONDS = 15.0
"""For how long nothing may be heard."""
TROUBLE_SECONDS = 30.0
"""For how long the store may fail to answer."""
LAG_SECONDS = 60.0
"""For how long an event loop may owe its answer."""
UNASKED_SECONDS = 90.0
"""For how long an idle worker may not ask for work; it asks every thirty seconds, or at its poll."""

MOST_STUBBORN, MOST_RECEIVERS = 20, 3
MOST_CHARACTERS, MOST_OF_NAME = 500, 100
CHILDREN = ("idle", "busy", "starting")

ProcessState: TypeAlias = Literal["starting", "working", "draining", "down", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessReport:
    """How one worker process is; *health* is what its worker last said of itself, as JSON has it."""

    number: int
    state: ProcessState
    pid: int | None = None
    starts: int = 1
    last_end: str | None = None
    """How the one before it in this slot ended."""
    again_at: datetime | None = None
    """When it is started again, if it is down."""
    heard_at: datetime | None = None
    poll: float = 2.0
    health: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthReport:
    """How all processes of one command are, at the time *at* of this machine's clock."""

    at: datetime
    pid: int
    processes: Sequence[ProcessReport]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong; *is_stuck* if a restart would mend it."""

    text: str
    is_stuck: bool = False


def instant(wall_ms: int) -> datetime:
    """Make of milliseconds since 1970 the time that is written down."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def facts_of(health: Health) -> dict[str, Any]:
    """Make of *health* what JSON has, and so short that a pipe takes it whole or not at all."""
    trouble = None if health.trouble is None else health.trouble[:MOST_CHARACTERS].encode(errors="replace").decode()
    receivers = tuple(
        replace(each, receiver=each.receiver[:MOST_OF_NAME]) for each in health.receivers[:MOST_RECEIVERS]
    )
    short = replace(health, stubborn=health.stubborn[:MOST_STUBBORN], trouble=trouble, receivers=receivers)
    facts: dict[str, Any] = to_jsonable_python(short)
    return facts


def problems(report: HealthReport, now: datetime) -> list[Problem]:
    """Name what is wrong in *report*, as seen *now*; nothing, if all is well."""
    silence = (now - report.at).total_seconds()
    if silence > SILENT_SECONDS:
        return [Problem(f"nothing was reported for {silence:.0f} s", is_stuck=True)]
    return [
        Problem(f"process {each.number} {problem.text}", problem.is_stuck)
        for each in report.processes
        for problem in _problems_of(each, now)
    ]


def is_stuck(found: Sequence[Problem]) -> bool:
    """Tell whether a restart would mend something of what was *found*."""
    return any(each.is_stuck for each in found)


def summary(report: HealthReport) -> str:
    """Say in a few words how all processes are."""
    states = [each.state for each in report.processes]
    counts = [f"{states.count(each)} {each}" for each in dict.fromkeys(states)]
    running = sum(each.health.get("running") or 0 for each in report.processes)
    return f"{', '.join(counts)}; {running} {'job' if running == 1 else 'jobs'} running"


def described(process: ProcessReport, now: datetime) -> str:
    """Say how *process* is, on one line."""
    words = [f"process {process.number}", process.state]
    if process.state == "down":
        words.append(f"starts again {_ahead(process.again_at, now)}")
    elif process.pid is not None:
        words.append(f"pid {process.pid}")
    if process.health:
        words += list(_health_words(process.health, now))
    if process.starts > 1 or process.state == "down":
        words.append(f"started {process.starts} times, last {process.last_end}")
    return ", ".join(words)


def _problems_of(process: ProcessReport, now: datetime) -> Iterator[Problem]:
    match process.state:
        case "down":
            yield Problem(f"is down ({process.last_end}) and starts again {_ahead(process.again_at, now)}")
        case "starting":
            yield Problem("is still starting")
        case "working" | "draining":
            yield from _troubles(process, now)
        case "ended":
            return


def _troubles(process: ProcessReport, now: datetime) -> Iterator[Problem]:
    health = process.health
    silence, trouble = _age(process.heard_at, now), _age(_instant(health.get("trouble_since")), now)
    lag = float(health.get("loop_lag") or 0.0)
    if silence is not None and silence > SILENT_SECONDS:
        yield Problem(f"has not been heard of for {silence:.0f} s", is_stuck=True)
        return
    if lag > LAG_SECONDS:
        yield Problem(f"has an event loop that has not answered for {lag:.0f} s", is_stuck=True)
    failing = _age(_instant((health.get("children") or {}).get("failing_since")), now)
    if failing is not None and failing > TROUBLE_SECONDS:
        yield Problem(f"could start no child process for {failing:.0f} s")
    if trouble is not None:
        if trouble > TROUBLE_SECONDS:
            said = health.get("trouble")
            yield Problem(f"has had trouble with its database for {trouble:.0f} s{f': {said}' if said else ''}")
        return
    unasked = _age(_instant(health.get("claimed_at") or health.get("since")), now)
    is_idle = process.state == "working" and not health.get("running")
    if is_idle and unasked is not None and unasked > max(UNASKED_SECONDS, 3 * process.poll):
        yield Problem(f"is idle and has not asked for work for {unasked:.0f} s", is_stuck=True)


def _health_words(health: dict[str, Any], now: datetime) -> Iterator[str]:
    asked, trouble = (_age(_instant(health.get(name)), now) for name in ("claimed_at", "trouble_since"))
    yield f"{health.get('running', 0)} running"
    if (tenants := health.get("tenants")) is not None:
        yield "1 tenant" if tenants == 1 else f"{tenants} tenants"
    yield str(health.get("hints", "polling"))
    if asked is not None:
        yield f"asked for work {asked:.0f} s ago"
    if trouble is not None:
        yield f"trouble with the database for {trouble:.0f} s"
    if (health.get("loop_lag") or 0.0) >= 1:
        yield f"event loop late by {health['loop_lag']:.0f} s"
    if children := health.get("children"):
        yield f"{children.get('busy', 0)} of {sum(children.get(each, 0) for each in CHILDREN)} children busy"
    if health.get("stubborn"):
        yield f"{len(health['stubborn'])} that do not stop"
    for each in health.get("receivers") or ():
        since, how = _age(_instant(each.get("since")), now), "silent" if each.get("is_silent") else "slow"
        yield f"webhook receiver {each.get('receiver')} {how} for {since or 0:.0f} s ({each.get('put_off', 0)} put off)"


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _age(then: datetime | None, now: datetime) -> float | None:
    return None if then is None else (now - then).total_seconds()


def _ahead(then: datetime | None, now: datetime) -> str:
    seconds = 0.0 if then is None else (then - now).total_seconds()
    return f"in {seconds:.0f} s" if seconds > 0.5 else "now"
