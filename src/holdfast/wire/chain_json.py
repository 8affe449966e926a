"""How chains are written for those outside."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from holdfast.models import StoredChain
from holdfast.wire.objects import Instant, Json, MaybeInstant, Text, writer_of
from holdfast.wire.redaction import Redaction


class ChainObject(BaseModel):
    """A job and all that continues it; status and output are those of its last job."""

    id: Text
    task: str
    last_task: str
    status: Text
    is_open: bool
    created_at: Instant
    closed_at: MaybeInstant
    output: Json


_write = writer_of(ChainObject)


def chain_object(chain: StoredChain[Any], redaction: Redaction) -> dict[str, Any]:
    """Write *chain*, whose output is a JSON text, as *redaction* shows the jobs of its last task."""
    written = _write(chain)
    written["output"] = redaction.value(written["output"])
    return written
