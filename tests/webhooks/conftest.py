"""What tests of deliveries share: both databases, settings that let webhooks go to this machine, and a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast import Holdfast, Tasks
from tests.webhooks.post_office import SECRET, PostOffice

DATABASES = ("sqlite", "postgres")
TO_THIS_MACHINE = {"webhook_http": True, "webhook_ports": None, "webhook_private_addresses": True}


@pytest.fixture(params=DATABASES)
async def office(
    request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]
) -> AsyncIterator[Callable[..., Any]]:
    """Open a face whose webhooks may go to this machine: `await office(webhook_attempts=3)`."""
    opened: list[Holdfast] = []

    async def open_office(*, has_tasks: bool = True, **options: Any) -> PostOffice:
        usual = {"webhook_secrets": {"default": SECRET}, "webhook_retry_seconds": 0.05}
        hf = new_holdfast(request.param, **{**TO_THIS_MACHINE, **usual, **options})
        opened.append(await hf.open())
        return PostOffice(hf, Tasks() if not has_tasks else hf.tasks)

    yield open_office
    for hf in opened:
        await hf.close()
