"""A receiver of webhooks for trying things out: it checks signatures, prints what comes, and answers as chosen."""

from __future__ import annotations

import json
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import click

from holdfast.errors import InvalidSignature
from holdfast.signing_keys import secret_key
from holdfast.webhooks.signing import ID, verify_webhook

HOST = "127.0.0.1"
MOST_BYTES = 10_000_000
SILENT_SECONDS = 10.0


class WebhookReceiver:
    """Listens on *port* of this machine only; *status* is what it answers to whatever is signed by one of *secrets*."""

    def __init__(self, port: int, secrets: Sequence[str], status: int, retry_after: int | None, as_json: bool) -> None:
        for each in secrets:
            secret_key(each)
        self._secrets = list(secrets)
        self._status = status
        self._retry_after = retry_after
        self._as_json = as_json
        self._count: int | None = None
        self._server = self._serve(port)

    def run(self, count: int | None = None) -> None:
        """Serve until interrupted, or *count* requests have come."""
        with self._server as server:
            click.echo(f"listening on http://{HOST}:{server.server_port}/ (Ctrl-C ends it)", err=True)
            self._count = count
            try:
                while self._count is None or self._count > 0:
                    server.handle_request()
            except KeyboardInterrupt:
                click.echo("", err=True)

    def _serve(self, port: int) -> HTTPServer:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            timeout = SILENT_SECONDS

            def do_POST(self) -> None:
                length = self.headers.get("content-length", "")
                if not length.isascii() or not length.isdigit() or int(length) > MOST_BYTES:
                    self.send_error(411 if not length else 413)
                    return
                body = self.rfile.read(int(length))
                status = receiver.handle(body, list(self.headers.items()))
                self.send_response(status)
                if receiver.retry_after_for(status):
                    self.send_header("Retry-After", str(receiver.retry_after_for(status)))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Leave the printing to us."""

        try:
            return HTTPServer((HOST, port), Handler)
        except OSError as error:
            raise click.ClickException(
                f"cannot listen on port {port}: {error.strerror}; choose another port with --port"
            ) from None

    def retry_after_for(self, status: int) -> int | None:
        """Say what `Retry-After` an answer of *status* has."""
        return self._retry_after if status == self._status else None

    def handle(self, body: bytes, headers: list[tuple[str, str]]) -> int:
        """Check and print a request; give the status to answer."""
        if self._count is not None:
            self._count -= 1
        signature = self._check(body, headers)
        status = self._status if signature in ("fits", "not checked") else 400
        self._print(body, {name.lower(): value for name, value in headers}.get(ID, ""), signature, status)
        return status

    def _check(self, body: bytes, headers: list[tuple[str, str]]) -> str:
        if not self._secrets:
            return "not checked"
        try:
            verify_webhook(body, headers, self._secrets)
        except InvalidSignature as error:
            return error.problem
        return "fits"

    def _print(self, body: bytes, webhook_id: str, signature: str, status: int) -> None:
        try:
            parsed = json.loads(body)
        except ValueError:
            parsed = None
        if self._as_json:
            facts = {"webhook_id": webhook_id, "signature": signature, "answer": status, "body": parsed}
            click.echo(json.dumps(facts))
            return
        job = _nested(parsed, "data", "job")
        facts = {"event": _nested(parsed, "type"), "task": _nested(job, "task"), "job": _nested(job, "id")}
        shown = [_printable(str(value)) for value in facts.values() if value]
        click.echo(
            " ".join([*shown, f"webhook-id={_printable(webhook_id)}", f"signature={signature!r}", f"answer={status}"])
        )


def _nested(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _printable(text: str) -> str:
    """Keep a sender from steering the terminal."""
    return "".join(each if each.isprintable() else "?" for each in text[:200])
