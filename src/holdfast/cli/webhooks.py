"""`holdfast webhooks`: who is told of events and what came of it, secrets, and a receiver to try it all with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.database import ChosenPlace, of_place
from holdfast.cli.person import acting, in_my_name

if TYPE_CHECKING:
    from collections.abc import Callable


@click.group()
def webhooks() -> None:
    """Manage webhook subscriptions and deliveries.

    Choose the database with --database, or with the environment variable HOLDFAST_DATABASE; and if it has tenants, one
    of them with --tenant.

    \b
    Examples:
      holdfast webhooks add https://example.com/hooks --event job:failed --secret shop
      holdfast webhooks deliveries --job 01980f00-6e1c-7000-8000-5a1c2f9e0b77
      holdfast webhooks listen --secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
    """


@webhooks.command("list")
@of_place
def list_subscriptions(place: ChosenPlace, as_json: bool) -> None:
    """List the subscriptions, oldest first.

    \b
    Examples:
      holdfast webhooks list --database jobs.db
    """
    from holdfast.wire.webhook_json import subscription_object

    with place.opened() as face:
        found = face.webhooks.list()
    show([subscription_object(each) for each in found], subscription_line, as_json, "there are no subscriptions")


@webhooks.command()
@click.argument("url")
@click.option("--event", "events", multiple=True, help="Send this event, e.g. job:failed; repeat the option for more.")
@click.option("--task", "tasks", multiple=True, help="Send only events of this task; repeat the option for more.")
@click.option(
    "--secret",
    "secrets",
    multiple=True,
    help="Sign with the secret of this name in webhook_secrets; repeat the option for more.",
)
@click.option("--name", help="Name the subscription. If the name exists, change that subscription instead.")
@in_my_name
@of_place
def add(
    url: str,
    events: tuple[Any, ...],
    tasks: tuple[str, ...],
    secrets: tuple[str, ...],
    name: str | None,
    by: str | None,
    why: str | None,
    place: ChosenPlace,
    as_json: bool,
) -> None:
    """Subscribe URL to events and print the subscription id.

    URL is the address of your receiver. It gets the events that happen from now on. Without --event these are
    job:completed, job:failed, job:retrying, job:cancelled and job:stale; without --task, of the jobs of all tasks.
    Without --name each call adds another subscription, even if URL has one already.

    \b
    Examples:
      holdfast webhooks add https://example.com/hooks --name billing
      holdfast webhooks add https://example.com/hooks --event job:failed --task orders.charge --secret shop
    """
    from holdfast.wire.webhook_json import subscription_object

    wanted: dict[str, Any] = {"events": events} if events else {}
    with place.opened() as face:
        made = acting(face, by, why).webhooks.subscribe(url, **wanted, tasks=tasks or None, secrets=secrets, name=name)
    click.echo(json.dumps(subscription_object(made)) if as_json else str(made.id))


@webhooks.command()
@click.argument("subscription")
@in_my_name
@of_place
def remove(subscription: str, by: str | None, why: str | None, place: ChosenPlace, as_json: bool) -> None:
    """Delete a subscription. SUBSCRIPTION is its id or name: see `holdfast webhooks list`.

    Workers still send the deliveries that exist.

    \b
    Examples:
      holdfast webhooks remove 01980f00-6e1c-7000-8000-5a1c2f9e0b77
    """
    with place.opened() as face:
        acting(face, by, why).webhooks.remove(subscription)
    click.echo(json.dumps({"removed": subscription}) if as_json else f"removed {subscription}")


@webhooks.command()
@click.argument("subscription")
@in_my_name
@of_place
def enable(subscription: str, by: str | None, why: str | None, place: ChosenPlace, as_json: bool) -> None:
    """Enable a subscription again. SUBSCRIPTION is its id or name: see `holdfast webhooks list`.

    It gets the events that happen from now on. Holdfast disables a subscription when its URL answers 410 Gone.

    \b
    Examples:
      holdfast webhooks enable 01980f00-6e1c-7000-8000-5a1c2f9e0b77
    """
    from holdfast.wire.webhook_json import subscription_object

    with place.opened() as face:
        found = acting(face, by, why).webhooks.enable(subscription)
    show([subscription_object(found)], subscription_line, as_json)


@webhooks.command()
@click.argument("subscription")
@in_my_name
@of_place
def disable(subscription: str, by: str | None, why: str | None, place: ChosenPlace, as_json: bool) -> None:
    """Disable a subscription until you enable it again. SUBSCRIPTION is its id or name: see `holdfast webhooks list`.

    It gets no new events. Workers still send the deliveries that exist.

    \b
    Examples:
      holdfast webhooks disable 01980f00-6e1c-7000-8000-5a1c2f9e0b77 --why "moving house"
    """
    from holdfast.wire.webhook_json import subscription_object

    with place.opened() as face:
        found = acting(face, by, why).webhooks.disable(subscription, why=why)
    show([subscription_object(found)], subscription_line, as_json)


@webhooks.command()
@click.option("--job", help="Show only deliveries about the job with this id.")
@click.option("--subscription", help="Show only deliveries to the subscription with this id or name.")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="Show at most this many.")
@of_place
def deliveries(
    job: str | None,
    subscription: str | None,
    limit: int,
    place: ChosenPlace,
    as_json: bool,
) -> None:
    """List deliveries, newest first, with the result of each.

    \b
    Examples:
      holdfast webhooks deliveries --database jobs.db
      holdfast webhooks deliveries --job 01980f00-6e1c-7000-8000-5a1c2f9e0b77 --json
    """
    from holdfast.wire.webhook_json import delivery_object

    with place.opened() as face:
        found = face.webhooks.deliveries(job=job, subscription=subscription, limit=limit)
    show([delivery_object(each) for each in found], delivery_line, as_json, "there are no deliveries")


@webhooks.command()
@click.argument("delivery")
@in_my_name
@of_place
def redeliver(delivery: str, by: str | None, why: str | None, place: ChosenPlace, as_json: bool) -> None:
    """Send a finished delivery again. DELIVERY is the id that `holdfast webhooks deliveries` prints.

    The receiver gets the same body with the same webhook-id.

    \b
    Examples:
      holdfast webhooks redeliver 01980f00-6e1c-7000-8000-5a1c2f9e0b77
    """
    from holdfast.wire.webhook_json import delivery_object

    with place.opened() as face:
        made = acting(face, by, why).webhooks.redeliver(delivery)
    show([delivery_object(made)], delivery_line, as_json)


@webhooks.command()
def secret() -> None:
    """Print a new signing secret. Holdfast does not store it.

    Put it into the setting webhook_secrets of your workers, and give it to the receiver.

    \b
    Examples:
      holdfast webhooks secret
    """
    from holdfast.webhooks.signing import new_secret

    click.echo(new_secret())


@webhooks.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=8800,
    show_default=True,
    help="Listen on this port; 0 picks a free one.",
)
@click.option("--secret", "secrets", multiple=True, help="Check signatures with this secret; repeat it for more.")
@click.option(
    "--answer", type=click.IntRange(200, 599), default=200, show_default=True, help="Answer with this HTTP status."
)
@click.option("--retry-after", type=click.IntRange(0), help="Answer with the header Retry-After and this many seconds.")
@click.option("--count", type=click.IntRange(1), help="Exit after this many requests.")
@click.option("--json", "as_json", is_flag=True, help="Print each request as one line of JSON, with its body.")
def listen(
    port: int, secrets: tuple[str, ...], answer: int, retry_after: int | None, count: int | None, as_json: bool
) -> None:
    """Receive and print webhooks on this machine, to try them out.

    The receiver listens on 127.0.0.1 only. It checks the signature of each webhook if you give --secret. Workers send
    webhooks to that address only if their settings allow it: webhook_http=True, webhook_private_addresses=True and
    webhook_ports=[8800].

    \b
    Examples:
      holdfast webhooks listen --secret whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw
      holdfast webhooks listen --answer 429 --retry-after 5
    """
    from holdfast.cli.webhook_receiver import WebhookReceiver

    receiver = WebhookReceiver(port, secrets, answer, retry_after, as_json)
    receiver.run(count)


def show(found: list[dict[str, Any]], line: Callable[[dict[str, Any]], str], as_json: bool, nothing: str = "") -> None:
    """Print what was found, as JSON or a line each."""
    if as_json:
        click.echo(json.dumps(found))
        return
    for each in found:
        click.echo(line(each))
    if not found:
        click.echo(nothing)


def subscription_line(each: dict[str, Any]) -> str:
    """Write a subscription for people."""
    called = f" {each['name']}" if each["name"] else ""
    of = f" of {', '.join(each['tasks'])}" if each["tasks"] else ""
    by = f", signed by {', '.join(each['secrets'])}" if each["secrets"] else ""
    off = f", disabled: {each['reason'] or 'by hand'}" if each["disabled_at"] else ""
    return f"{each['id']}{called} {each['url']}: {', '.join(each['events'])}{of}{by}{off}"


def delivery_line(each: dict[str, Any]) -> str:
    """Write a delivery for people."""
    came = (each["answer"] or {}).get("status") or (each["error"] or {}).get("message") or ""
    again = f", again at {each['next_at']}" if each["next_at"] and each["attempts"] else ""
    head = f"{each['id']} {each['event']} of {each['job']} to {each['url']}: {each['status']}"
    tries = f"{each['attempts']} {'try' if each['attempts'] == 1 else 'tries'}"
    return f"{head} after {tries}{f' ({came})' if came else ''}{again}"
