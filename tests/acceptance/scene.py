"""A stage for tests with real workers: a database, a directory, processes that are killed at the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from holdfast import Holdfast
from tests.acceptance.jobs_of_tests import PLACE, TASKS
from tests.acceptance.processes import state_of, until
from tests.support.processes import forked
from tests.support.processes.lines import whole_lines

ROOT = Path(__file__).parents[2]
APP = "tests.acceptance.jobs_of_tests:hf"
HAS_STARTED = re.compile("worker_started|host_started")


@dataclass(slots=True)
class WorkerProcess:
    """A `holdfast worker` that runs."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def id(self) -> int:
        """The number of its process."""
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        """Tell whether it has not ended."""
        return self.process.poll() is None

    @property
    def is_stopped(self) -> bool:
        """Tell whether it stands still, as after SIGSTOP; Linux only."""
        return self.is_alive and state_of(self.id) == "T"

    @property
    def said(self) -> str:
        """All that it has logged."""
        return self.log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """End it as a power cut would, and collect it."""
        self.process.kill()
        self.process.wait()

    def exit_code(self, seconds: float = 30) -> int:
        """Wait for its end, and give its exit code."""
        return self.process.wait(seconds)


@dataclass(slots=True)
class Scene:
    """What a test has: a face on the database, a place for files, workers."""

    hf: Holdfast
    directory: Path
    environment: dict[str, str]
    workers: list[WorkerProcess] = field(default_factory=list)

    @property
    def face(self) -> Any:
        """The blocking face."""
        return self.hf.sync

    def worker(self, *options: str, waits: bool = True, app: str = APP, **environment: str) -> WorkerProcess:
        """Start a worker; unless told otherwise, wait until it says that it works."""
        log = self.directory / f"worker-{len(self.workers)}.log"
        command = [str(Path(sys.executable).with_name("holdfast")), "worker", app, *options]
        with log.open("wb") as stream:
            process = forked.Popen(
                command, cwd=ROOT, stdout=stream, stderr=stream, env={**self.environment, **environment}
            )
        self.workers.append(WorkerProcess(process, log))
        if waits:
            worker = self.workers[-1]
            until(lambda: HAS_STARTED.search(worker.said) or not worker.is_alive, "the worker starts", 30)
            assert worker.is_alive, worker.said
        return self.workers[-1]

    def start(self, *calls: Any) -> list[UUID]:
        """Start jobs; give their ids."""
        return [each.id for each in self.face.start_many(list(calls))]

    def open(self, gate: str = "gate") -> None:
        """Let the handlers go on that wait for *gate*."""
        (self.directory / gate).touch()

    def notes(self, what: str | None = None) -> list[dict[str, Any]]:
        """Read what the handlers have written down."""
        found = [json.loads(line) for line in whole_lines(self.directory / "log")]
        return [each for each in found if what is None or each["what"] == what]

    def rows(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        """Look into the tables."""
        return self.hf.store.read_sync(_fetch, sql, values)

    def statuses(self) -> Counter[str]:
        """Count the jobs by their status."""
        return Counter(dict(self.rows("SELECT status, count(*) FROM holdfast_job GROUP BY status")))

    def are_all(self, status: str) -> bool:
        """Tell whether every job there is has *status*."""
        return set(self.statuses()) <= {status}

    def until_all(self, status: str, seconds: float = 30.0) -> None:
        """Wait until every job has *status*."""
        try:
            until(lambda: self.are_all(status), f"every job is {status}", seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; they are {self.statuses()}; {self.logs()}") from None

    def until_running(self, jobs: Sequence[UUID], seconds: float = 15.0) -> None:
        """Wait until the handlers of *jobs* have begun."""
        wanted = {str(each) for each in jobs}
        until(lambda: wanted <= {each["job"] for each in self.notes("begin")}, "the handlers begin", seconds)

    def completions(self) -> Counter[int]:
        """Count, for each job, how often its completion was committed."""
        return Counter(job for (job,) in self.rows("SELECT job FROM holdfast_event WHERE name = 'job:completed'"))

    def assert_each_completed_once(self) -> None:
        """Assert that every job is completed, and was so by one commit."""
        assert self.are_all("completed"), f"{self.statuses()}; {self.logs()}"
        assert set(self.completions().values()) <= {1}
        assert len(self.completions()) == self.statuses()["completed"]

    def age_leases(self) -> int:
        """Let every lease that nobody has locked be over, as if its time had passed; answer how many are left."""
        self.hf.store.run_sync(_run, AGE_LEASES)
        return int(self.rows("SELECT count(*) FROM holdfast_job WHERE lease_until > $now")[0][0])

    def logs(self) -> str:
        """All that the workers have logged."""
        return "\n".join(f"--- {each.id}\n{each.said}" for each in self.workers)

    def close(self) -> None:
        """End every process that is left."""
        for each in self.workers:
            if each.is_alive:
                each.kill()
        self.face.close()


@contextmanager
def scene(database: str, directory: Path, **settings: str) -> Iterator[Scene]:
    """Set the stage on *database*, which is migrated here."""
    environment = {"HOLDFAST_DATABASE": database, PLACE: str(directory), "PYTHONPATH": _path()}
    environment |= {f"HOLDFAST_{name.upper()}": value for name, value in settings.items()}
    hf = Holdfast(database, tasks=[TASKS], **settings)  # type: ignore[arg-type]
    hf.sync.migrate()
    hf.sync.open()
    stage = Scene(hf, directory, {**os.environ, **environment})
    try:
        yield stage
    finally:
        stage.close()


def seconds_until(condition: Callable[[], object], what: str, seconds: float) -> float:
    """Wait for *condition*; tell how long it took."""
    began = time.monotonic()
    until(condition, what, seconds)
    return time.monotonic() - began


def overlaps(notes: Sequence[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Name the lanes of which two handlers ran at once, with the two jobs."""
    found = []
    running: dict[str, str] = {}
    for each in sorted(notes, key=lambda line: line["at"]):
        lane, job = each["lane"], each["job"]
        if each["what"] == "begin":
            if lane in running:
                found.append((lane, running[lane], job))
            running[lane] = job
        elif each["what"] == "end" and running.get(lane) == job:
            del running[lane]
    return found


def _path() -> str:
    return os.pathsep.join([str(ROOT), *(each for each in sys.path if each)])


AGE_LEASES = """
    UPDATE holdfast_job SET lease_until = $now - 1
    WHERE seq IN (SELECT seq FROM holdfast_job WHERE lease_until IS NOT NULL ORDER BY seq $skip_locked)"""


async def _run(tx: Any, sql: str) -> None:
    await tx.execute(sql)


async def _fetch(tx: Any, sql: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
    return list(await tx.fetch_all(sql, **values))
