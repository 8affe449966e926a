"""`holdfast link`: makes, lists and revokes links by which outsiders look at one chain."""

from __future__ import annotations

import json
from typing import Any

import click

from holdfast.cli.database import ChosenPlace, of_place
from holdfast.cli.person import acting, in_my_name
from holdfast.cli.token import state, tell_more, without_payloads
from holdfast.cli.webhooks import show


class LinkCommands(click.Group):
    """The commands; an id alone is a chain that a link is made to."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that *args* begin with."""
        is_id = len(args[0]) in (32, 36) and args[0] not in self.commands
        return super().resolve_command(ctx, ["create", *args] if is_id else args)


@click.group(cls=LinkCommands)
def link() -> None:
    """Manage links for outsiders: each shows one chain, live, and nothing else.

    You may leave out the command `create` before the id of a chain. Choose the database with --database, or with the
    environment variable HOLDFAST_DATABASE; and if it has tenants, one of them with --tenant.

    \b
    Examples:
      holdfast link create 01980f00-6e1c-7000-8000-5a1c2f9e0b77 --base-url https://jobs.example.com
      holdfast link list --database jobs.db
    """


@link.command()
@click.argument("chain")
@click.option("--hours", type=float, default=24, show_default=True, help="Let it expire after so many hours.")
@click.option("--payloads", is_flag=True, help="Show inputs, outputs and errors, too.")
@click.option(
    "--base-url",
    metavar="URL",
    callback=lambda _, __, text: _check_url(text),
    help="Print the whole link; your progress page is at URL/shared.",
)
@in_my_name
@of_place
def create(
    chain: str,
    hours: float,
    payloads: bool,
    base_url: str | None,
    by: str | None,
    why: str | None,
    place: ChosenPlace,
    as_json: bool,
) -> None:
    """Make a link to a chain and print it. You see it only now: the database stores only its hash.

    CHAIN is the id of the chain. Whoever has the link sees the progress of its jobs until it expires or is revoked.

    \b
    Examples:
      holdfast link create 01980f00-6e1c-7000-8000-5a1c2f9e0b77 --base-url https://jobs.example.com
      holdfast link create 01980f00-6e1c-7000-8000-5a1c2f9e0b77 --hours 72 --payloads
    """
    from holdfast.wire.access_json import link_object

    with place.opened() as face:
        made = acting(face, by, why).links.create(chain, hours=hours, payloads=payloads)
    told, url = link_object(made.link), made.url(base_url or "")
    click.echo(json.dumps({"url": url, "token": made.token, **told}) if as_json else url)
    advice = "" if base_url else "put the address of your server in front of it; "
    click.echo(f"{link_line(told)}; {advice}keep the link now, it is not shown again", err=True)


@link.command("list")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="Show at most this many.")
@click.option("--after", help="Show the links after the page that printed this cursor.")
@of_place
def list_links(limit: int, after: str | None, place: ChosenPlace, as_json: bool) -> None:
    """List the links, newest first. Expired and revoked ones stay in the list for 30 days.

    \b
    Examples:
      holdfast link list --database jobs.db
      holdfast link list --tenant acme --json
    """
    from holdfast.wire.access_json import link_object

    with place.opened() as face:
        found = face.links.list(limit=limit, cursor=after)
    show([link_object(each) for each in found], link_line, as_json, "there are no links")
    tell_more(found.next_cursor)


@link.command()
@click.argument("link_id", metavar="LINK")
@in_my_name
@of_place
def revoke(link_id: str, by: str | None, why: str | None, place: ChosenPlace, as_json: bool) -> None:
    """Revoke a link. LINK is its id: see `holdfast link list`.

    \b
    Examples:
      holdfast link revoke 01980f00-6e1c-7000-8000-5a1c2f9e0b77
      holdfast link revoke 01980f00-6e1c-7000-8000-5a1c2f9e0b77 --why "sent to the wrong customer"
    """
    from holdfast.wire.access_json import link_object

    with place.opened() as face:
        found = acting(face, by, why).links.revoke(link_id)
    show([link_object(found)], link_line, as_json)


def link_line(each: dict[str, Any]) -> str:
    """Write a link for people."""
    tenant = f" of tenant {each['tenant']}" if each["tenant"] else ""
    return f"{each['id']} shows chain {each['chain']}{tenant}{without_payloads(each)}; {state(each)}"


def _check_url(text: str | None) -> str | None:
    if text is not None and not text.startswith(("https://", "http://")):
        raise click.BadParameter(f"{text!r} is no address; write https://jobs.example.com")
    return text
