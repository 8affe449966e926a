"""Who does harm: one fault after the other, as the seed decides, until the run is calm; then it relents."""

from __future__ import annotations

import heapq
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from random import Random

import psycopg

from holdfast.testing import PostgresServer
from tests.support.faults.fault_proxy import FaultProxy
from tests.torture.application import LEASE_SECONDS
from tests.torture.crew import Crew, Member
from tests.torture.history import busy_since
from tests.torture.notes import Notes

RESTART_SECONDS = (0.0, 0.0, 0.5, 2.0)
"""How long a process that was ended stays away."""
STOP_SECONDS = (0.5, LEASE_SECONDS + 1, 3 * LEASE_SECONDS, 3 * LEASE_SECONDS)
"""Past a lease and the period of a reaper, so that others run what it ran."""


class Schedule:
    """What is to be done when."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Have *act* done in *seconds*."""
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._numbers), act))

    def run_due(self) -> None:
        """Do what is due."""
        while self._due and self._due[0][0] <= time.monotonic():
            heapq.heappop(self._due)[2]()

    def run_all(self) -> None:
        """Do all that is left, now: every fault has an end."""
        while self._due:
            heapq.heappop(self._due)[2]()


class Nemesis:
    """The faults that hurt processes, on whichever database."""

    def __init__(self, crew: Crew, chance: Random, notes: Notes) -> None:
        self.crew = crew
        self.chance = chance
        self.notes = notes
        self.ends = Schedule()
        self.faults: list[tuple[Callable[[], None], int]] = [
            (self.kill_worker, 6),
            (self.stop_worker, 4),
            (self.drain_worker, 3),
            (self.hurry_worker, 1),
            (self.kill_another, 2),
        ]
        """What it does, and how often it does it before it begins anew."""
        self._deck: list[str] = []

    def strike(self, fault: str | None = None) -> None:
        """Do one thing that hurts: *fault*, or else each in its turn, in no order."""
        if fault is None:
            if not self._deck:
                self._deck = [act.__name__ for act, times in self.faults for _ in range(times)]
                self.chance.shuffle(self._deck)
            fault = self._deck.pop()
        getattr(self, fault)()

    def tend(self) -> None:
        """End the faults whose time is over."""
        self.ends.run_due()

    def relent(self) -> None:
        """End every fault."""
        self.ends.run_all()

    def _worker(self) -> Member | None:
        awake = [each for each in self.crew.workers if not each.is_stopped]
        return self.chance.choice(awake) if awake else None

    def _stay_away(self, member: Member) -> None:
        member.starts_at = time.monotonic() + self.chance.choice(RESTART_SECONDS)

    def _busy_worker(self) -> Member | None:
        """Choose the worker that has most to lose: a handler of its has run for longest."""
        busy = busy_since(self.crew.place)
        awake = [each for each in self.crew.workers if not each.is_stopped]
        return min(awake, key=lambda each: busy.get(each.pid, time.monotonic()), default=None)

    def kill_worker(self) -> None:
        """End a worker as a power cut would."""
        if worker := self._busy_worker():
            self._stay_away(worker)
            self.crew.send(worker, signal.SIGKILL)

    def stop_worker(self) -> None:
        """Have a worker stand still, now and then past its leases."""
        worker = self._busy_worker()
        if worker is None:
            return
        process = worker.pid
        self.crew.send(worker, signal.SIGSTOP)

        def go_on() -> None:
            if worker.process is not None and worker.pid == process:
                self.crew.send(worker, signal.SIGCONT)

        self.ends.after(self.chance.choice(STOP_SECONDS), go_on)

    def drain_worker(self) -> None:
        """Have a worker end as for a deployment."""
        if worker := self._worker():
            self.crew.send(worker, signal.SIGTERM)

    def hurry_worker(self) -> None:
        """Have a worker end, and not wait for it."""
        if worker := self._worker():
            self.crew.send(worker, signal.SIGTERM)
            self.ends.after(0.2, lambda: self.crew.send(worker, signal.SIGTERM))

    def kill_another(self) -> None:
        """End one of those who produce, steer or read."""
        if others := self.crew.others:
            other = self.chance.choice(others)
            self._stay_away(other)
            self.crew.send(other, signal.SIGKILL)


