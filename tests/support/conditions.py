"""Waiting without sleeping blindly: for a condition, up to a deadline, and then saying what did not happen."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

GLANCE_SECONDS = 0.005


async def until(condition: Callable[[], bool | Awaitable[bool]], what: str, timeout: float = 30) -> None:
    """Wait until *condition* holds; fail after *timeout* seconds, naming *what* did not happen."""
    deadline = time.monotonic() + timeout
    while True:
        holds = condition()
        if await holds if inspect.isawaitable(holds) else holds:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {timeout:g} s: {what}")
        await asyncio.sleep(GLANCE_SECONDS)
