"""`holdfast audit`: who has done what, when and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.database import ChosenPlace, of_place
from holdfast.cli.schedules import read_time
from holdfast.cli.token import tell_more
from holdfast.cli.webhooks import show

if TYPE_CHECKING:
    from datetime import datetime


@click.command()
@click.option("--who", help="Show only what this person or token did.")
@click.option("--action", help="Show only this action, e.g. cancel or lane.skip.")
@click.option("--subject", help="Show only what was done to this: an id or a name.")
@click.option("--since", callback=lambda _, __, text: read_time(text), help="Show only what was done since this time.")
@click.option("--until", callback=lambda _, __, text: read_time(text), help="Show only what was done before this time.")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Show at most this many.")
@click.option("--after", help="Show the entries after the page that printed this cursor.")
@of_place
def audit(
    who: str | None,
    action: str | None,
    subject: str | None,
    since: datetime | None,
    until: datetime | None,
    limit: int,
    after: str | None,
    place: ChosenPlace,
    as_json: bool,
) -> None:
    """List who did what, to what and why, newest first.

    The audit has what people did over the HTTP API, with the commands token, link and tenants, and with hf.acting().

    Times have their zone, e.g. 2026-12-01T00:00Z or 2026-12-01T08:30+01:00. Entries are kept for 400 days.

    \b
    Examples:
      holdfast audit --database jobs.db
      holdfast audit --who ada --since 2026-12-01T00:00Z --json
    """
    from holdfast.wire.access_json import audit_object

    with place.opened() as face:
        while True:
            found = face.audit(
                who=who, action=action, subject=subject, since=since, until=until, limit=limit, cursor=after
            )
            after = found.next_cursor
            if found.items or after is None:  # a page without any may be followed by others
                break
    show([audit_object(each) for each in found], entry_line, as_json, "there are no entries")
    tell_more(after)


def entry_line(each: dict[str, Any]) -> str:
    """Write an entry for people."""
    from holdfast.logging import printable

    why = f": {each['why']}" if each["why"] else ""
    return printable(f"{each['at']} {each['who']}: {each['action']} {each['subject']}{why}")
