"""A child whose worker is gone, or stands still, does not outlive it (F-05)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.runtime import spawn
from holdfast.store.jobs.claiming import Claimed, Token
from holdfast.worker.children.messages import JOB, Message, MessageReader, encode
from holdfast.worker.children.process import MODULE
from holdfast.worker.children.remote_attempt import FENCED
from holdfast.worker.children.tickets import END, TicketQueue
from tests.support.conditions import until
from tests.worker.children import application
from tests.worker.children.watching import PATIENCE, ends_as, gone, noted_pid

FOR_EVER = [1e12, 1e12]


class Bare:
    """A child without a worker: the test says what a worker would."""

    def __init__(self) -> None:
        self._line, theirs = socket.socketpair()
        self.tickets = TicketQueue()
        with theirs:
            self.process = spawn(MODULE, (theirs.fileno(), self.tickets.descriptor))
        self._lines = MessageReader()
        self._heard: list[Message] = []
        self._line.settimeout(60)
        self.say("begin", **BEGIN, parent=os.getpid())
        assert self.hear()["mistake"] is None

    def say(self, message: str, **facts: object) -> None:
        """Send a message."""
        self._line.sendall(encode(message, **facts))

    def hear(self) -> Message:
        """Wait for one message."""
        while not self._heard:
            self._heard += self._lines.feed(self._line.recv(65_536))
        return self._heard.pop(0)

    def run(self, task: Any, arguments: str) -> None:
        """Have it run a job that no database knows."""
        self.send_job(1, task, arguments, FOR_EVER)
        self.tickets.give([1])
        assert self.hear()["say"] == "taken"

    def send_job(self, number: int, task: Any, arguments: str, lease: list[float]) -> None:
        """Send such a job, which it may not begin yet."""
        job = Claimed(Token(number, 1, "nonce"), ID, ID, 0, task.name, "default", None, arguments, 1, 0, 0)
        self.say("run", number=number, job=JOB.dump_python(job, mode="json"), lease=lease)

    def hear_until_ended(self, number: int) -> list[Message]:
        """Wait until it has said that a job has ended; give all that it said."""
        heard = [self.hear()]
        while heard[-1]["say"] != "ended" or heard[-1]["number"] != number:
            heard.append(self.hear())
        return heard

    def close(self) -> None:
        """Be gone."""
        self._line.close()
        self.tickets.close()


ID = "01890000-0000-7000-8000-000000000001"
BEGIN = {
    "app": f"{application.__name__}:hf",
    "middleware": [],
    "main": None,
    "path": sys.path,
    "arguments": [],
    "worker": "worker-1",
    "megabytes": None,
    "tenant": None,
    "log": None,
}


@contextmanager
def bare_child() -> Iterator[Bare]:
    """Start a child, and leave none behind."""
    child = Bare()
    try:
        yield child
    finally:
        child.process.kill()
        child.process.wait()
        child.close()


def quoted(note: Path) -> str:
    """Write the arguments of a task that takes a note."""
    return f'{{"note":"{note}"}}'


def test_what_lies_in_the_directory_does_not_stand_in_for_what_python_brings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "select.py").write_text("raise ImportError('not this one')")
    monkeypatch.chdir(tmp_path)

    with bare_child():
        pass  # it has said hello


async def test_the_end_of_the_line_ends_a_child_at_once(note: Path) -> None:
    with bare_child() as child:
        child.run(application.say_pid_and_wait, quoted(note))
        assert await noted_pid(note) == child.process.pid

        child.close()

        assert child.process.wait(PATIENCE) == 0


async def test_a_handler_is_stopped_by_its_own_child_when_nobody_renews_its_lease(note: Path) -> None:
    """F-05, I-20."""
    with bare_child() as child:
        child.run(application.say_pid_and_wait, quoted(note))
        await noted_pid(note)
        child.say("lease", number=1, until=[monotonic()] * 2)

        ended = child.hear()

        assert ended["outcome"]["kind"] == "give back"
        assert ended["outcome"]["reason"] == "error"


@pytest.mark.long
async def test_a_child_ends_itself_if_its_handler_does_not_stop_then(note: Path) -> None:
    with bare_child() as child:
        child.run(application.hold_on, quoted(note))
        await noted_pid(note)
        child.say("lease", number=1, until=[monotonic()] * 2)

        assert child.process.wait(60) == FENCED


async def test_a_stop_that_comes_before_its_job_has_begun_is_not_lost(note: Path) -> None:
    with bare_child() as child:
        child.say("abort", number=1, reason="cancelled")
        child.run(application.say_pid_and_wait, quoted(note))

        assert child.hear()["outcome"]["kind"] == "cancel"


@pytest.fixture
def worker_process(tmp_path: Path, hf: Holdfast) -> Iterator[subprocess.Popen[bytes]]:
    """A worker in a process of its own, in a group of its own as in a terminal."""
    command = [sys.executable, "-m", "holdfast", "worker", f"{application.__name__}:hf"]
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "task", [application.hold_the_lock, pytest.param(application.say_pid_and_wait, marks=pytest.mark.long)]
)
async def test_a_child_dies_with_its_worker_whatever_it_does(
    hf: Holdfast, note: Path, task: Any, worker_process: subprocess.Popen[bytes]
) -> None:
    """F-01."""
    await hf.start(task(note=str(note)))
    pid = await noted_pid(note)

    worker_process.kill()

    await gone(pid)


@pytest.mark.long
async def test_a_child_stops_its_handler_when_its_worker_stands_still(
    hf: Holdfast, note: Path, tmp_path: Path, worker_process: subprocess.Popen[bytes]
) -> None:
    """F-05."""
    said = tmp_path / "said"
    chain = await hf.start(application.tell_why_it_stops(note=str(note), said=str(said)))
    await noted_pid(note)

    async def is_second() -> bool:
        return (await hf.get_job(chain)).attempt == 2

    worker_process.send_signal(signal.SIGSTOP)
    try:
        assert await _text_of(said) == "error"
        async with hf.worker(children=1):
            await until(is_second, "another worker has the job", PATIENCE)
            await hf.cancel(chain)
            await ends_as(hf, chain, "cancelled")
    finally:
        worker_process.send_signal(signal.SIGCONT)

    assert (await hf.get_job(chain)).status == "cancelled"


async def _text_of(path: Path) -> str:
    await until(lambda: path.exists() and path.read_text() != "", f"{path.name} is written", 60)
    return path.read_text()


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_to_all_processes_drains_the_worker_and_lets_its_child_come_to_its_end(
    hf: Holdfast, note: Path, gate: Path, worker_process: subprocess.Popen[bytes], number: signal.Signals
) -> None:
    chain = await hf.start(application.say_pid_and_wait_for(note=str(note), gate=str(gate)))
    pid = await noted_pid(note)

    os.killpg(worker_process.pid, number)
    os.kill(pid, number)
    gate.touch()

    assert await chain.result(timeout=PATIENCE) == pid
    assert worker_process.wait(PATIENCE) == 0
    await gone(pid)


@pytest.mark.parametrize("is_renewed", [False, True])
async def test_a_job_begins_in_its_turn_only_while_its_lease_is_good(note: Path, gate: Path, is_renewed: bool) -> None:
    """I-20."""
    with bare_child() as child:
        child.send_job(1, application.wait_unless_told, f'{{"note":"{note}","gate":"{gate}"}}', FOR_EVER)
        child.send_job(2, application.wait_unless_told, '{"note":"","gate":""}', [monotonic()] * 2)
        child.tickets.give([1, 2])
        await noted_pid(note)
        if is_renewed:
            child.say("lease", number=2, until=FOR_EVER)
        gate.touch()

        ended = [each for each in child.hear_until_ended(2) if each["say"] == "ended"]

        assert [each["outcome"]["kind"] for each in ended] == ["complete", "complete" if is_renewed else "give back"]


async def test_what_was_taken_back_does_not_begin_and_what_was_given_again_does(note: Path, gate: Path) -> None:
    with bare_child() as child:
        child.send_job(1, application.wait_unless_told, f'{{"note":"{note}","gate":"{gate}"}}', FOR_EVER)
        for number in (2, 3, 4):
            child.send_job(number, application.wait_unless_told, '{"note":"","gate":""}', FOR_EVER)
        child.tickets.give([1, 2, 3, 4])
        await noted_pid(note)

        assert child.tickets.take_back() == [2, 3, 4]
        assert child.tickets.take_back() == []
        child.tickets.give([2, 4])
        gate.touch()

        said = [(each["say"], each["number"]) for each in child.hear_until_ended(4)]
        assert said == [(say, number) for number in (1, 2, 4) for say in ("taken", "ended")]


async def test_a_number_may_come_before_its_job() -> None:
    with bare_child() as child:
        child.tickets.give([1])
        assert child.hear()["say"] == "taken"
        child.send_job(1, application.wait_unless_told, '{"note":"","gate":""}', FOR_EVER)

        assert child.hear()["outcome"] == {"kind": "complete", "output": str(child.process.pid)}


async def test_the_number_of_the_end_ends_a_child() -> None:
    with bare_child() as child:
        child.tickets.give([END])

        assert child.process.wait(PATIENCE) == 0
