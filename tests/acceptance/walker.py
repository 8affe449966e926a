"""The program that walks crash points: `python -m tests.acceptance.walker`, which says what went wrong, in JSON.

It plays one scenario, again and again, each time with another point armed, from the same beginning: a copy of the
prepared database. It forks for each program of the scenario, so that nothing is imported twice, and no thread and no
connection is there when it does. What happens to the program at its point:

    kill    it is dead at once; another comes after it, and does what is left
    cut     its connections are gone, and it goes on
    raise   something raises where nothing should, and it goes on
    stop    it stands still until its leases are over and others have done its work; then it goes on and changes nothing

At the end everything is as it is when nothing happens: as many jobs in each status, every completion once.
`python -m tests.acceptance.walker write` writes down anew which points there are (`points.json`), for all scenarios or
for those that are named.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import psycopg

from holdfast import Holdfast, fault_points
from holdfast.database.sqlite.connection import WriteConnection
from holdfast.database.tx import Tx
from holdfast.errors import Busy, StoreError
from holdfast.fault_points import CrashPoint
from holdfast.worker.upkeep import reaper
from tests.acceptance import scenarios
from tests.acceptance.jobs_of_tests import PLACE
from tests.acceptance.processes import until
from tests.acceptance.scenarios import SCENARIOS, Scenario, rows
from tests.support.log_rows import as_events

SECONDS = 50.0
TABLE = Path(__file__).with_name("points.json")
NAMES = (
    "job",
    "event",
    "lane",
    "queue",
    "unique",
    "blocker",
    "phase",
    "journal",
    "delivery",
    "outbox",
    "subscription",
    "schedule",
    "tick",
    "meta",
    "audit",
)
DECISIVE = (
    "job:completed", "job:enqueued", "job:cancelled", "job:failed", "job:deleted", "job:stale", "job:phase:completed",
    "chain:completed", "chain:cancelled", "lane:paused", "lane:resumed", "queue:paused", "queue:resumed",
)  # fmt: skip
"""Events that are there as often, whatever has happened on the way."""


RESTORE = """
    CREATE FUNCTION {saved}.restore() RETURNS void LANGUAGE plpgsql SET session_replication_role = replica
    AS $$ BEGIN {statements} END $$"""
TABLES = """
    SELECT schemaname, tablename FROM pg_tables
    WHERE schemaname = %(schema)s OR (schemaname, tablename) = ('public', %(users)s)"""


def table() -> dict[str, dict[str, list[str]]]:
    """Read which points each scenario passes, on each database."""
    found: dict[str, dict[str, list[str]]] = json.loads(TABLE.read_text())
    return found


@dataclass(frozen=True, slots=True)
class Program:
    """A forked process."""

    id: int

    def state(self) -> tuple[str, int]:
        """Wait until it has ended or stands still; tell which, and its exit code or the signal that has killed it."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            found, status = os.waitpid(self.id, os.WNOHANG | os.WUNTRACED)
            if found and os.WIFSTOPPED(status):
                return "stopped", 0
            if found:
                return "ended", os.waitstatus_to_exitcode(status)
            time.sleep(0.001)
        os.kill(self.id, signal.SIGKILL)
        os.waitpid(self.id, 0)
        raise AssertionError(f"a program has not ended after {SECONDS:g} s")


