"""Webhooks and what may happen to real workers: every delivery arrives after all, under the id that it had before."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.models import INTERNAL_QUEUE
from holdfast.webhooks.receivers import RECEIVER_TURNS
from tests.acceptance.crash_cases import TOLD, cases, places
from tests.acceptance.jobs_of_tests import quick
from tests.acceptance.play import REACHED, let_leases_be_over, rob, trapped
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene, scene

SETTINGS = {"webhook_http": "true", "webhook_ports": "null", "webhook_private_addresses": "true"}


class Mailbox:
    """A receiver that answers nobody until it is opened; what has come, by webhook-id."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.posts: list[tuple[str, str]] = []
        """The webhook-id of each request, and the job that it is about."""
        box = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                box.posts.append((self.headers["webhook-id"], body["data"]["job"]["id"]))
                box.gate.wait(60)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: Any) -> None:
                """Bear that whoever has asked is dead."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/"


@contextmanager
def mailbox() -> Iterator[Mailbox]:
    box = Mailbox()
    thread = threading.Thread(target=box.server.serve_forever)
    thread.start()
    try:
        yield box
    finally:
        box.gate.set()
        box.server.shutdown()
        thread.join()
        box.server.server_close()


@pytest.fixture
def stage(stage_database: tuple[str, dict[str, str]], tmp_path: Path) -> Iterator[Scene]:
    """A scene whose webhooks may go to this machine."""
    database, settings = stage_database
    with scene(database, tmp_path, **settings, **SETTINGS) as made:
        yield made


def long(database: str, count: int) -> Any:
    return pytest.param(database, count, marks=[pytest.mark.long, pytest.mark.timeout(300)])


@pytest.mark.source("PQ-55", "DF-38")
@pytest.mark.parametrize(
    ("stage_database", "count"),
    [("sqlite", 12), long("sqlite", 100), long("postgres", 100)],
    indirect=["stage_database"],
)
def test_deliveries_that_a_killed_worker_had_are_all_made_after_a_restart(stage: Scene, count: int) -> None:
    """I-47, F-46: one is posted again at most, with the same id."""
    with mailbox() as box:
        worker = stage.worker("--concurrency", "12")
        box.gate.set()
        jobs = stage.start(quick(n=0).options(webhook=box.url))
        until(lambda: _count(stage, "completed") == 1, "the receiver has answered once, so that it gets more", 30)
        box.gate.clear()
        jobs += stage.start(*[quick(n=n).options(webhook=box.url) for n in range(1, count)])
        until(lambda: len(box.posts) == 1 + RECEIVER_TURNS, "as many as a receiver gets at once are under way", 30)
        until(lambda: _made(stage) == count, "all jobs are done, and the others wait", 30)
        worker.kill()
        interrupted = box.posts[1:]
        box.gate.set()
        stage.worker("--concurrency", "12")
        until(lambda: _count(stage, "completed") == count, "all are delivered", 120)

    again = [each for each in box.posts if box.posts.count(each) > 1]
    assert {job for _, job in box.posts} == {str(each) for each in jobs}
    assert len(dict(box.posts)) == len(set(box.posts)) == count
    assert set(again) == set(interrupted)
    assert all(job.webhook_sent for job in (stage.face.get_job(each) for each in jobs))


CASES = cases(TOLD)


@pytest.mark.parametrize(
    ("stage_database", "point", "mode"),
    places(CASES, {("sqlite", "deliver.after_post", "kill")}),
    indirect=["stage_database"],
)
def test_a_delivery_is_made_and_recorded_whatever_happens_on_the_way(stage: Scene, point: str, mode: str) -> None:
    """F-01, F-03, F-15, F-46, I-12, I-47: `test_crash_points` has the statements by which that is recorded."""
    with mailbox() as box:
        box.gate.set()
        (job,) = stage.start(quick(n=1).options(webhook=box.url))

        worker = stage.worker(waits=False, **trapped(f"{point}:1:{mode}"))
        until(
            lambda: not worker.is_alive or worker.is_stopped or (_count(stage, "completed") and REACHED in worker.said),
            "the worker dies, or stands still, or all is done",
            60,
        )
        if not worker.is_alive:
            assert (worker.exit_code(), mode) == (-signal.SIGKILL, "kill")
            let_leases_be_over(stage)
            stage.worker(waits=False)
        elif worker.is_stopped:
            rob(worker, stage)
        until(lambda: _count(stage, "completed") == 1, f"the delivery is recorded; {stage.logs()}", 60)

    assert REACHED in worker.said
    assert set(box.posts) == {box.posts[0]}
    assert box.posts[0][1] == str(job)
    assert stage.rows("SELECT event FROM holdfast_delivery") == [("job:completed",)]
    assert stage.face.get_job(job).webhook_sent
    stage.assert_each_completed_once()


def _made(stage: Scene) -> int:
    return int(stage.rows("SELECT count(*) FROM holdfast_delivery")[0][0])


def _count(stage: Scene, status: str) -> int:
    sql = "SELECT count(*) FROM holdfast_job WHERE queue = :queue AND status = :status"
    return int(stage.rows(sql, queue=INTERNAL_QUEUE, status=status)[0][0])