class SqliteNemesis(Nemesis):
    """Also holds the file's right to write."""

    def __init__(self, crew: Crew, chance: Random, notes: Notes, path: str) -> None:
        super().__init__(crew, chance, notes)
        self._path = path
        self.faults += [(self.hold_file, 2)]

    def hold_file(self) -> None:
        """Be a stranger who writes to the file, and takes his time."""
        stranger = sqlite3.connect(self._path, isolation_level=None, timeout=1, check_same_thread=False)
        try:
            stranger.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            stranger.close()
            return
        self.notes.write(what="hold file")
        self.ends.after(self.chance.choice((0.2, 1.0, LEASE_SECONDS + 1)), stranger.close)


class PostgresNemesis(Nemesis):
    """Also hurts the server, the network, and holds rows."""

    def __init__(self, crew: Crew, chance: Random, notes: Notes, server: PostgresServer, proxy: FaultProxy) -> None:
        super().__init__(crew, chance, notes)
        self._server = server
        self._proxy = proxy
        self.faults += [
            (self.restart_server, 1),
            (self.cut, 2),
            (self.cut_at_commit, 6),
            (self.fall_silent, 1),
            (self.be_slow, 1),
            (self.lock_rows, 3),
            (self.write_and_wait, 1),
        ]

    def tend(self) -> None:
        """Keep nothing of what was said, too."""
        super().tend()
        self._proxy.sent.clear()

    def restart_server(self) -> None:
        """Crash the server, and start it again."""
        self.notes.write(what="restart server")
        self._server.restart("immediate")

    def cut(self) -> None:
        """Reset every connection."""
        self.notes.write(what="cut")
        self._proxy.cut()

    def cut_at_commit(self) -> None:
        """Reset the connection that commits next, before or after the server has heard it."""
        where = self.chance.choice(("before", "after"))
        self.notes.write(what=f"cut {where} commit")
        self._proxy.cut_at_commit = where  # type: ignore[assignment]

    def fall_silent(self) -> None:
        """Pass nothing on for a while."""
        self.notes.write(what="silence")
        self._proxy.fall_silent()
        self.ends.after(self.chance.choice((0.5, 2.0, LEASE_SECONDS + 2)), self._proxy.speak)

    def be_slow(self) -> None:
        """Take a while to pass anything on."""
        self.notes.write(what="slowness")
        self._proxy.latency = self.chance.choice((0.005, 0.02, 0.1))

        def hasten() -> None:
            self._proxy.latency = 0.0

        self.ends.after(2.0, hasten)

    def write_and_wait(self) -> None:
        """Be a stranger who has written something of his own, and does not commit for long."""
        stranger = psycopg.connect(self._server.url)
        stranger.execute("CREATE TEMPORARY TABLE torture_stranger AS SELECT pg_current_xact_id()")
        self.notes.write(what="open writer")
        self.ends.after(6 * LEASE_SECONDS, stranger.close)

    def lock_rows(self) -> None:
        """Be a stranger who has locked rows of running jobs, and takes his time."""
        stranger = psycopg.connect(self._server.url)
        try:
            rows = stranger.execute(
                "SELECT seq FROM holdfast_job WHERE status = 'running' ORDER BY random() LIMIT 3 FOR UPDATE SKIP LOCKED"
            ).fetchall()
        except psycopg.Error:
            stranger.close()
            return
        self.notes.write(what="lock rows", jobs=[seq for (seq,) in rows])

        def let_go() -> None:
            with suppress(psycopg.Error):
                stranger.close()

        self.ends.after(self.chance.choice((0.3, 1.0, LEASE_SECONDS + 1)), let_go)
