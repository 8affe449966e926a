"""The headers that every answer has (S-09): a browser runs, frames, sniffs and keeps nothing of an API's answer."""

from __future__ import annotations

import gzip

from starlette.datastructures import MutableHeaders
from starlette.responses import Response

COMPRESSED_FROM = 1_000
POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"

USUAL = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
}
ENCODED = [(name.lower().encode(), value.encode()) for name, value in USUAL.items()]


def add_usual(headers: MutableHeaders, request_id: str, *, is_https: bool) -> None:
    """Add what every answer has; what an answer says itself stays."""
    given = {name for name, _ in headers.raw}
    headers.raw.extend(each for each in ENCODED if each[0] not in given)
    headers["X-Request-Id"] = request_id
    if is_https:
        headers.setdefault("Strict-Transport-Security", "max-age=31536000")


def compress(response: Response, accepted: str) -> None:
    """Compress a long answer for who takes that."""
    response.headers.add_vary_header("Accept-Encoding")
    if len(response.body) > COMPRESSED_FROM and _takes_gzip(accepted):
        response.body = gzip.compress(response.body, compresslevel=5, mtime=0)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(response.body))


def _takes_gzip(accepted: str) -> bool:
    for each in accepted.split(","):
        coding, _, weight = each.partition(";")
        if coding.strip().lower() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0")
    return False
