"""`/healthz` and `/readyz`: whether the process answers, and whether its database does."""

from __future__ import annotations

from typing import Any

from holdfast.http.endpoint import Inquiry, NoBody, NoQuery


async def live(ask: Inquiry[NoQuery, NoBody]) -> None:
    """Say that the process answers."""


async def ready(ask: Inquiry[NoQuery, NoBody]) -> Any:
    """Say that the database answers, and that its schema fits this release."""
    await ask.service.hf.store.open()
    await ask.service.hf.cursor()
