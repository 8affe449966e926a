"""Which peers are measured beside our worker, and how many jobs a round each is given: the slower, the fewer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.peers.process import (
    CELERY_DRAIN,
    CHANCY_DRAIN,
    DBOS_DRAIN,
    DRAMATIQ_DRAIN,
    HUEY_DRAIN,
    OBAN_DRAIN,
    PGQUEUER_DRAIN,
    PROCRASTINATE_DRAIN,
    SAQ_DRAIN,
    Peer,
    PeerProcess,
    PeerUnavailable,
    running,
)
from bench.peers.redis_server import Fsync, redis_server
from bench.places import Places


@dataclass(frozen=True, slots=True)
class Rival:
    """A peer, what its line is called, its jobs a round, and how its Redis writes, if it needs one."""

    peer: Peer
    name: str
    jobs: int
    fsync: Fsync | None = None


SQLITE = (
    Rival(HUEY_DRAIN, "huey", 4_000),
    Rival(DBOS_DRAIN, "dbos on SQLite", 300),
)

POSTGRES = (
    Rival(PGQUEUER_DRAIN, "pgqueuer", 20_000),
    Rival(OBAN_DRAIN, "oban", 3_000),
    Rival(CHANCY_DRAIN, "chancy", 3_000),
    Rival(PROCRASTINATE_DRAIN, "procrastinate", 400),
    Rival(SAQ_DRAIN, "saq", 400),
    Rival(DBOS_DRAIN, "dbos", 600),
)

REDIS = (
    Rival(DRAMATIQ_DRAIN, "dramatiq, Redis always", 2_000, "always"),
    Rival(CELERY_DRAIN, "celery, Redis always", 1_000, "always"),
)

LESS_DURABLE = (
    Rival(DRAMATIQ_DRAIN, "dramatiq, Redis everysec", 2_000, "everysec"),
    Rival(CELERY_DRAIN, "celery, Redis everysec", 1_000, "everysec"),
)


class Rivals:
    """The peers that can be had here, at work until *stack* ends; why another is left out is printed."""

    def __init__(self, stack: ExitStack, places: Places, text: str) -> None:
        self._stack = stack
        self._places = places
        self._text = text
        self._servers: dict[Fsync, str] = {}

    def start(self, rivals: Sequence[Rival], store: str) -> list[tuple[Rival, PeerProcess]]:
        """Start *rivals* on databases of their own on *store*, or on a Redis beside it."""
        started = []
        for each in rivals:
            try:
                place = self._place(each, store)
                process = self._stack.enter_context(running(each.peer, place, self._text))
            except PeerUnavailable as error:
                print(f"{each.name} is left out: {error}", flush=True)
                continue
            print(f"beside {process.version}{f' with appendfsync {each.fsync}' if each.fsync else ''}", flush=True)
            started.append((each, process))
        return started

    def _place(self, rival: Rival, store: str) -> str:
        if rival.fsync is None:
            return self._stack.enter_context(self._places.address(store, f"{rival.peer.name}_peer"))
        if rival.fsync not in self._servers:
            server = redis_server(self._places.directory, rival.fsync)
            self._servers[rival.fsync] = self._stack.enter_context(server)
        return self._servers[rival.fsync]
