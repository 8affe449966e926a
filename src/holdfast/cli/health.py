"""`holdfast health`: tells from its health file how a worker command is; for people and for containers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from datetime import datetime

    from holdfast.supervisor.health import HealthReport, Problem


@click.command()
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--liveness", is_flag=True, help="Fail only if a restart would help; ignore an unreachable database.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def health(path: Path, liveness: bool, as_json: bool) -> None:
    """Check the health of workers. PATH is the file that you gave to `holdfast worker --health-file`.

    The check passes if the file is fresh and every process works, responds and reaches its database. It fails if the
    file is older than 15 seconds, a process is down or still starting, a process has reported nothing for 15 seconds,
    an event loop has not responded for 60 seconds, the database has failed for 30 seconds, no child process could be
    started for 30 seconds, or an idle worker has not asked for jobs for 90 seconds.

    Exit codes: 0 healthy; 1 not healthy, or the file cannot be read; 2 wrong usage.

    \b
    Examples:
      holdfast health /run/shop/health.json
      holdfast health /run/shop/health.json --liveness
    """
    import json
    import sys

    from holdfast.runtime import wall_ms
    from holdfast.supervisor.health import instant, problems

    now = instant(wall_ms())
    report = read(path)
    every = problems(report, now)
    found = [each for each in every if each.is_stuck] if liveness else every
    click.echo(json.dumps(as_object(report, found)) if as_json else as_text(report, found, every, now))
    sys.exit(1 if found else 0)


def read(path: Path) -> HealthReport:
    """Read the newest report; one that cannot be read is an error for people, with exit code 1."""
    from pydantic import TypeAdapter, ValidationError

    from holdfast.supervisor.health import HealthReport

    try:
        return TypeAdapter(HealthReport).validate_json(path.read_bytes())
    except OSError as error:
        raise click.ClickException(
            f"cannot read {path}: {error.strerror}; start the worker with --health-file {path}"
        ) from None
    except ValidationError:
        raise click.ClickException(
            f"{path} is not a health file of `holdfast worker`; give the path that you gave to --health-file"
        ) from None


def as_object(report: HealthReport, found: Sequence[Problem]) -> dict[str, object]:
    """Make what is printed as JSON."""
    from pydantic_core import to_jsonable_python

    whole: dict[str, object] = to_jsonable_python(report)
    return {"is_healthy": not found, "problems": [each.text for each in found], **whole}


def as_text(report: HealthReport, found: Sequence[Problem], every: Sequence[Problem], now: datetime) -> str:
    """Make lines for people: the verdict, by what was *found* of *every* problem, then each process."""
    from holdfast.supervisor.health import described, summary

    if found:
        verdict = "not healthy: " + "; ".join(each.text for each in found)
    elif every:
        verdict = "no restart needed, but not healthy: " + "; ".join(each.text for each in every)
    else:
        verdict = f"healthy: {summary(report)}"
    return "\n".join([verdict, *(described(each, now) for each in report.processes)])
