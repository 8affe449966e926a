"""`holdfast worker --processes`: real workers under a supervisor, and what becomes of their jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import NotOurServer, PostgresServer
from tests.acceptance.jobs_of_tests import cleans_up, deadly, gated, gated_thread, quick
from tests.acceptance.processes import is_running, until
from tests.acceptance.scene import Scene, WorkerProcess, scene
from tests.cli.test_worker import holdfast
from tests.support.processes.listening_systemd import hear, listening_systemd

on_sqlite = pytest.mark.parametrize("stage_database", ["sqlite"], indirect=True)
# what a busy machine may add to a promised time
NOISE = 3.0

on_both = pytest.mark.parametrize("stage_database", ["sqlite", "postgres"], indirect=True)


class Supervised:
    """A supervisor of real workers."""

    def __init__(self, stage: Scene, process: WorkerProcess) -> None:
        self._file = stage.directory / "health.json"
        self.process = process

    @property
    def said(self) -> str:
        """All that it and its workers have logged."""
        return self.process.said

    def processes(self) -> list[dict[str, Any]]:
        """Say how its worker processes are."""
        try:
            return list(json.loads(self._file.read_bytes())["processes"])
        except FileNotFoundError:
            return []

    def pids(self) -> list[int]:
        """Name its worker processes that are there."""
        return [each["pid"] for each in self.processes() if each["pid"] is not None]

    def until_states(self, *states: str, seconds: float = 40) -> None:
        """Wait until its worker processes are so."""
        until(lambda: [each["state"] for each in self.processes()] == list(states), f"they are {states}", seconds)

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to each worker process and to the supervisor, as systemd does."""
        for each in self.pids():
            os.kill(each, number)
        self.process.send(number)


@pytest.fixture
def supervised(stage: Scene) -> Iterator[Any]:
    """Start a supervisor of two processes; at the end none of them is left."""
    made: list[Supervised] = []

    def start(*options: str, processes: int = 2) -> Supervised:
        words = ["--processes", str(processes), "--health-file", str(stage.directory / "health.json"), *options]
        made.append(Supervised(stage, stage.worker(*words, waits=False)))
        return made[-1]

    yield start
    pids = [each for supervised in made for each in supervised.pids()]
    stage.close()
    for each in pids:
        if is_running(each):
            os.kill(each, signal.SIGKILL)


@pytest.mark.source("PQ-1", "JC-31")
@on_sqlite
def test_two_processes_share_the_work_are_replaced_when_killed_and_drain_together(
    stage: Scene, supervised: Any
) -> None:
    """F-01, F-06, P-24."""
    started = supervised("--concurrency", "2", "--grace", "30")
    started.until_states("working", "working")
    jobs = stage.start(*[gated() for _ in range(4)])
    stage.until_running(jobs)
    runners = {each["job"]: each["process"] for each in stage.notes("begin")}
    victim, other = sorted(set(runners.values()))

    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    until(lambda: len(stage.notes("begin")) == 6, "the jobs of the killed one run again", 40)

    again = stage.notes("begin")[4:]
    assert {each["job"] for each in again} == {job for job, process in runners.items() if process == victim}
    assert {each["process"] for each in again}.isdisjoint({victim, other})
    assert min(each["at"] for each in again) - killed > 1  # and so it was not started sooner
    assert f"pid {victim}, has ended: killed by SIGKILL" in started.said
    started.until_states("working", "working")
    assert holdfast("health", str(stage.directory / "health.json"), cwd=stage.directory).returncode == 0

    started.send_all(signal.SIGTERM)
    until(lambda: started.said.count("worker_drains") == 2, "both drain")
    stage.open()

    assert started.process.exit_code() == 0, started.said
    stage.assert_each_completed_once()


@on_sqlite
def test_workers_whose_supervisor_was_killed_drain_by_themselves(stage: Scene, supervised: Any) -> None:
    started = supervised("--grace", "30")
    started.until_states("working", "working")
    pids = started.pids()
    stage.until_running(stage.start(gated()))

    started.process.kill()
    until(lambda: started.said.count("worker_drains") == 2, "both notice and drain")
    (late,) = stage.start(quick())
    stage.open()
    until(lambda: not any(map(is_running, pids)), "both end", 30)

    assert started.said.count("supervisor_gone") == 2
    rows = dict(stage.rows("SELECT task, status FROM holdfast_job"))
    assert rows == {"gated": "completed", "quick": "pending"}
    assert [each["job"] for each in stage.notes("begin") if each["job"] == str(late)] == []


