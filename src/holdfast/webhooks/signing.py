"""Signs webhooks and checks their signatures, as Standard Webhooks 1.0 says; needs nothing but Python.

A message is signed by `v1,<base64 of HMAC-SHA256 over id.timestamp.body>`, once for each secret: while a secret is
rotated there are two, and a receiver that knows either accepts it. The id is the same in every try of a delivery, the
timestamp is of this try, so a receiver refuses what is old and passes over what it has had.

`X-JobQueue-Signature: sha256=<hex of HMAC-SHA256 over the body>` is for receivers that were written for jobqueue. It
covers no timestamp, so whoever has seen a message can send it again: check `webhook-signature` where you can.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import re
import secrets as system
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from holdfast.errors import InvalidSignature, Misuse, got
from holdfast.runtime import wall_ms
from holdfast.signing_keys import SECRET_PREFIX, secret_key

SECRET_BYTES = 32
VERSION = "v1"
TOLERANCE_SECONDS = 300.0
ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
COMPATIBLE = "X-JobQueue-Signature"
WHOLE_NUMBER = re.compile(r"[0-9]{1,12}", re.ASCII)

Headers: TypeAlias = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]
"""The headers of a request: a mapping of texts, anything else that has `items()`, or the pairs that ASGI has."""


def new_secret() -> str:
    """Make a secret, from what the system has of chance: `whsec_` and the base64 of 32 bytes.

    >>> new_secret()[:6], len(secret_key(new_secret()))
    ('whsec_', 32)
    """
    return SECRET_PREFIX + base64.b64encode(system.token_bytes(SECRET_BYTES)).decode()


def sign(
    body: bytes, *, webhook_id: str, timestamp: int, secrets: Sequence[str], compatible: bool = True
) -> dict[str, str]:
    """Make the headers of one try: id, timestamp in seconds since 1970, and a signature by each of *secrets*.

    The compatible header, which has room for one, is signed by the first of them. Without secrets nothing is signed.

    >>> sign(b"{}", webhook_id="1", timestamp=1700000000, secrets=["whsec_" + "A" * 32])["webhook-signature"]
    'v1,neNlYbGUsqCM/w6JS1OLTFjfQI/riNdyRFvNoaYDQnA='
    """
    keys = [secret_key(each) for each in secrets]
    headers = {ID: webhook_id, TIMESTAMP: str(timestamp)}
    if keys:
        content = _content(webhook_id, str(timestamp), body)
        headers[SIGNATURE] = " ".join(f"{VERSION},{base64.b64encode(_digest(key, content)).decode()}" for key in keys)
    if keys and compatible:
        headers[COMPATIBLE] = f"sha256={_digest(keys[0], body).hex()}"
    return headers


def verify_webhook(
    body: bytes | str,
    headers: Headers,
    secrets: str | Sequence[str],
    *,
    tolerance: float = TOLERANCE_SECONDS,
    now: float | None = None,
) -> Any:
    """Check that *body* was signed by one of *secrets* not long ago; give what it says, as JSON has it.

    *body* is what came over the wire, not what a framework made of it. *tolerance* is in seconds, either way; *now*,
    in seconds since 1970, is the time here unless you give it. Raises `InvalidSignature`, whose *problem* tells what is
    wrong. Use the header `webhook-id` to pass over what you have had before: it is the same in every try.
    """
    keys = [secret_key(each) for each in ((secrets,) if isinstance(secrets, str) else secrets)]
    if not keys:
        raise InvalidSignature("secret")
    raw = body.encode() if isinstance(body, str) else bytes(body)
    found = _read(headers)
    webhook_id, timestamp, signatures = (_header(found, name) for name in (ID, TIMESTAMP, SIGNATURE))
    if not WHOLE_NUMBER.fullmatch(timestamp):
        raise InvalidSignature("timestamp", TIMESTAMP)
    if not _is_signed(keys, _content(webhook_id, timestamp, raw), signatures):
        raise InvalidSignature("signature", SIGNATURE)
    age = (wall_ms() / 1000 if now is None else now) - int(timestamp)
    if not math.fabs(age) <= tolerance:
        raise InvalidSignature("too old" if age > 0 else "too new", TIMESTAMP)
    try:
        return json.loads(raw)
    except ValueError:
        raise InvalidSignature("body") from None


def _read(headers: Headers) -> dict[str, str]:
    # a request's headers need not be a `Mapping`: those of `http.server` are a message, which has `items` as well
    pairs: Iterable[tuple[Any, Any]] = headers.items() if hasattr(headers, "items") else headers
    try:
        return {_text(name).lower(): _text(value) for name, value in pairs}
    except (TypeError, ValueError):
        raise Misuse(f"headers must be a mapping, or pairs of a name and a value, but {got(headers)}") from None


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _header(headers: Mapping[str, str], name: str) -> str:
    if not (value := headers.get(name, "")):
        raise InvalidSignature("missing", name)
    return value


def _content(webhook_id: str, timestamp: str, body: bytes) -> bytes:
    return b".".join((webhook_id.encode(), timestamp.encode(), body))


def _digest(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()


def _is_signed(keys: Sequence[bytes], content: bytes, signatures: str) -> bool:
    """Compare every signature with every key, in a time that does not tell which of them fits, or how far."""
    wanted = [f"{VERSION},{base64.b64encode(_digest(key, content)).decode()}".encode() for key in keys]
    given = [each.encode(errors="replace") for each in signatures.split(" ")]
    return sum(hmac.compare_digest(one, other) for one in wanted for other in given) > 0
