"""How other things than jobs are written for those outside: one model describes the JSON of each, and makes its writer.

class LaneObject(BaseModel):
    key: str
    head: MaybeText
    paused_at: MaybeInstant

lane_object = writer_of(LaneObject)      # lane_object(info) -> dict
"""

from __future__ import annotations

from holdfast.wire.job_json import Instant, Json, MaybeInstant, MaybeText, Text, Written
from holdfast.wire.job_json import _writer as writer_of

__all__ = ["Instant", "Json", "MaybeInstant", "MaybeText", "Text", "Written", "writer_of"]