class Walk:
    """The walk through one scenario on one database, in *directory*."""

    def __init__(self, scenario: Scenario, settings: Mapping[str, Any], directory: Path) -> None:
        self.scenario = scenario
        self.settings = dict(settings)
        self.directory = directory
        self.files, self.saved = directory / "now", directory / "saved"
        self.is_postgres = str(settings.get("database", "")).startswith("postgresql")
        if not self.is_postgres:
            self.settings["database"] = str(self.files / "jobs.db")
        os.environ[PLACE] = str(self.files)
        for name in scenario.needs:
            import_module(name)
        self._imported = frozenset(sys.modules)
        reaper.PERIOD_SECONDS = 0.1

    def set_up(self) -> None:
        """Prepare the scenario, and keep it."""
        self.files.mkdir()
        self.run(self._prepare)
        shutil.copytree(self.files, self.saved)

    def record(self) -> tuple[list[str], dict[str, Any]]:
        """Play it once, with nothing happening; give all points that were passed, and how things then stand."""
        self._begin_anew()
        self.run(self._record)
        found = json.loads((self.directory / "record.json").read_text())
        self._have_ready(found["modules"])
        return found["points"], found["end"]

    def _have_ready(self, modules: Sequence[str]) -> None:
        """Import here what of ours the first program had to import, and keep the collector from touching what is there.

        The next programs find it. What is for Django reads the settings of its program as it is imported.
        """
        for name in modules:
            if name.startswith("holdfast.") and "django" not in name:
                import_module(name)
        gc.collect()
        gc.freeze()

    def disturb(self, trap: str, end: dict[str, Any]) -> bool:
        """Play it once with *trap* set, and see that it ends as if nothing had happened; tell whether it sprang."""
        self._begin_anew()
        (self.directory / "reached").unlink(missing_ok=True)
        name, _, mode = trap.split(":")
        is_before = self.scenario.is_whole and not name.endswith(".after_commit")
        program = self.fork(lambda hf: self._act(hf, trap, end))
        state, code = program.state()
        if state == "stopped":
            code = self._stand_still(program, is_before)
        elif code == -signal.SIGKILL and mode == "kill":
            self.run(lambda hf: self._come_after(hf, is_before, end))
            code = 0
        assert code == 0, f"it ended with {code}: {self._said()}"
        return (self.directory / "reached").exists()

    def _stand_still(self, program: Program, is_before: bool) -> int:
        try:
            self.run(lambda hf: self._rob(hf, program.id, is_before))
        finally:
            os.kill(program.id, signal.SIGCONT)
        state, code = program.state()
        assert state == "ended", "it stands still again"
        return code

    # what the forked programs do

    def _prepare(self, hf: Holdfast) -> None:
        if self.is_postgres:
            with psycopg.connect(self.settings["database"], autocommit=True) as server:
                for schema in (self._schema, f"{self._schema}_saved"):
                    server.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        if self.scenario.is_empty:
            return
        hf.sync.migrate()
        self.scenario.prepare(hf)
        hf.sync.close()
        if self.is_postgres:
            self._save()

    @property
    def _schema(self) -> str:
        return str(self.settings["schema_name"])

    def _save(self) -> None:
        with psycopg.connect(self.settings["database"]) as server:
            server.execute(f"CREATE SCHEMA {self._schema}_saved")
            found = server.execute(TABLES, {"schema": self._schema, "users": self.scenario.table}).fetchall()
            for schema, name in found:
                server.execute(f"CREATE TABLE {self._schema}_saved.{name} AS TABLE {schema}.{name}")
            statements = "".join(
                f"DELETE FROM {schema}.{name};"
                f"INSERT INTO {schema}.{name} OVERRIDING SYSTEM VALUE TABLE {self._schema}_saved.{name};"
                for schema, name in found
            )
            server.execute(RESTORE.format(saved=f"{self._schema}_saved", statements=statements))

    async def _restore(self, tx: Tx) -> None:
        """Put every table back to what it was, by one call: most of the time would go into the way there and back."""
        await tx.fetch_all(f"SELECT {self._schema}_saved.restore()")

    def _restore_rows(self, hf: Holdfast) -> None:
        if self.is_postgres and self.scenario.is_empty:
            with psycopg.connect(self.settings["database"], autocommit=True) as server:
                server.execute(f"DROP SCHEMA IF EXISTS {self._schema} CASCADE")
        elif self.is_postgres:
            hf.store.run_sync(self._restore)

    def _begin_anew(self) -> None:
        shutil.rmtree(self.files)
        shutil.copytree(self.saved, self.files)
        (self.directory / "robbed.json").unlink(missing_ok=True)
        (self.directory / "said").write_text("")
        if self.scenario.needs_dead:
            dying = self.fork(lambda hf: self._act(hf, "claim.before_handler:1:kill", {}))
            assert dying.state() == ("ended", -signal.SIGKILL)

    def _record(self, hf: Holdfast) -> None:
        self._restore_rows(hf)
        if not self.scenario.is_empty:
            (self.directory / "before.json").write_text(self._tables(hf))
        record: list[fault_points.PointRecorder] = []

        def begin() -> None:
            if not record:
                record.append(fault_points.record())

        self._begin_by(begin)
        self.scenario.act(hf)
        passed = record[0].passed
        fault_points.arm(None)
        assert self.scenario.is_done(hf), "it is not done"
        points = _numbered(passed) if self.scenario.each_pass else list(dict.fromkeys(passed))
        said = {"points": points, "end": summary(hf), "modules": sorted(sys.modules.keys() - self._imported)}
        (self.directory / "record.json").write_text(json.dumps(said))

    def _act(self, hf: Holdfast, trap: str, end: dict[str, Any]) -> None:
        """Do what is to be done, with the trap set; if that raises, what is left of it; see that all is well then."""
        self._restore_rows(hf)
        reached = self.directory / "reached"
        armed: list[bool] = []

        def begin() -> None:
            if not armed:
                armed.append(True)
                fault_points.arm(trap)

        logging.getLogger("holdfast.fault_points").addHandler(Flag(reached))
        if ":stop" in trap:  # the server cuts a transaction that has stood still for twice the deadline
            hf = self.scenario.make({**self.settings, "deadline_seconds": 0.5})
        self._begin_by(begin)
        try:
            self.scenario.act(hf)
        except (CrashPoint, StoreError):
            traceback.print_exc()
        fault_points.arm(None)
        if ":stop" in trap:
            hf = self.scenario.make(self.settings)
        if not self.scenario.is_done(hf):
            self.scenario.act(hf)
        if (robbed := self.directory / "robbed.json").exists():
            assert self._tables(hf) == robbed.read_text(), "it changed what was no longer its own"
        self._check(hf, end)

    def _begin_by(self, begin: Callable[[], None]) -> None:
        if self.scenario.from_handler:
            scenarios.begin = begin
        else:
            begin()

    def _come_after(self, hf: Holdfast, is_before: bool, end: dict[str, Any]) -> None:
        """Do what a program has left that is dead; if it had not committed, nothing of it is there."""
        if is_before:
            assert self._tables(hf) == self._tables_before(), "half of it is there"
        if not self.scenario.is_empty:
            self.scenario.holds(hf)
            self._age_leases(hf)
        if not self.scenario.is_done(hf):
            self.scenario.act(hf)
        self._check(hf, end)

    def _rob(self, hf: Holdfast, zombie: int, is_before: bool) -> None:
        """Do the work of a program that stands still, unless it keeps all others from writing."""
        if self.scenario.is_empty:
            return
        if not self.scenario.is_worker:
            if is_before:
                assert self._tables(hf) == self._tables_before(), "half of it is seen"
            return
        if not self.is_postgres and (refusal := self._refusal()):
            assert f"process {zombie} had it last" in refusal or zombie in self._lock_holders(), refusal
            return
        until(lambda: self._age_leases(hf) == 0, "its leases are over", 30)
        self.scenario.act(hf)
        assert self.scenario.is_done(hf), "it is not done"
        (self.directory / "robbed.json").write_text(self._tables(hf))

    def _check(self, hf: Holdfast, end: dict[str, Any]) -> None:
        assert self.scenario.is_done(hf), f"it is not done; {self._said()}"
        self.scenario.holds(hf)
        assert (found := summary(hf)) == end, f"{found} instead of {end}"

    def _tables(self, hf: Holdfast) -> str:
        """Read all that is written about jobs, and whatever else a verb may write."""
        found = {name: sorted(rows(hf, f"SELECT * FROM holdfast_{name}"), key=repr) for name in NAMES}
        return json.dumps(found, default=str)

    def _tables_before(self) -> str:
        return (self.directory / "before.json").read_text()

    def _age_leases(self, hf: Holdfast) -> int:
        """Let every lease be over that nobody has locked, as if its time had passed; answer how many are left.

        On SQLite the lock of a worker proves its death; one that stands still is alive.
        """
        hf.store.run_sync(scenarios._execute, AGE_LEASES)
        return int(rows(hf, "SELECT count(*) FROM holdfast_job WHERE lease_until > $now")[0][0])

    def _refusal(self) -> str:
        """Say how others are kept from writing, if they are."""
        person = Holdfast(self.settings["database"], deadline_seconds=0.3).sync
        try:
            person.queue("nobody").resume()
        except Busy as busy:
            return str(busy)
        return ""

    def _lock_holders(self) -> set[int]:
        files = {file.stat().st_ino for file in self.files.rglob("*") if file.is_file()}
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" not in line]
        return {int(words[4]) for words in locks if int(words[5].rpartition(":")[2]) in files}

    def _said(self) -> str:
        return (self.directory / "said").read_text(errors="replace")[-4000:]

    # processes

    def fork(self, work: Callable[[Holdfast], None]) -> Program:
        """Run *work* in a process of its own."""
        sys.stdout.flush()
        if (number := os.fork()) == 0:
            self._be_forked(work)
        return Program(number)

    def run(self, work: Callable[[Holdfast], None]) -> None:
        """Run *work* in a process of its own, to its end; raise what it says if that is no good one."""
        state, code = self.fork(work).state()
        assert (state, code) == ("ended", 0), self._said()

    def _be_forked(self, work: Callable[[Holdfast], None]) -> NoReturn:
        code = 1
        try:
            with (self.directory / "said").open("a") as said:
                os.dup2(said.fileno(), 2)
                os.dup2(said.fileno(), 1)
            work(self.scenario.make(self.settings))
            code = 0
        except BaseException:  # noqa: BLE001 - whoever waits for it is told
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stderr.flush()
            os._exit(code)


