"""`holdfast schedules`: what is started when, by which rule, and what became of it; to pause, resume, run or delete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.database import ChosenPlace, of_place
from holdfast.cli.person import acting, in_my_name
from holdfast.cli.webhooks import show

if TYPE_CHECKING:
    from datetime import datetime


@click.group()
def schedules() -> None:
    """Manage schedules: calls that workers start at the times of a rule.

    Choose the database with --database, or with the environment variable HOLDFAST_DATABASE; and if it has tenants, one
    of them with --tenant.

    \b
    Examples:
      holdfast schedules list --database jobs.db
      holdfast schedules pause nightly --until 2026-12-01T00:00Z --why "year end"
      holdfast schedules preview "0 3 * * *" --timezone Europe/Rome
    """


@schedules.command("list")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="Show at most this many.")
@click.option("--after", help="Show the schedules after the page that printed this cursor.")
@of_place
def list_schedules(limit: int, after: str | None, place: ChosenPlace, as_json: bool) -> None:
    """List the schedules by name, each with its rule and its next time.

    \b
    Examples:
      holdfast schedules list --database jobs.db
      holdfast schedules list --tenant acme --json
    """
    from holdfast.wire.schedule_json import schedule_object

    with place.opened() as face:
        found = face.schedules.list(limit=limit, cursor=after)
    show([schedule_object(each) for each in found], schedule_line, as_json, "there are no schedules")
    if found.next_cursor is not None:
        click.echo(f"there are more: add --after {found.next_cursor}", err=True)


@schedules.command("show")
@click.argument("name")
@click.option("--ticks", type=click.IntRange(0, 500), default=5, show_default=True, help="Show this many last ticks.")
@of_place
def show_schedule(name: str, ticks: int, place: ChosenPlace, as_json: bool) -> None:
    """Show a schedule: its call, its rule in words, the next five times and the last ticks.

    NAME is the name of the schedule: see `holdfast schedules list`.

    \b
    Examples:
      holdfast schedules show nightly
      holdfast schedules show nightly --ticks 50 --json
    """
    from holdfast.wire.schedule_json import schedule_object, tick_object

    with place.opened() as face:
        found = face.schedules.get(name)
        last = list(face.schedules.ticks(name, limit=ticks)) if ticks else []
    whole = schedule_object(found) | {"ticks": [tick_object(each) for each in last]}
    click.echo(json.dumps(whole) if as_json else "\n".join(schedule_lines(whole)))


@schedules.command()
@click.argument("name")
@click.option("--until", callback=lambda _, __, text: read_time(text), help="Resume by itself at this time.")
@in_my_name
@of_place
def pause(
    name: str,
    until: datetime | None,
    by: str | None,
    why: str | None,
    place: ChosenPlace,
    as_json: bool,
) -> None:
    """Pause a schedule. Ticks that would have come meanwhile are left out.

    NAME is the name of the schedule: see `holdfast schedules list`. --until takes a time with its zone, e.g.
    2026-12-01T00:00Z or 2026-12-01T08:30+01:00.

    \b
    Examples:
      holdfast schedules pause nightly --why "year end"
      holdfast schedules pause nightly --until 2026-12-01T00:00Z
    """
    from holdfast.wire.schedule_json import schedule_object

    with place.opened() as face:
        found = acting(face, by, why).schedules.pause(name, until=until)
    show([schedule_object(found)], schedule_line, as_json)


@schedules.command()
@click.argument("name")
@in_my_name
@of_place
def resume(name: str, by: str | None, why: str | None, place: ChosenPlace, as_json: bool) -> None:
    """Resume a schedule. It goes on with its next time.

    NAME is the name of the schedule: see `holdfast schedules list`.

    \b
    Examples:
      holdfast schedules resume nightly
    """
    from holdfast.wire.schedule_json import schedule_object

    with place.opened() as face:
        acting(face, by, why).schedules.resume(name)
        found = face.schedules.get(name)
    show([schedule_object(found)], schedule_line, as_json)


@schedules.command()
@click.argument("name")
@in_my_name
@of_place
def run(name: str, by: str | None, why: str | None, place: ChosenPlace, as_json: bool) -> None:
    """Start the call of a schedule once, now, and print the id of the chain.

    NAME is the name of the schedule: see `holdfast schedules list`. The next tick comes as it would have. If the unique
    key of the call is held, this prints the chain that holds it.

    \b
    Examples:
      holdfast schedules run nightly --why "the night's run failed"
    """
    with place.opened() as face:
        chain = acting(face, by, why).schedules.run(name)
    told = {"chain": str(chain.id), "deduplicated": chain.deduplicated}
    click.echo(json.dumps(told) if as_json else told["chain"])


@schedules.command()
@click.argument("name")
@in_my_name
@of_place
def delete(name: str, by: str | None, why: str | None, place: ChosenPlace, as_json: bool) -> None:
    """Delete a schedule. The jobs that it started stay.

    NAME is the name of the schedule: see `holdfast schedules list`. A schedule that code declares comes back when that
    program next starts: pause it, or remove it from the code.

    \b
    Examples:
      holdfast schedules delete nightly
    """
    with place.opened() as face:
        acting(face, by, why).schedules.delete(name)
    click.echo(json.dumps({"deleted": name}) if as_json else f"deleted {name}")


@schedules.command()
@click.argument("cron", required=False)
@click.option("--every", type=int, help="Preview a rule of every so many seconds instead of CRON.")
@click.option("--timezone", help="Read CRON in this time zone, e.g. Europe/Rome.  [default: UTC]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def preview(cron: str | None, every: int | None, timezone: str | None, as_json: bool) -> None:
    """Show a rule in words, and its next five times. This looks into no database.

    CRON is a text of five fields: minute, hour, day of the month, month and day of the week.

    \b
    Examples:
      holdfast schedules preview "0 8 * * 1-5" --timezone Asia/Tokyo
      holdfast schedules preview --every 300
    """
    from datetime import timedelta

    from holdfast.runtime import wall_ms
    from holdfast.schedule_rules import make_rule, next_times
    from holdfast.times import EPOCH
    from holdfast.wire.schedule_json import preview_object

    rule = make_rule(cron, every, timezone)
    told = preview_object(rule, (EPOCH + timedelta(milliseconds=at) for at in next_times(rule, wall_ms())))
    click.echo(json.dumps(told) if as_json else "\n".join([told["words"], *told["next_times"]]))


def read_time(text: str | None) -> datetime | None:
    """Read a time with its zone, as people write it."""
    from datetime import datetime

    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise click.BadParameter(f"{text!r} is no time with a zone; write 2026-12-01T00:00Z, or 2026-12-01T08:30+01:00")
    return found


def schedule_line(each: dict[str, Any]) -> str:
    """Write a schedule for people."""
    return f"{each['name']}: {each['words']}, starts {each['task']}; {_state(each)}{_trouble(each)}"


def schedule_lines(each: dict[str, Any]) -> list[str]:
    """Write all of a schedule for people."""
    left = f", {each['left_out']} late ticks left out" if each["left_out"] else ""
    return [
        schedule_line(each),
        f"call: {each['task']} {json.dumps(each['arguments'])} {json.dumps(each['options'])}",
        f"missed: {each['missed']}, jitter: {each['jitter']:g} s{left}",
        "next times:",
        *(f"  {at}" for at in each["next_times"]),
        "last ticks:" if each["ticks"] else "no ticks yet",
        *(f"  {tick['at']} {tick['outcome']} {tick['chain']}" for tick in each["ticks"]),
    ]


def _state(each: dict[str, Any]) -> str:
    if each["paused_at"] is None:
        late = ", and no worker has taken that up" if each["is_late"] else ""
        return f"next at {each['next_at']}{late}" if each["next_at"] else "never again"
    until = f" until {each['paused_until']}" if each["paused_until"] else ""
    return f"paused{until}{': ' + each['reason'] if each['reason'] else ''}"


def _trouble(each: dict[str, Any]) -> str:
    return f"; in trouble: {each['trouble']}" if each["trouble"] else ""
