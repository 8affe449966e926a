"""`holdfast retention`: makes one pass of retention, or shows what it would do."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from holdfast.cli.database import AS_JSON, OF_TENANT, ChosenPlace

if TYPE_CHECKING:
    from holdfast.retention import Retained

COLUMNS = ("stale", "deleted", "kept", "postponed")


@click.command()
@click.argument("app")
@click.option("--dry-run", is_flag=True, help="Show how many chains would be marked and deleted, and change nothing.")
@OF_TENANT
@AS_JSON
def retention(app: str, dry_run: bool, tenant: str | None, as_json: bool) -> None:
    """Mark old chains as stale, and delete old stale chains.

    APP is the import path of your Holdfast object, e.g. `shop.jobs:hf`. Its tasks set how long to keep their chains
    and which hooks to call. Workers do the same in the background, unless the setting `retention` is off. The command
    prints how many chains it marked and deleted. *Kept* chains are due but still needed. *Postponed* chains are due,
    but their hook failed or hangs, or only another program has it.

    \b
    Examples:
      holdfast retention shop.jobs:hf --dry-run
      holdfast retention shop.jobs:hf --tenant acme --json
    """
    with ChosenPlace(None, None, tenant).opened(app=app) as face:
        done = face.retain(dry_run=dry_run)
    click.echo(json.dumps(as_object(done, dry_run)) if as_json else as_table(done, dry_run))


def as_object(done: Retained, dry_run: bool) -> dict[str, object]:
    """Make what is printed as JSON."""
    counts = [
        {"task": each.task, "outcome": str(each.outcome)} | {name: getattr(each, name) for name in COLUMNS}
        for each in done.counts
    ]
    return {"dry_run": dry_run, "counts": counts, "trimmed": done.trimmed}


def as_table(done: Retained, dry_run: bool) -> str:
    """Make a table for people, with a sum below."""
    verb = "would be" if dry_run else "were"
    summary = f"{_chains(done.stale)} {verb} marked stale, {_chains(done.deleted)} deleted"
    if not done.counts:
        return f"nothing is due: {summary}"
    width = max(len("task"), *(len(each.task) for each in done.counts))
    lines = [_line("task".ljust(width), "outcome", *COLUMNS)]
    lines += [
        _line(each.task.ljust(width), str(each.outcome), *(str(getattr(each, name)) for name in COLUMNS))
        for each in done.counts
    ]
    return "\n".join([*lines, summary])


def _line(task: str, outcome: str, *cells: str) -> str:
    return "  ".join([task, outcome.ljust(9), *(each.rjust(9) for each in cells)])


def _chains(number: int) -> str:
    return f"{number} chain{'' if number == 1 else 's'}"
