"""A fact: what an event says, before it is written down by `events`, and told to who wants a webhook by `webhooks`."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.models import EventName
from holdfast.states import Status


class NewEvent(NamedTuple):
    """One event to be appended, as the list of APPEND has it; *facts* is canonical JSON or None."""

    job: int
    name: EventName
    status: Status | None = None
    version: int | None = None
    attempt: int | None = None
    facts: str | None = None
