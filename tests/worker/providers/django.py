"""Django's `atomic()`, on both databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created

from holdfast.integrations.django import Django
from tests.support.databases import django_project
from tests.worker.providers.interface import Often, Stack, Url

NUMBERS = count(1)


@asynccontextmanager
async def open_provider(url: Url) -> AsyncIterator[Django]:
    """Make an alias; the connections that handlers' threads have made of it are closed with it."""
    alias = f"provider_{next(NUMBERS)}"
    django_project.add(alias, django_project.database(url))
    made: list[Any] = []

    def note(connection: Any, **_: Any) -> None:
        made.append(connection.connection)

    connection_created.connect(note)
    try:
        yield Django(alias)
    finally:
        connection_created.disconnect(note)
        for each in made:
            each.close()
        del connections.settings[alias]


STACKS = (
    Stack("django", "sqlite", False, open_provider),
    Stack("django", "postgres", False, open_provider, Often.CHEAP),
)
