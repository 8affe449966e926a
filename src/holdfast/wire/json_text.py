"""JSON as it goes out, whatever the tables hold."""

from __future__ import annotations

import json

from pydantic_core import PydanticSerializationError, to_json


def json_bytes(value: object) -> bytes:
    """Write JSON in UTF-8; a lone surrogate, which UTF-8 has no form for, is escaped."""
    try:
        return to_json(value, inf_nan_mode="null")
    except PydanticSerializationError:
        return json.dumps(value, ensure_ascii=True, default=str, separators=(",", ":")).encode()