def test_an_application_that_cannot_be_used_is_told_at_once_and_is_not_imported_by_the_supervisor(
    tmp_path: Path,
) -> None:
    """P-24."""
    (tmp_path / "shop.py").write_text("import os\nopen('imported', 'a').write(f'{os.getpid()}\\n')\n")

    told = holdfast("worker", "shop:jobs", "--processes", "2", cwd=tmp_path)

    assert told.returncode == 2
    assert "module 'shop' has no 'jobs'" in told.stderr
    assert "process_starts_again" not in told.stderr
    started = set(re.findall(r"Started worker process \d, pid (\d+)", told.stderr))
    assert set((tmp_path / "imported").read_text().split()) <= started
    assert len(started) == 2


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket that systemd listens at."""
    with listening_systemd(tmp_path / "notify") as listening:
        yield listening


@on_sqlite
def test_a_worker_alone_has_a_health_file_and_tells_systemd_too(stage: Scene, systemd: socket.socket) -> None:
    file = stage.directory / "health.json"
    worker = stage.worker("--health-file", str(file), NOTIFY_SOCKET=systemd.getsockname(), WATCHDOG_USEC="500000")
    stage.until_running(stage.start(gated()))

    assert hear(systemd, "READY")["WATCHDOG"] == "1"
    until(lambda: hear(systemd, "STATUS")["STATUS"] == "1 working; 1 job running", "systemd hears of the job")
    assert holdfast("health", str(file), cwd=stage.directory).returncode == 0
    worker.send(signal.SIGUSR1)
    until(lambda: "Health: process 1, working" in worker.said, "its health is logged")
    worker.send(signal.SIGTERM)
    assert hear(systemd, "STOPPING") == {"STOPPING": "1"}
    # a report that was made just before may still come
    until(lambda: hear(systemd, "STATUS")["STATUS"] == "1 draining; 1 job running", "systemd hears that it drains")
    stage.open()
    assert worker.exit_code() == 0
    assert not file.exists()


@pytest.mark.long
@on_both
def test_twenty_long_jobs_complete_beside_one_that_takes_its_processes_down(stage: Scene, supervised: Any) -> None:
    """F-07, P-24."""
    stage.start(*[gated() for _ in range(20)])
    (guilty,) = stage.start(deadly())
    started = supervised("--concurrency", "30")

    until(lambda: len(deaths(stage)) == 2, "two processes die of it", 60)
    stage.open()
    until(lambda: stage.statuses() == {"completed": 20, "failed": 1}, "the innocent complete", 100)

    assert stage.rows("SELECT reason FROM holdfast_job WHERE id = :id", id=str(guilty)) == [("poison",)]
    assert set(stage.completions().values()) == {1}
    assert len(deaths(stage)) == 3
    assert started.process.is_alive
    assert started.said.count("has ended: exit code 9") == 2  # the third time it runs in a child process
    assert started.said.count("child_died") == 1
    waits = [float(each) for each in re.findall(r"process \d starts again in ([\d.]+) s", started.said)]
    assert len(waits) == 2
    assert min(waits) >= 1
    started.until_states("working", "working")


def deaths(stage: Scene) -> list[dict[str, Any]]:
    return [each for each in stage.notes("begin") if each["task"] == "deadly"]


@pytest.mark.long
def test_without_a_database_all_are_tried_again_until_it_is_there(own_server: PostgresServer, tmp_path: Path) -> None:
    with scene(own_server.url, tmp_path) as stage:
        (job,) = stage.start(quick())
        file = str(tmp_path / "health.json")
        stop(own_server)
        process = stage.worker("--processes", "2", "--health-file", file, waits=False, HOLDFAST_DEADLINE_SECONDS="1")
        supervised = Supervised(stage, process)
        until(lambda: process.said.count("has ended: exit code 5") >= 4, "both are tried again", 60)
        supervised.until_states("down", "down")

        told = holdfast("health", file, cwd=tmp_path)
        lives = holdfast("health", file, "--liveness", cwd=tmp_path)
        own_server.start()
        supervised.until_states("working", "working", seconds=60)
        stage.until_running([job])
        process.send(signal.SIGTERM)

        assert (told.returncode, lives.returncode) == (1, 0)
        assert "process 1 is down (exit code 5)" in told.stdout
        assert process.exit_code() == 0
        stage.assert_each_completed_once()


def stop(server: PostgresServer) -> None:
    try:
        server.stop("immediate")
    except NotOurServer as error:
        pytest.skip(str(error))


@pytest.mark.long
@on_sqlite
def test_a_second_ctrl_c_ends_all_processes_at_once(stage: Scene, supervised: Any) -> None:
    """F-06."""
    started = supervised("--grace", "60")
    started.until_states("working", "working")
    pids = started.pids()
    stage.until_running(stage.start(gated_thread(gate="never"), gated(gate="never")))
    started.process.send(signal.SIGINT)
    until(lambda: started.said.count("worker_drains") == 2, "both drain")

    started.process.send(signal.SIGINT)

    assert started.process.exit_code(5) == 130
    until(lambda: not any(map(is_running, pids)), "they end as well", 5)


@pytest.mark.long
@on_both
def test_what_is_not_done_in_the_grace_time_is_given_back_by_every_process(stage: Scene, supervised: Any) -> None:
    """I-50."""
    started = supervised("--grace", "1", "--concurrency", "2")
    started.until_states("working", "working")
    stage.until_running(stage.start(cleans_up(), cleans_up(), gated_thread(gate="never"), gated_thread(gate="never")))

    started.process.send(signal.SIGTERM)
    began = time.monotonic()

    assert started.process.exit_code() == 0, started.said
    assert time.monotonic() - began < 1 + 5 + NOISE
    assert stage.statuses() == {"pending": 4}


@pytest.mark.source("DF-34")
@pytest.mark.long
@on_both
def test_a_rolling_restart_completes_what_runs_and_loses_nothing(stage: Scene, supervised: Any) -> None:
    started = supervised("--concurrency", "2", "--grace", "30")
    started.until_states("working", "working")
    before = set(started.pids())
    stage.until_running(stage.start(*[gated() for _ in range(4)]))

    started.process.send(signal.SIGHUP)
    until(lambda: "worker_drains" in started.said, "the first one drains")
    stage.open()
    stage.start(*[quick(n=n) for n in range(50)])
    until(lambda: len(pids := set(started.pids())) == 2 and pids.isdisjoint(before), "both are replaced", 40)
    stage.until_all("completed")

    stage.assert_each_completed_once()
    assert stage.rows("SELECT count(*) FROM holdfast_job WHERE attempt > 1") == [(0,)]
