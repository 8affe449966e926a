"""Django's connections around jobs, as Django has them around requests: those too old or broken are closed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import close_old_connections, connections, reset_queries

from holdfast.sync import Context, middleware


@middleware
def tidy_connections(_: Context, call: Callable[[], Any]) -> Any:
    """Begin and leave each plain handler with connections that the next one in its thread can use."""
    reset_queries()
    close_old_connections()
    try:
        return call()
    finally:
        _drop_unfinished()
        close_old_connections()


def _drop_unfinished() -> None:
    """Throw away connections on which the handler has left a transaction open, such as in a generator."""
    for each in connections.all(initialized_only=True):
        if each.in_atomic_block:
            each.close()
            del connections[each.alias]
