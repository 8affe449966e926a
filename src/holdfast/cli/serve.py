"""`holdfast serve`: the HTTP API, by uvicorn."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.database import DATABASE_HELP, SCHEMA_NAME_HELP

if TYPE_CHECKING:
    import socket

    import uvicorn

    from holdfast.app import Holdfast
    from holdfast.http.app import Api
    from holdfast.http.identity import ProxyUsers

DRAIN_SECONDS = 10
PORT = 8321


@click.command()
@click.argument("app", required=False)
@click.option("--database", help=DATABASE_HELP)
@click.option("--schema-name", help=SCHEMA_NAME_HELP)
@click.option("--tenants", is_flag=True, help="Serve the tenants of the database, too; APP says it by itself.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Listen on this address.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="Listen on this port.")
@click.option(
    "--allow-host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Serve requests for this host name, e.g. jobs.example.com; localhost and 127.0.0.1 are always served. "
    "Repeatable.",
)
@click.option(
    "--origin",
    "origins",
    multiple=True,
    help="Let pages of this origin use the API, e.g. https://app.example.com. Repeatable.",
)
@click.option(
    "--proxies",
    multiple=True,
    metavar="NETWORK",
    help="Believe the X-Forwarded headers of this address or network. Repeatable.",
)
@click.option("--proxy-user", metavar="HEADER", help="Take the user from this header of those proxies, as a viewer.")
@click.option("--proxy-operators", metavar="NAMES", help="Make these users operators: names with commas.")
@click.option("--certificate", type=click.Path(exists=True, dir_okay=False), help="Serve HTTPS with this certificate.")
@click.option("--key", type=click.Path(exists=True, dir_okay=False), help="Use this key of the certificate.")
@click.option("--redact", multiple=True, metavar="KEY", help="Also hide the values of this key. Repeatable.")
@click.option(
    "--webhook-host",
    "webhook_hosts",
    multiple=True,
    metavar="NAME",
    help="Let operators start jobs with a webhook to this host. Repeatable.",
)
@click.option("--metrics-on-loopback", is_flag=True, help="Serve /metrics on this machine without a token.")
def serve(
    app: str | None,
    database: str | None,
    schema_name: str | None,
    tenants: bool,
    host: str,
    port: int,
    proxy_user: str | None,
    proxy_operators: str | None,
    certificate: str | None,
    key: str | None,
    metrics_on_loopback: bool,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    proxies: tuple[str, ...],
    redact: tuple[str, ...],
    webhook_hosts: tuple[str, ...],
) -> None:
    """Serve the HTTP API. APP is the import path of your Holdfast object, e.g. `shop.jobs:hf`.

    Without APP the command uses --database, or the environment variable HOLDFAST_DATABASE. It then starts the tasks
    that your programs have recorded there, and checks arguments by their schemas. The server runs no jobs: start
    workers for that.

    Every request needs a token: make one with `holdfast token create`. If the database has no token, the command makes
    one that works until it stops, and prints it on stdout. It does so only on an address of this machine, such as
    127.0.0.1. All other output goes to stderr and contains no token.

    SIGTERM or Ctrl-C stops the server. Open streams end at once, and their clients connect again. Running requests have
    10 seconds to finish.

    Exit codes: 0 it was stopped; 2 wrong usage, or nobody could log in; 5 the database could not be reached, or has no
    tables.

    \b
    Examples:
      holdfast serve --database jobs.db
      holdfast serve shop.jobs:hf --host 0.0.0.0 --allow-host jobs.example.com --proxies 10.0.0.0/8
    """
    hf = _chosen(app, database, schema_name, tenants)
    users = _proxy_users(proxy_user, proxy_operators, proxies)
    if (certificate is None) != (key is None):
        raise click.UsageError("--certificate and --key go together; give both")
    tokens = _tokens(hf, host, users is not None)
    from holdfast.http.app import asgi

    served = asgi(
        hf,
        hosts=hosts,
        origins=origins,
        proxies=proxies,
        proxy_users=users,
        redact=redact,
        webhook_hosts=webhook_hosts,
        metrics_on_loopback=metrics_on_loopback,
        tokens=tokens,
    )
    scheme = "http" if certificate is None else "https"
    _warn_of_plain_http(host, certificate, proxies)
    _warn_of_no_names(host, hosts)
    _run(served, host, port, scheme, tokens, certificate, key)


def _chosen(app: str | None, database: str | None, schema_name: str | None, tenants: bool) -> Holdfast:
    from holdfast.app import Holdfast
    from holdfast.cli.database import announce, chosen, require_file
    from holdfast.cli.worker import load

    if app is not None and (database is not None or schema_name is not None or tenants):
        raise click.UsageError("APP has its own database; leave out --database, --schema-name and --tenants")
    if app is not None and ("://" in app or (Path(app).is_file() and not app.endswith(".py"))):
        raise click.UsageError(
            "APP is an import path, e.g. shop.jobs:hf, and this is a database; give it as --database"
        )
    if app is not None:
        hf = load(app, "serve")
    else:
        hf = Holdfast(settings=chosen(database, schema_name, also=", or give APP", tenants=tenants))
    announce(hf)
    require_file(hf.settings)
    return hf


def _proxy_users(header: str | None, operators: str | None, proxies: Iterable[str]) -> ProxyUsers | None:
    from holdfast.http.identity import ProxyUsers

    if header is None:
        if operators is not None:
            raise click.UsageError("--proxy-operators needs --proxy-user, the header with their names")
        return None
    if not proxies:
        raise click.UsageError("--proxy-user needs --proxies: from anybody else the header is not believed")
    names = [each.strip() for each in (operators or "").split(",")]
    return ProxyUsers(header, frozenset(filter(None, names)))


def _tokens(hf: Holdfast, host: str, has_users: bool) -> list[str]:
    """Make a token for this run if nobody could log in and nobody but this machine can ask; else refuse to start."""
    from holdfast.access import TOKEN_BITS, make_token
    from holdfast.errors import Misuse
    from holdfast.http.origins import is_loopback
    from holdfast.store import access

    try:
        has_token = hf.store.read_sync(access.has_token)  # also where there are users: now it can be said what is wrong
    finally:
        hf.sync.close()
    if has_users or has_token:
        return []
    if not is_loopback(host):
        raise Misuse(
            f"nobody could log in, and {host} can be reached from other machines: make a token with `holdfast token "
            "create NAME --role operator`, or name a proxy with --proxies and --proxy-user"
        )
    return [make_token(hf._runtime.chance.getrandbits(TOKEN_BITS))]


def _run(
    served: Api, host: str, port: int, scheme: str, tokens: Sequence[str], certificate: str | None, key: str | None
) -> None:
    import signal
    import sys

    import uvicorn

    config = uvicorn.Config(
        served,
        host=host,
        port=port,
        ssl_certfile=certificate,
        ssl_keyfile=key,
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # they are believed by our own rules
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )
    _load(config)
    listening = _listen(host, port, config.backlog)
    server = uvicorn.Server(config)
    for each in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # the server takes them itself, and raises them again when it has stopped
        signal.signal(each, lambda *_: setattr(server, "should_exit", True))
    _announce(f"{scheme}://{_shown_host(host)}:{listening.getsockname()[1]}", tokens)
    with listening:
        server.run(sockets=[listening])
    if not server.started:
        sys.exit(5)


def _load(config: uvicorn.Config) -> None:
    from holdfast.errors import Misuse

    try:
        config.load()
    except OSError as error:  # those of TLS are of this kind
        raise Misuse(
            f"the certificate or its key cannot be used: {error.strerror or error}; give both as PEM files that belong "
            "together"
        ) from None


def _listen(host: str, port: int, backlog: int) -> socket.socket:
    import socket

    from holdfast.errors import Misuse

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=backlog)
    except OSError as error:
        raise Misuse(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another with --host or --port"
        ) from None
    # asyncio does so for its own sockets alone, and a body behind its head would wait 40 ms for the client's word
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _announce(address: str, tokens: Sequence[str]) -> None:
    """Say where it is served; a token goes to stdout alone, as that of `holdfast token create` does."""
    click.echo(f"serving {address}/api; Ctrl-C stops", err=True)
    for token in tokens:
        click.echo("there is no token yet; this one is an admin's, for as long as this server runs:", err=True)
        click.echo(token)
        click.echo(f'try: curl -H "Authorization: Bearer …" {address}/api', err=True)


def _warn_of_plain_http(host: str, certificate: str | None, proxies: Sequence[str]) -> None:
    from holdfast.http.origins import is_loopback

    if certificate is None and not proxies and not is_loopback(host):
        click.echo(
            f"warning: {host} can be reached from other machines, and tokens go there unencrypted; give --certificate "
            "and --key, or put it behind a proxy that speaks HTTPS and is named with --proxies",
            err=True,
        )


def _warn_of_no_names(host: str, hosts: Sequence[str]) -> None:
    from holdfast.http.origins import is_loopback

    if not hosts and not is_loopback(host):
        click.echo(
            "warning: no --allow-host is given, so requests from other machines are refused with 421; name the host "
            "that they ask for",
            err=True,
        )


def _shown_host(host: str) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - it is only named
    return shown.get(host, f"[{host}]" if ":" in host else host)
