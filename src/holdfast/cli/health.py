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
@click.option(
    "--liveness", is_flag=True, help="Ask only whether a restart would help; a database that is away is well."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def health(path: Path, liveness: bool, as_json: bool) -> None:
    """Tell how the workers are that write PATH, the --health-file of `holdfast worker`.

    They are well if the file is fresh, and every process works, answers, and has its database. They are not if nothing
    was heard for 15 seconds, a process is down or still starting, an event loop has not answered for a minute, the
    database has not for half a minute, or an idle worker has not asked for work for one and a half.

    Exit codes: 0 all is well; 1 it is not, or there is no such file; 2 the call is wrong.

    \b
    Examples:
      holdfast health /run/shop/health.json
      holdfast health /run/shop/health.json --liveness
    """
    import json
    import sys

    from holdfast.runtime import wall_ms
    from holdfast.supervisor.health import problems
    from holdfast.supervisor.health_file import instant

    now = instant(wall_ms())
    report = read(path)
    found = [each for each in problems(report, now) if each.is_stuck or not liveness]
    click.echo(json.dumps(as_object(report, found)) if as_json else as_text(report, found, now))
    sys.exit(1 if found else 0)


def read(path: Path) -> HealthReport:
    """Read the newest report; one that cannot be read is an error for people, with exit code 1."""
    from pydantic import TypeAdapter, ValidationError

    from holdfast.supervisor.health import HealthReport

    try:
        return TypeAdapter(HealthReport).validate_json(path.read_bytes())
    except OSError as error:
        raise click.ClickException(
            f"cannot read {path}: {error.strerror}; does a worker with --health-file run?"
        ) from None
    except ValidationError:
        raise click.ClickException(f"{path} is not a health file of `holdfast worker`") from None


def as_object(report: HealthReport, found: Sequence[Problem]) -> dict[str, object]:
    """Make what is printed as JSON."""
    from pydantic_core import to_jsonable_python

    whole: dict[str, object] = to_jsonable_python(report)
    return {"is_healthy": not found, "problems": [each.text for each in found], **whole}


def as_text(report: HealthReport, found: Sequence[Problem], now: datetime) -> str:
    """Make lines for people: the verdict, then each process."""
    from holdfast.supervisor.health import described, summary

    verdict = "not healthy: " + "; ".join(each.text for each in found) if found else f"healthy: {summary(report)}"
    return "\n".join([verdict, *(described(each, now) for each in report.processes)])
