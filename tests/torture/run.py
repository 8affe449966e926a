"""One run from a seed: it sets everybody to work, lets the nemesis do harm, waits until all is done, and is judged."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

import psycopg

from holdfast import Holdfast
from holdfast.models import Trigger
from holdfast.testing import PostgresServer, temporary_postgres
from tests.support.faults.fault_proxy import FaultProxy
from tests.torture import audit, history
from tests.torture.application import CHILDREN, LEASE_SECONDS, TASKS
from tests.torture.crew import PRODUCERS, Crew
from tests.torture.nemesis import Nemesis, PostgresNemesis, SqliteNemesis
from tests.torture.notes import Notes, read
from tests.torture.receiver import receiving

OPEN = """SELECT (SELECT count(*) FROM holdfast_outbox) + count(*) FROM holdfast_job
    WHERE status NOT IN ('completed', 'failed', 'cancelled') OR head = 1 OR gate IS NOT NULL"""
DELIVERY_LEASE_SECONDS = 30.0
BUSY_MACHINE_SECONDS = 60.0
THE_END = "the end"
"""A queue that is paused and resumed when all is done; nobody serves it."""
READERS = ("events", "stream")
TICK_SECONDS = 0.02
START_SECONDS, BUSY_SECONDS = 30.0, 0.3
SUBSCRIBED: tuple[Trigger, ...] = ("job:completed", "job:failed", "job:paused")
SUBSCRIBED_TASKS = ("booked", "chained")

DatabaseKind = Literal["sqlite", "postgres"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What kind of run it is; with its seed, that is all that decides it, beside the machine."""

    database: DatabaseKind
    seed: int
    seconds: float
    workers: int = 4
    fault_seconds: float = 1.5
    """How long it is from one fault to the next, on average."""
    has_aborts: bool = True
    """Whether some jobs take their process down."""
    longs: float = 0.04
    """How many take longer than two leases."""
    has_webhooks: bool = True
    has_children: bool = True
    script: tuple[str, ...] = ()
    """The faults, one after the other, if they are not left to chance."""

    @property
    def quiet_seconds(self) -> float:
        """How long after the last fault everything must be done: three leases, and a while for a busy machine."""
        return 3 * (DELIVERY_LEASE_SECONDS if self.has_webhooks else LEASE_SECONDS) + BUSY_MACHINE_SECONDS

    @property
    def command(self) -> str:
        """The command that repeats it."""
        return (
            f".venv/bin/python -m tests.torture --database {self.database} --seconds {self.seconds:g} "
            f"--seed {self.seed} --workers {self.workers}"
        )


