"""`holdfast worker` as a person runs it: what it says when it cannot run."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.supervisor.run import SPARE_SECONDS, woken_by_signals
from holdfast.worker.shutdown import LAST_SECONDS
from tests.support.processes import forked


def holdfast(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("holdfast")), *arguments]
    return forked.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=cwd, env={**os.environ, **environment}
    )


def test_python_m_stands_for_the_command(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "holdfast", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
    )

    assert (told.returncode, told.stdout) == (0, holdfast("--version", cwd=tmp_path).stdout)


APP = """
from holdfast import Holdfast
jobs = Holdfast({database!r})
number = 7
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with a module `shop` in it."""
    (tmp_path / "shop.py").write_text(APP.format(database=str(tmp_path / "jobs.db")))
    (tmp_path / "broken.py").write_text("import not_installed_anywhere\n")
    return tmp_path


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("shop", "write module:attribute"),
        (":jobs", "write module:attribute"),
        ("shpo:jobs", "there is no module 'shpo' here"),
        ("shop.jobs:hf", "there is no module 'shop.jobs'"),
        ("shop:hf", "has no 'hf'; there is jobs"),
        ("shop:number", "is of type int, not Holdfast; there is jobs"),
    ],
)
def test_a_wrong_place_is_one_line_that_says_what_to_write(shop: Path, place: str, says: str) -> None:
    told = holdfast("worker", place, cwd=shop)

    assert told.returncode == 2
    assert says in told.stderr
    assert "Traceback" not in told.stderr


def test_a_module_that_cannot_be_imported_shows_why(shop: Path) -> None:
    told = holdfast("worker", "broken:hf", cwd=shop)

    assert told.returncode == 1
    assert "No module named 'not_installed_anywhere'" in told.stderr


def test_a_database_that_cannot_be_reached_is_one_line(shop: Path) -> None:
    (shop / "away.py").write_text(APP.format(database="postgresql://nobody@127.0.0.1:9/none?connect_timeout=1"))

    told = holdfast("worker", "away:jobs", cwd=shop, HOLDFAST_DEADLINE_SECONDS="1")

    assert told.returncode == 5
    assert told.stderr.startswith(("holdfast:", "database_unavailable"))
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_health_file_that_cannot_be_written_is_one_line(shop: Path, processes: str) -> None:
    told = holdfast("worker", "shop:jobs", "--health-file", "nowhere/health.json", "--processes", processes, cwd=shop)

    assert told.returncode == 2
    assert "holdfast: cannot write the health file nowhere/health.json: No such file" in told.stderr
    assert "Traceback" not in told.stderr


def test_help_has_an_example_and_the_exit_codes(shop: Path) -> None:
    told = holdfast("worker", "--help", cwd=shop)

    assert "holdfast worker shop.jobs:hf --queues mail,reports" in told.stdout
    assert "Exit codes: 0" in told.stdout


WORKING_APP = """
import time
from holdfast import Holdfast

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep({slow_seconds})

slow = Slow()
jobs = Holdfast({database!r})

@jobs.task
def say() -> None:
    print("ran", flush=True)
"""


@contextmanager
def working(directory: Path, *options: str, slow_seconds: float) -> Iterator[subprocess.Popen[str]]:
    """Run a worker that has run one job, and now waits."""
    app = WORKING_APP.format(database=str(directory / "jobs.db"), slow_seconds=slow_seconds)
    (directory / "working.py").write_text(app)
    start = "import working; working.jobs.sync.start(working.say())"
    subprocess.run([sys.executable, "-c", start], cwd=directory, check=True, timeout=60)
    command = [str(Path(sys.executable).with_name("holdfast")), "worker", "working:jobs", *options]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ran\n"
            yield process
        finally:
            process.kill()


async def test_a_signal_that_another_thread_takes_wakes_the_loop_of_a_worker() -> None:
    loop, heard, has_waited_long = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.call_later(10, has_waited_long.set)  # what wakes the loop if the signal does not
    before = signal.signal(signal.SIGUSR2, lambda *_: loop.call_soon_threadsafe(heard.set))
    main = threading.main_thread().ident or 0

    def take_signal() -> None:
        while sys._current_frames()[main].f_code.co_name != "select":
            time.sleep(0.005)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)

    other = threading.Thread(target=take_signal, daemon=True)
    try:
        with woken_by_signals(loop):
            other.start()
            await heard.wait()
    finally:
        signal.signal(signal.SIGUSR2, before)

    assert not has_waited_long.is_set()


@pytest.mark.long
def test_a_worker_that_has_drained_ends_with_0_even_if_the_interpreter_ends_slowly(tmp_path: Path) -> None:
    with working(tmp_path, "--grace", "0", slow_seconds=LAST_SECONDS + SPARE_SECONDS + 0.5) as process:
        process.send_signal(signal.SIGTERM)

        assert process.wait(20) == 0
