"""The secrets that sign webhooks, as people write them: `whsec_` and the base64 of a key."""

from __future__ import annotations

import base64

from holdfast.errors import InvalidSignature

SECRET_PREFIX = "whsec_"  # noqa: S105 - it marks one
LEAST_SECRET_BYTES, MOST_SECRET_BYTES = 24, 64


def secret_key(secret: str) -> bytes:
    """Read the key out of *secret*, which signs webhooks, or raise `InvalidSignature`, which does not repeat it.

    A plain text is refused: what another system has as one is written `whsec_` and its base64, and signs as before.
    """
    text = secret.removeprefix(SECRET_PREFIX)
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True) if text != secret else b""
    except ValueError:
        key = b""
    if not LEAST_SECRET_BYTES <= len(key) <= MOST_SECRET_BYTES:
        raise InvalidSignature("secret")
    return key