def _numbered(passed: Sequence[str]) -> list[str]:
    """Name every pass of a point by its number."""
    counts: Counter[str] = Counter()
    found = []
    for each in passed:
        counts[each] += 1
        found.append(f"{each}:{counts[each]}")
    return found


class Flag(logging.Handler):
    """Leaves a file behind when the point is reached."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Take note of it."""
        if record.__dict__.get("event_name") == "crash_point_reached":
            self._path.touch()


AGE_LEASES = """
    UPDATE holdfast_job SET lease_until = $now - 1
    WHERE seq IN (SELECT seq FROM holdfast_job WHERE lease_until IS NOT NULL ORDER BY seq $skip_locked)"""


def summary(hf: Holdfast) -> dict[str, Any]:
    """Say how things stand, in what does not depend on the way by which it came so."""
    told = as_events(rows(hf, "SELECT name, facts FROM holdfast_event"), "name, facts")
    events = Counter(name for name, _ in told)
    return {
        "statuses": dict(Counter(status for (status,) in rows(hf, "SELECT status FROM holdfast_job"))),
        "events": {name: events[name] for name in DECISIVE if events[name]},
        "rows": {
            name: rows(hf, f"SELECT count(*) FROM holdfast_{name}")[0][0]
            for name in ("lane", "unique", "blocker", "delivery", "outbox", "subscription", "phase")
        },
        "most_completions": max(Counter(rows(hf, COMPLETED)).values(), default=0),
    }


