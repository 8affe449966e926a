"""F-10: no descriptors, no threads: what cannot be done says so, what runs is finished, nobody turns in circles."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.threads import ThreadPool, Threads
from tests.acceptance.jobs_of_tests import gated_thread, in_blocks, quick
from tests.acceptance.scene import Scene, scene
from tests.disk.running import ROOT
from tests.disk.starved import WATCHED_SECONDS
from tests.store.notes import add, new_store, numbers
from tests.support.faults.strace import Strace
from tests.support.processes import forked

NO_THREADS = "clone,clone3:error=EAGAIN"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Scene]:
    """Real workers on a file."""
    with scene(str(tmp_path / "jobs.db"), tmp_path) as made:
        yield made


@contextmanager
def no_threads() -> Iterator[None]:
    """Let no thread be started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", _refuse)
        yield


def _refuse(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_descriptors_a_worker_claims_nothing_says_why_and_goes_on_when_there_are_some(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.disk.starved", str(tmp_path / "jobs.db")]
    ran = forked.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["refused"].startswith("Unavailable: ")
    assert "ulimit -n" in found["refused"]
    assert found["results"] == [1, 2, 3]
    assert found["is_well"]
    assert found["busy_seconds"] < WATCHED_SECONDS / 2


def test_without_threads_plain_handlers_wait_for_one_and_each_runs_once(strace: Strace, stage: Scene) -> None:
    """I-23: they were failed, twenty times each; and once a thread was free, they ran twenty times as well."""
    worker = stage.worker("--poll", "0.1")
    first = stage.start(gated_thread())
    stage.until_running(first)

    with strace.injecting(worker.id, NO_THREADS):
        waiting = stage.start(gated_thread(), gated_thread())
        others = stage.start(quick(), in_blocks())
        stage.until_running(others)
        stage.open()
        stage.until_all("completed")

    begun = [each["job"] for each in stage.notes("begin")]
    assert sorted(begun) == sorted(str(each) for each in (*first, *waiting, *others))
    assert stage.rows("SELECT max(used), max(attempt) FROM holdfast_job") == [(1, 1)]
    stage.assert_each_completed_once()


def test_a_call_that_no_thread_can_be_made_for_waits_for_one_that_is_there() -> None:
    let_go = threading.Event()
    with ThreadPool(4, "tested") as pool:
        pool.make_ready()
        busy = pool.submit(let_go.wait, 30)
        with no_threads():
            waits = pool.submit(int, "7")
        is_done_early = waits.done()
        let_go.set()

        assert busy.result(30)
        assert waits.result(30) == 7
        assert not is_done_early


async def test_a_call_is_refused_where_there_is_no_thread_at_all_and_never_runs() -> None:
    ran: list[int] = []
    threads = Threads()
    with no_threads(), pytest.raises(Unavailable, match="ulimit -u"):
        await threads.call(lambda: ran.append(1))

    await threads.call(lambda: ran.append(2))

    assert ran == [2]
    threads.close()


async def test_a_write_is_refused_where_the_writer_has_no_thread_and_never_happens(tmp_path: Path) -> None:
    store = new_store(tmp_path / "jobs.db")
    with no_threads(), pytest.raises(Unavailable, match="ulimit -u"):
        await store.run(add, 1)

    assert await store.run(add, 2) == 2
    assert store.read_sync(numbers) == [2]
    store.close_sync()
