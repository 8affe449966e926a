"""`holdfast token`: makes, lists and revokes the tokens by which programs and people use the HTTP API."""

from __future__ import annotations

import json
from typing import Any

import click

from holdfast.cli.database import of_database, opened
from holdfast.cli.person import acting, in_my_name
from holdfast.cli.webhooks import show

ROLES = ("viewer", "operator", "admin")


@click.group()
def token() -> None:
    """Manage the tokens with which programs and people use the HTTP API.

    Choose the database with --database, or with the environment variable HOLDFAST_DATABASE. If it has tenants, the
    tokens of all tenants are in the control database.

    \b
    Examples:
      holdfast token create ada --role operator --days 90
      holdfast token list --database jobs.db
      holdfast token revoke 01980f00-6e1c-7000-8000-5a1c2f9e0b77 --why "lost laptop"
    """


@token.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default="viewer",
    show_default=True,
    help="Allow to read (viewer), also to start and steer jobs (operator), or everything (admin).",
)
@click.option("--tenant", metavar="NAME", help="Make it for this tenant; '*' is all tenants.")
@click.option("--days", type=float, help="Let it expire after so many days.  [default: never]")
@click.option("--no-payloads", is_flag=True, help="Hide inputs, outputs and errors from its user.")
@in_my_name
@of_database
def create(
    name: str,
    role: str,
    tenant: str | None,
    days: float | None,
    no_payloads: bool,
    by: str | None,
    why: str | None,
    database: str | None,
    schema_name: str | None,
    as_json: bool,
) -> None:
    """Make a token and print it. You see it only now: the database stores only its hash.

    NAME is the program or person that has the token, in up to 100 characters. The audit shows it.

    \b
    Examples:
      holdfast token create ada --role operator --days 90
      holdfast token create shop --tenant acme --no-payloads > shop.token
    """
    from holdfast.wire.access_json import token_object

    expires = None if days is None else days * 86_400
    with opened(database, schema_name, tenants=tenant is not None) as face:
        tokens = acting(face, by, why).tokens
        made = tokens.create(name, role=role, tenant=tenant, payloads=not no_payloads, expires=expires)
    told = token_object(made.info)
    click.echo(json.dumps({"token": made.token, **told}) if as_json else made.token)
    click.echo(f"{token_line(told)}; keep the token now, it is not shown again", err=True)


@token.command("list")
@click.option("--tenant", metavar="NAME", help="List only those for this tenant.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="Show at most this many.")
@click.option("--after", help="Show the tokens after the page that printed this cursor.")
@of_database
def list_tokens(
    tenant: str | None, limit: int, after: str | None, database: str | None, schema_name: str | None, as_json: bool
) -> None:
    """List the tokens, newest first. Expired and revoked ones stay in the list for 30 days.

    \b
    Examples:
      holdfast token list --database jobs.db
      holdfast token list --tenant acme --json
    """
    from holdfast.wire.access_json import token_object

    with opened(database, schema_name, tenants=tenant is not None) as face:
        place = face if tenant is None else face.tenant(tenant)
        found = place.tokens.list(limit=limit, cursor=after)
    show([token_object(each) for each in found], token_line, as_json, "there are no tokens")
    tell_more(found.next_cursor)


@token.command()
@click.argument("token_id", metavar="TOKEN")
@in_my_name
@of_database
def revoke(
    token_id: str, by: str | None, why: str | None, database: str | None, schema_name: str | None, as_json: bool
) -> None:
    """Revoke a token. TOKEN is its id: see `holdfast token list`.

    Servers notice it within 5 seconds. Browsers that logged in with it are logged out.

    \b
    Examples:
      holdfast token revoke 01980f00-6e1c-7000-8000-5a1c2f9e0b77
      holdfast token revoke 01980f00-6e1c-7000-8000-5a1c2f9e0b77 --why "lost laptop"
    """
    from holdfast.wire.access_json import token_object

    with opened(database, schema_name) as face:
        found = acting(face, by, why).tokens.revoke(token_id)
    show([token_object(found)], token_line, as_json)


def token_line(each: dict[str, Any]) -> str:
    """Write a token for people."""
    tenant = {None: "", "*": " of all tenants"}.get(each["tenant"], f" of tenant {each['tenant']}")
    return f"{each['id']} {each['name']}: {each['role']}{tenant}{without_payloads(each)}; {state(each)}"


def without_payloads(each: dict[str, Any]) -> str:
    """Say whether a token or a link shows no payloads."""
    return "" if each["payloads"] else ", without payloads"


def state(each: dict[str, Any]) -> str:
    """Say until when a token or a link holds, and when it was used."""
    if each["revoked_at"]:
        return f"revoked at {each['revoked_at']}"
    until = f"until {each['expires_at']}" if each["expires_at"] else "never expires"
    return f"{until}, last used at {each['used_at']}" if each["used_at"] else f"{until}, not used yet"


def tell_more(cursor: str | None) -> None:
    """Say that a list goes on, where it does."""
    if cursor is not None:
        click.echo(f"there are more: add --after {cursor}", err=True)