COMPLETED = "SELECT job FROM holdfast_event WHERE name = 'job:completed'"


def is_about(scenario: Scenario, point: str) -> bool:
    """Tell whether *scenario* is the one in which *point* is walked."""
    return any(point == each or point.startswith(each if each.endswith(".") else f"{each}.") for each in scenario.about)


def walk(
    name: str,
    settings: Mapping[str, Any],
    directory: Path,
    mode: str,
    points: Sequence[str],
    *,
    in_halves: bool = False,
) -> dict[str, str]:
    """Walk *points* of the scenario *name* in *mode*; tell at which of them something is wrong, and what.

    *In_halves* has each statement on SQLite commit by itself, which no walk may miss.
    """
    found = Walk(SCENARIOS[name], settings, directory)
    found.set_up()
    _, end = found.record()
    if in_halves:
        WriteConnection.begin = WriteConnection.commit = lambda *_: None  # type: ignore[assignment,method-assign]
    failures = {}
    for point in points:
        trap = f"{point}:{mode}" if ":" in point else f"{point}:1:{mode}"
        try:
            for _ in range(TRIES):
                if found.disturb(trap, end):
                    break
            else:
                raise AssertionError("the point was not passed")
        except AssertionError as error:
            failures[point] = str(error)
    return failures


TRIES = 3
"""How often a point may be missed: what a slow machine writes at once, a fast one writes in two steps."""


def record(
    settings: Mapping[str, Any], directory: Path, names: Sequence[str], times: int = 1
) -> dict[str, list[list[str]]]:
    """Play scenarios with nothing happening, so many times; tell all points that each of them has passed each time."""
    found = {}
    for name in names:
        (directory / name).mkdir()
        played = Walk(SCENARIOS[name], settings, directory / name)
        played.set_up()
        found[name] = [played.record()[0] for _ in range(times)]
    return found


def write_table(names: Sequence[str]) -> None:
    """Write down anew which points *names*, or all scenarios, pass each time that they are played."""
    from holdfast.testing import temporary_postgres

    found = {name: points for name, points in table().items() if name in SCENARIOS} if names else {}
    with temporary_postgres() as server, TemporaryDirectory() as place:
        for database, settings in (("sqlite", {}), ("postgres", {"database": server.url, "schema_name": "walk"})):
            (directory := Path(place, database)).mkdir()
            played = [name for name in names or SCENARIOS if database in SCENARIOS[name].databases]
            for name, (first, *others) in record(settings, directory, played, TRIES).items():
                always = set(first).intersection(*others)
                points = [each for each in first if each in always and is_about(SCENARIOS[name], each)]
                found.setdefault(name, {})[database] = points
    TABLE.write_text(json.dumps({name: found[name] for name in SCENARIOS}, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write_table(sys.argv[2:])
    else:
        given = json.loads(sys.argv[2])
        given["directory"] = Path(given["directory"])
        print(json.dumps(walk(**given) if sys.argv[1] == "walk" else record(**given)))
