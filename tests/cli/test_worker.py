"""`holdfast worker` as a person runs it: what it says when it cannot run."""

from __future__ import annotations

import asyncio
import json
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

from holdfast import Holdfast
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
        ("shop", "is not the import path of an object: write module, colon, name"),
        (":jobs", "is not the import path of an object: write module, colon, name"),
        ("shop.py:jobs", "is a file, not an import path; write `holdfast worker shop:jobs`"),
        ("shpo:jobs", "there is no module 'shpo' in "),
        ("shop.jobs:hf", "there is no module 'shop.jobs'"),
        ("shop:hf", "has no 'hf'; did you mean shop:jobs?"),
        ("shop:number", "shop:number is a int, not a Holdfast object; did you mean shop:jobs?"),
    ],
)
def test_a_wrong_place_is_one_line_that_says_what_to_write(shop: Path, place: str, says: str) -> None:
    told = holdfast("worker", place, cwd=shop)

    assert told.returncode == 2
    assert says in told.stderr
    assert "Traceback" not in told.stderr


def test_a_module_that_cannot_be_imported_shows_why(shop: Path) -> None:
    told = holdfast("worker", "broken:hf", cwd=shop)

    assert told.returncode == 2
    assert "No module named 'not_installed_anywhere'" in told.stderr


def test_a_database_that_cannot_be_reached_is_one_line(shop: Path) -> None:
    (shop / "away.py").write_text(APP.format(database="postgresql://nobody@127.0.0.1:9/none?connect_timeout=1"))

    told = holdfast("worker", "away:jobs", cwd=shop, HOLDFAST_DEADLINE_SECONDS="1")

    assert told.returncode == 5
    assert "holdfast: the database" in told.stderr
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


SPEAKING = """
import gc, logging, os, signal
from holdfast import Holdfast, Retry
{setup}
hf = Holdfast("jobs.db")
log = logging.getLogger("shop")

@hf.task(name="pack", retry=Retry.never())
async def pack(order: int) -> None:
    log.info("packing %s", order)
    raise ValueError("no box")

@hf.task(name="leave", run_in="process")
def leave(worker: int) -> None:
    log.info("leaving")
    os.kill(worker, signal.SIGTERM)

@hf.task(name="lead")
async def lead() -> None:
    log.info("collects %s", any(each is leave for each in gc.get_objects()))
    await hf.start(leave(worker=os.getpid()))

if __name__ == "__main__":
    hf.sync.start(pack(order=7))
    hf.sync.start(lead())
    hf.sync.close()
"""


def speaking_worker(place: Path, *options: str, setup: str = "") -> list[str]:
    """Run a worker in *place* whose one job fails and whose other ends it; give the lines of its log."""
    (place / "shop.py").write_text(SPEAKING.format(setup=setup))
    forked.run([sys.executable, "shop.py"], check=True, cwd=place, timeout=60)
    told = holdfast("worker", "shop:hf", *options, cwd=place)
    assert told.returncode == 0, told.stderr
    return told.stderr.splitlines()


def test_a_failing_job_is_seen_in_the_terminal_and_the_application_is_heard(tmp_path: Path) -> None:
    """B1."""
    said = speaking_worker(tmp_path)

    (failed,) = [n for n, line in enumerate(said) if line.endswith("failed for good in attempt 1 (attempts used up): "
                                                                  "ValueError: no box [job_failed]")]  # fmt: skip
    assert said[failed + 1] == "    Traceback (most recent call last):"
    assert 'raise ValueError("no box")' in said[failed + 3]
    (banner,) = [line for line in said if line.endswith("[worker_started]")]
    assert f"started on {tmp_path}/jobs.db: 100 slots, queues default, tasks lead, leave, pack" in banner
    (own,) = [line for line in said if "shop: packing 7 [job " in line]
    assert own.endswith(" task pack attempt 1]")
    assert [line for line in said if "shop: leaving [job " in line]  # of a child process
    assert [line for line in said if "shop: collects False [job " in line]  # what stays is left alone
    assert said[-2].endswith("[worker_stopped]")


def test_log_lines_are_json_if_they_are_asked_for(tmp_path: Path) -> None:
    """B1."""
    said = [json.loads(line) for line in speaking_worker(tmp_path, "--log-format", "json", "--log-level", "warning")]

    (failed,) = said
    assert (failed["event_name"], failed["level"], failed["task"], failed["attempt"]) == (
        "job_failed",
        "error",
        "pack",
        1,
    )
    assert failed["message"].endswith(": ValueError: no box")
    assert "raise ValueError" in failed["traceback"]


def test_an_application_that_sets_up_logging_keeps_it(tmp_path: Path) -> None:
    """B1."""
    said = speaking_worker(tmp_path, setup='logging.basicConfig(format="OWN %(message)s", level="INFO")')

    assert {"OWN packing 7", "OWN leaving"} <= set(said)
    assert [line for line in said if line.startswith("OWN Job ") and line.endswith("ValueError: no box")]
    assert not [line for line in said if "[worker_started]" in line]


TENANTS = """
import os, signal
from pathlib import Path
from holdfast import Holdfast
jobs = Holdfast({database!r}, tenants=True)

@jobs.task(name="note")
async def note(tenant: str) -> None:
    with Path({notes!r}).open("a") as file:
        print(tenant, file=file)
    if len(Path({notes!r}).read_text().split()) == 3:
        os.kill(os.getpid(), signal.SIGTERM)
"""


def test_a_worker_serves_the_tenants_that_it_is_told_with_their_slots(tmp_path: Path) -> None:
    database, notes = str(tmp_path / "jobs.db"), tmp_path / "notes"
    (tmp_path / "shop.py").write_text(TENANTS.format(database=database, notes=str(notes)))
    jobs = Holdfast(database, tenants=True)

    @jobs.task(name="note")
    async def note(tenant: str) -> None: ...

    for name, count in (("acme", 2), ("globex", 1)):
        jobs.sync.tenants.create(name)
        jobs.sync.tenant(name).start_many([note(tenant=name)] * count)
    jobs.sync.close()

    told = holdfast("worker", "shop:jobs", "--tenant", "acme=2", "--tenant", "*=1", "--no-webhooks", cwd=tmp_path)

    assert told.returncode == 0, told.stderr
    assert sorted(notes.read_text().split()) == ["acme", "acme", "globex"]


@pytest.mark.parametrize("wrong", ["acme", "acme=", "acme=many", "=4", "Acme=1"])
def test_a_tenant_without_its_slots_is_one_line(shop: Path, wrong: str) -> None:
    (shop / "shop.py").write_text(TENANTS.format(database=str(shop / "jobs.db"), notes="notes"))

    told = holdfast("worker", "shop:jobs", "--tenant", wrong, cwd=shop)

    assert told.returncode == 2
    assert "Traceback" not in told.stderr
    assert "--tenant" in told.stderr or "name of a tenant" in told.stderr


def test_a_tenant_has_one_number_of_slots(shop: Path) -> None:
    told = holdfast("worker", "shop:jobs", "--tenant", "acme=1", "--tenant", "acme=2", cwd=shop)

    assert told.returncode == 2
    assert "--tenant acme=2 comes after --tenant acme=1; give each tenant once" in told.stderr
