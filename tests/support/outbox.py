"""Webhook deliveries as a worker makes them, for tests without one."""

from __future__ import annotations

from holdfast import Holdfast
from holdfast.store import outbox


def empty_outbox(hf: Holdfast) -> None:
    """Make deliveries of all events that wait in the outbox."""
    while (batch := hf.store.read_sync(outbox.oldest)).rows:
        assert hf.store.run_sync(outbox.deliver, outbox.pack(batch).parcels).taken