class Database:
    """The database of a run, as an outsider who is hit by no fault sees it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.is_postgres = url.startswith("postgresql://")

    def ask(self, sql: str) -> list[tuple[object, ...]]:
        """Look into it."""
        if self.is_postgres:
            with psycopg.connect(self.url) as connection:
                return connection.execute(sql.encode()).fetchall()
        file = sqlite3.connect(self.url, timeout=30)
        try:
            return file.execute(sql).fetchall()
        finally:
            file.close()


class Run:
    """A run in *place*, an empty directory that will hold its history."""

    def __init__(self, plan: Plan, place: Path) -> None:
        self._plan = plan
        self._place = place
        self._chance = Random(plan.seed)
        self._notes = Notes(place / "nemesis.jsonl")

    def lead(self) -> history.History:
        """Lead it from its beginning to its end, and give what was recorded."""
        plan = self._plan
        with ExitStack() as stack:
            self._database = Database(str(self._place / "jobs.db"))
            url, server, proxy = self._database.url, None, None
            if plan.database == "postgres":
                server = stack.enter_context(durable_server())
                self._database = Database(server.url)
                proxy = stack.enter_context(FaultProxy(server.url))
                url = proxy.url
            hook = stack.enter_context(receiving(Notes(self._place / "hooks.jsonl"), self._chance))
            self._prepare(hook)
            crew = Crew(self._place, self._environment(url), self._notes)
            stack.callback(crew.kill)
            nemesis = self._nemesis(crew, server, proxy)
            self._notes.write(what="clock", wall=time.time(), lease=LEASE_SECONDS, **plan_facts(plan))
            self._gather(crew)
            self._await_work(crew)
            self._suffer(crew, nemesis)
            self._calm_down(crew, nemesis)
            self._flag("over")
            crew.end()
            history.save(self._database, self._place, server)
        return history.load(self._place)

    def _prepare(self, hook: str) -> None:
        hf = Holdfast(
            self._database.url,
            tasks=[TASKS],
            webhook_http=True,
            webhook_ports=None,
            webhook_private_addresses=True,
        )
        hf.sync.migrate()
        if self._database.is_postgres:
            audit.write_down_postgres(self._database.url)
        else:
            audit.write_down_sqlite(self._database.url)
        if self._plan.has_webhooks:
            hf.sync.webhooks.subscribe(hook, events=SUBSCRIBED, tasks=SUBSCRIBED_TASKS)
        (self._place / "cursor").write_text(hf.sync.cursor())
        hf.sync.close()

    def _environment(self, url: str) -> dict[str, str]:
        children = {CHILDREN: "1"} if self._plan.has_children else {}
        return children | {
            "HOLDFAST_DATABASE": url,
            "HOLDFAST_RETENTION": "false",
            "HOLDFAST_WEBHOOK_HTTP": "true",
            "HOLDFAST_WEBHOOK_PORTS": "null",
            "HOLDFAST_WEBHOOK_PRIVATE_ADDRESSES": "true",
            "HOLDFAST_WEBHOOK_RETRY_SECONDS": "0.2",
            "TORTURE_ABORTS": str(int(self._plan.has_aborts)),
            "TORTURE_LONGS": str(self._plan.longs),
        }

    def _nemesis(self, crew: Crew, server: PostgresServer | None, proxy: FaultProxy | None) -> Nemesis:
        if server is None or proxy is None:
            return SqliteNemesis(crew, self._chance, self._notes, self._database.url)
        return PostgresNemesis(crew, self._chance, self._notes, server, proxy)

    def _gather(self, crew: Crew) -> None:
        seed = str(self._plan.seed)
        for _ in range(self._plan.workers):
            crew.add_worker("--concurrency", "12", "--grace", "2", "--poll", "1")
        crew.add("plain", "producers", "plain", seed)
        crew.add("borrowed", "producers", "borrowed", seed)
        crew.add("operator", "operator", seed)
        crew.add("events", "tailer", "events")
        if self._plan.has_webhooks:
            crew.add("stream", "tailer", "stream")

    def _await_work(self, crew: Crew) -> None:
        """Wait until every worker is busy: what is done to others before that hurts nobody."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            crew.tend()
            busy = history.busy_since(self._place)
            if all(busy.get(each.pid, deadline) < time.monotonic() - BUSY_SECONDS for each in crew.workers):
                return
            time.sleep(0.1)

    def _suffer(self, crew: Crew, nemesis: Nemesis) -> None:
        plan, script = self._plan, list(self._plan.script)
        until = time.monotonic() + plan.seconds
        strikes_at = time.monotonic() + plan.fault_seconds
        while time.monotonic() < until:
            crew.tend()
            nemesis.tend()
            if time.monotonic() >= strikes_at and (script or not plan.script):
                nemesis.strike(script.pop(0) if script else None)
                wait = plan.fault_seconds if plan.script else self._chance.expovariate(1 / plan.fault_seconds)
                strikes_at = time.monotonic() + wait
            time.sleep(TICK_SECONDS)

    def _calm_down(self, crew: Crew, nemesis: Nemesis) -> None:
        """Stop the faults; all must be done within three leases."""
        self._flag("stop")
        nemesis.relent()
        self._flag("calm")
        self._notes.write(what="calm")
        began = time.monotonic()
        is_told = self._wait(crew, lambda: self._is_done(crew)) and self._tell_the_end(crew)
        self._notes.write(what="done" if is_told else "not done", seconds=time.monotonic() - began)

    def _wait(self, crew: Crew, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + self._plan.quiet_seconds
        while time.monotonic() < deadline:
            crew.tend()
            if condition():
                return True
            time.sleep(0.2)
        return False

    def _is_done(self, crew: Crew) -> bool:
        ((left,),) = self._database.ask(OPEN)
        return left == 0 and not any(each.role in PRODUCERS for each in crew.others)

    def _tell_the_end(self, crew: Crew) -> bool:
        """Have something happen of which every reader is told behind all that happened before, and wait for that."""
        hf = Holdfast(self._database.url)
        hf.sync.queue(THE_END).pause()
        hf.sync.queue(THE_END).resume()
        hf.sync.close()
        streams = [self._place / f"stream-{each.role}.jsonl" for each in crew.others if each.role in READERS]
        return self._wait(crew, lambda: all(is_at_the_end(path) for path in streams))

    def _flag(self, name: str) -> None:
        (self._place / name).touch()


def is_at_the_end(path: Path) -> bool:
    """Tell whether a reader was told of the end of the run."""
    *_, last = (line for line in (None, *read(path)) if line is None or line.get("of") == THE_END)
    return last is not None and last["name"] == "queue:resumed"


def plan_facts(plan: Plan) -> dict[str, object]:
    """Tell what a history must say of its plan."""
    return {
        "database": plan.database,
        "seed": plan.seed,
        "seconds": plan.seconds,
        "workers": plan.workers,
        "webhooks": plan.has_webhooks,
        "subscribed": list(SUBSCRIBED),
        "subscribed_tasks": list(SUBSCRIBED_TASKS),
        "command": plan.command,
    }


@contextmanager
def durable_server() -> Iterator[PostgresServer]:
    """Give a server that waits for the disk, and remembers when each transaction was committed."""
    with temporary_postgres(durable=True, max_connections=300, settings={"track_commit_timestamp": "on"}) as server:
        yield server
