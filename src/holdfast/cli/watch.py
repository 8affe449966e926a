"""`holdfast watch`: shows how a job goes on, and what continues it, until the chain has ended."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import click

from holdfast.cli.database import ChosenPlace, of_place
from holdfast.supervisor.alarm import allow_alarm, set_alarm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from holdfast.models import Job
    from holdfast.sync import BlockingHoldfast

EXIT_CODES = {"completed": 0, "failed": 6, "cancelled": 7}
INTERRUPTED = 130
LOOK_SECONDS = 1.0
LEAVE_SECONDS = 2.0


@click.command()
@click.argument("job")
@click.argument("app", required=False)
@of_place
def watch(job: str, app: str | None, place: ChosenPlace, as_json: bool) -> None:
    """Watch a job until its chain ends. JOB is the id of the job.

    APP is the import path of your Holdfast object, e.g. `shop.jobs:hf`; without APP, the command uses --database. It
    shows the job and the jobs that continue it, and why a job waits: in a terminal as a progress bar for each job and
    each phase, in a file or a pipe as a line for each change. With --json each line is an event, as in the SSE stream;
    the first one is a `snapshot`. Ctrl-C stops this command, not the job.

    Exit codes: 0 completed; 6 failed; 7 cancelled; 2 wrong usage; 3 the job does not exist or was deleted; 5 the
    database could not be reached; 130 after Ctrl-C.

    \b
    Examples:
      holdfast watch 01980f00-6e1c-7000-8000-5a1c2f9e0b77 shop.jobs:hf
      holdfast watch 01980f00-6e1c-7000-8000-5a1c2f9e0b77 shop.jobs:hf --tenant acme
      holdfast watch 01980f00-6e1c-7000-8000-5a1c2f9e0b77 --database jobs.db --json
    """
    if app is not None and (place.database is not None or place.schema_name is not None):
        raise click.UsageError("give APP or --database, not both")
    allow_alarm()
    signal.signal(signal.SIGINT, _interrupt)
    try:
        with place.opened(app=app, also=" or APP") as face:
            end = _print_events(face, job) if as_json else _show(face, job)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(EXIT_CODES[end])


def _interrupt(*_: object) -> None:
    """Break off, wherever it is; and be gone soon, even if that was in the middle of something."""
    set_alarm(LEAVE_SECONDS, lambda: os._exit(INTERRUPTED))
    raise KeyboardInterrupt


class _View(Protocol):
    def show(self, job: Job, why: str) -> None:
        """Show how *job* stands, and *why* it does not run."""


def _show(face: BlockingHoldfast, job_id: str) -> str:
    """Show the jobs of a chain, from the one that is its last by now; answer how it ended."""
    from holdfast.errors import JobNotFound
    from holdfast.states import State

    chain_id = face.get_job(job_id).chain_id
    with _view() as view:
        while True:
            job = _last_job(face, chain_id)
            with face.watch(job) as changes:
                for job in changes:
                    view.show(job, _why(face, job))
            if job.outcome is None:
                raise JobNotFound(job.id)
            if job.state is not State.CONTINUED:
                return str(job.outcome)


def _why(face: BlockingHoldfast, job: Job) -> str:
    """Say why *job* waits; nothing of one that runs, has ended, or moved on while this looked.

    Nor while the database is in trouble: the watching goes on behind that.
    """
    from holdfast.errors import StoreError
    from holdfast.states import OPEN, Status

    if job.status not in OPEN or job.status is Status.RUNNING:
        return ""
    try:
        found = face.explain(job)
    except StoreError:
        return ""
    return str(found) if found.job is not None and found.job.version == job.version else ""


def _last_job(face: BlockingHoldfast, chain_id: UUID) -> Job:
    page = face.list_chain_jobs(chain_id, limit=500)
    while page.next_cursor is not None:
        page = face.list_chain_jobs(chain_id, limit=500, cursor=page.next_cursor)
    return page.items[-1]


def _print_events(face: BlockingHoldfast, job_id: str) -> str:
    """Print the events of a chain; answer how it ended."""
    from holdfast.wire.redaction import Redaction

    chain_id = face.get_job(job_id).chain_id
    with face.event_stream(chains=chain_id, ping_seconds=LOOK_SECONDS, redaction=Redaction()) as stream:
        for piece in stream:
            has_ended = True  # for all that is known: a task without history has no events
            for event in _events_in(piece):
                click.echo(json.dumps(event, ensure_ascii=False, separators=(",", ":")))
                has_ended = _status(event) in EXIT_CODES
            if has_ended and not (chain := face.get_chain(chain_id)).is_open:
                return str(chain.status)
    raise click.ClickException("the events have ended")


def _events_in(piece: bytes) -> Iterator[dict[str, Any]]:
    """Read what is in a piece of a stream, whose messages have a line of data each; leave out pings."""
    for message in piece.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in message.split("\n") if line)
        if fields.get("event", "ping") != "ping":
            yield {"event": fields["event"], **json.loads(fields["data"])}


def _status(event: dict[str, Any]) -> str | None:
    """Give the status of the last job of the chain: after an event, or in a snapshot, which has the newest first."""
    newest = event["jobs"][0] if event.get("jobs") else event
    status = newest.get("status")
    return None if status is None else str(status)


@contextmanager
def _view() -> Iterator[_View]:
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        yield _Lines()
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn

    from holdfast.signals import with_signals_blocked

    columns = (_text("name"), BarColumn(), TaskProgressColumn(), _text("state"), _text("message"))
    progress = Progress(*columns, console=console)
    with_signals_blocked(progress.start)  # it starts a thread
    try:
        yield _Bars(progress)
    finally:
        progress.stop()


def _text(field: str) -> Any:
    from rich.progress import TextColumn

    return TextColumn("{task.fields[" + field + "]}", markup=False)


class _Bars:
    """A bar for a job, and one below it for each of its phases."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress
        self._bars: dict[tuple[UUID, str], Any] = {}

    def show(self, job: Job, why: str) -> None:
        """Show how *job* stands, and *why* it does not run."""
        self._set(job.id, "", job.task, _percent(job), str(job.state), why or job.message)
        for phase in job.phases:
            self._set(job.id, phase.name, f"  {phase.name}", phase.progress, str(phase.status), phase.message)

    def _set(self, job_id: UUID, phase: str, name: str, percent: int, state: str, message: str | None) -> None:
        shown = {"name": _clean(name), "state": state, "message": _clean(message or "")}
        if (job_id, phase) not in self._bars:
            self._bars[job_id, phase] = self._progress.add_task("", total=100, completed=percent, **shown)
        else:
            self._progress.update(self._bars[job_id, phase], completed=percent, **shown)


class _Lines:
    """A line for each change, for files and pipes."""

    def __init__(self) -> None:
        self._last = ""

    def show(self, job: Job, why: str) -> None:
        """Show how *job* stands, and *why* it does not run, unless it looks as before."""
        said = job.current_phase, job.message, _error(job), why
        words = [f"{job.task} {job.id}", f"{job.state} {_percent(job)} %", *said]
        line = _clean(", ".join(str(each) for each in words if each))
        if line != self._last:
            click.echo(line)
        self._last = line


def _percent(job: Job) -> int:
    return 100 if job.outcome == "completed" else job.progress or 0


def _error(job: Job) -> str | None:
    if job.outcome != "failed" or not isinstance(job.error, dict):
        return job.reason if job.outcome else None
    return ": ".join(str(job.error[key]) for key in ("type", "message") if job.error.get(key))


def _clean(text: str) -> str:
    """Leave out what would steer a terminal, and passwords."""
    from holdfast.tasks.calls import UNPRINTABLE
    from holdfast.wire.redaction import without_passwords

    return UNPRINTABLE.sub(" ", without_passwords(text))
