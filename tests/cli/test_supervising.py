"""The supervisor, with small processes in the place of workers: who is started again and when, and who ends how."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeAlias

import pytest

from holdfast.supervisor.process_slot import HEALTHY_SECONDS, MOST_SECONDS, Backoff
from holdfast.supervisor.supervisor import worst
from holdfast.supervisor.worker_process import how_it_ended
from tests.acceptance.processes import is_running, until
from tests.cli import small_workers
from tests.support.processes import forked
from tests.support.processes.listening_systemd import hear, listening_systemd

# when it starts again


class Always(Random):
    """Chance that always gives the same."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def random(self) -> float:
        return self._value


def test_each_restart_waits_twice_as_long_as_the_last_one_up_to_half_a_minute() -> None:
    restarts, waits, now = Backoff(Always(0.0)), [], 0.0

    for _ in range(8):
        restarts.started(now)
        waits.append(restarts.after_end(now) - now)
        now += 100

    assert waits == [1, 2, 4, 8, 16, MOST_SECONDS, MOST_SECONDS, MOST_SECONDS]


def test_chance_makes_a_restart_later_and_never_sooner() -> None:
    assert Backoff(Always(0.0)).after_end(0.0) == 1
    assert 1 < Backoff(Always(0.999)).after_end(0.0) < 1.5


@pytest.mark.parametrize(("worked_seconds", "wait"), [(HEALTHY_SECONDS - 1, 4.0), (HEALTHY_SECONDS, 1.0)])
def test_after_a_minute_of_work_restarts_are_quick_again(worked_seconds: float, wait: float) -> None:
    restarts = Backoff(Always(0.0))
    for _ in range(2):
        restarts.started(0.0)
        restarts.after_end(0.0)

    restarts.started(1_000.0)
    restarts.worked(1_010.0)

    assert restarts.after_end(1_010.0 + worked_seconds) == 1_010.0 + worked_seconds + wait


def test_a_process_that_lives_long_but_never_works_is_not_started_sooner() -> None:
    restarts = Backoff(Always(0.0))
    restarts.started(0.0)
    restarts.after_end(0.0)

    restarts.started(10.0)

    assert restarts.after_end(10_000.0) == 10_002.0


def test_what_was_told_to_end_is_replaced_at_once_but_never_twice_in_a_second() -> None:
    restarts = Backoff(Always(0.0))
    restarts.started(10.0)

    assert restarts.soonest(10.25) == 11.0
    assert restarts.soonest(20.0) == 20.0


# how they end


def test_an_end_is_told_in_words() -> None:
    assert how_it_ended(0) == "exit code 0"
    assert how_it_ended(-signal.SIGKILL) == "killed by SIGKILL"
    assert how_it_ended(-signal.SIGRTMIN - 3) == f"killed by signal {signal.SIGRTMIN + 3}"


@pytest.mark.parametrize(
    ("codes", "code"), [([], 0), ([0, 0], 0), ([0, 5], 5), ([5, 1], 1), ([1, 2, 0], 2), ([-9], 1), ([5, 77], 1)]
)
def test_the_worst_of_the_exit_codes_counts(codes: list[int], code: int) -> None:
    found = 0
    for each in codes:
        found = worst(found, each)

    assert found == code


# at work


@dataclass(slots=True)
class Supervised:
    """A supervisor that runs, and its small workers."""

    directory: Path
    process: forked.Popen

    @property
    def said(self) -> str:
        """All that it has logged."""
        return (self.directory / "log").read_text()

    def states(self) -> list[str]:
        """Say what its health file calls its processes."""
        return [each["state"] for each in self.health()["processes"]]

    def health(self) -> Any:
        """Read its health file."""
        try:
            return json.loads((self.directory / "health.json").read_bytes())
        except FileNotFoundError:
            return {"processes": []}

    def pids(self, number: int | str) -> list[int]:
        """Name the processes that were started in a place."""
        return [int(each["pid"]) for each in self._notes(number, "start")]

    def waits(self, number: int) -> list[float]:
        """Say how long it was from each end of a process in a place to the start of the next one."""
        starts, ends = ([float(each["at"]) for each in self._notes(number, what)] for what in ("start", "end"))
        return [start - end for start, end in zip(starts[1:], ends, strict=False)]

    def until_said(self, text: str, times: int = 1) -> None:
        """Wait until it has logged *text*."""
        until(lambda: self.said.count(text) >= times, f"it says {text}, {times} times", 30)

    def until_states(self, *states: str) -> None:
        """Wait until its health file calls its processes so."""
        until(lambda: self.states() == list(states), f"they are {states}", 30)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def exit_code(self) -> int:
        """Wait for its end."""
        return int(self.process.wait(40))

    def _notes(self, number: int | str, what: str) -> list[dict[str, str]]:
        found = small_workers.notes(self.directory)
        return [each for each in found if each["number"] == str(number) and each["what"] == what]


Supervise: TypeAlias = Callable[..., Supervised]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    """Start a supervisor of small workers, which do what is ordered for each place."""
    made: list[Supervised] = []

    def supervise(
        *orders: str, grace: float = 20, terminal: str | None = None, environment: dict[str, str] | None = None
    ) -> Supervised:
        for number, order in enumerate(orders, 1):
            (tmp_path / f"orders-{number}").write_text(order)
        words = [str(tmp_path), str(len(orders)), str(grace), *([] if terminal is None else [terminal])]
        with (tmp_path / "log").open("wb") as log:
            process = forked.Popen(
                [sys.executable, small_workers.__file__, *words],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        made.append(Supervised(tmp_path, process))
        return made[-1]

    yield supervise
    for each in made:
        if each.process.poll() is None:
            each.process.kill()
            each.process.wait()
        for note in small_workers.notes(tmp_path):
            if is_running(int(note["pid"])):
                os.kill(int(note["pid"]), signal.SIGKILL)


@pytest.mark.source("DF-32")
def test_a_process_that_ends_is_started_again_after_a_second_and_then_two(supervise: Supervise) -> None:
    supervised = supervise("work", "fall--9 fall-1")
    until(lambda: len(supervised.pids(2)) == 3, "the second one is started again and again", 40)

    assert 1.0 <= supervised.waits(2)[0] < supervised.waits(2)[1]
    assert supervised.waits(2)[1] >= 2.0
    assert len(supervised.pids(1)) == 1
    ended = f"WARNING Worker process 2, pid {supervised.pids(2)[0]}, has ended: killed by SIGKILL [process_ended]"
    assert ended in supervised.said
    assert "has ended: exit code 1" in supervised.said


def test_one_that_could_not_reach_its_database_is_started_again(supervise: Supervise) -> None:
    supervised = supervise("leave-5", "leave-5")

    supervised.until_states("working", "working")

    assert len(supervised.pids(1)) == len(supervised.pids(2)) == 2
    assert supervised.process.poll() is None


@pytest.mark.parametrize("code", [1, 2])
def test_one_that_cannot_be_used_at_its_first_start_ends_the_whole_with_its_code(
    supervise: Supervise, code: int
) -> None:
    supervised = supervise("work", f"leave-{code}", "linger")

    assert supervised.exit_code() == code
    assert all(len(supervised.pids(each)) <= 1 for each in (1, 2, 3))
    assert not any(is_running(each) for number in (1, 2, 3) for each in supervised.pids(number))


def test_one_that_cannot_be_used_any_more_is_tried_again(supervise: Supervise) -> None:
    supervised = supervise("fall-0 leave-2")

    until(lambda: len(supervised.pids(1)) == 3, "it is tried again", 40)
    supervised.until_states("working")


def test_the_first_signal_drains_all_and_the_second_is_not_needed(supervise: Supervise) -> None:
    supervised = supervise("work", "work")
    supervised.until_states("working", "working")

    supervised.send(signal.SIGTERM)

    assert supervised.exit_code() == 0
    assert len(supervised.pids(1)) == len(supervised.pids(2)) == 1
    assert not (supervised.directory / "health.json").exists()


def test_nobody_is_started_again_while_it_drains(supervise: Supervise) -> None:
    supervised = supervise("work", "stay", grace=60)
    supervised.until_states("working", "working")
    supervised.send(signal.SIGTERM)

    supervised.until_states("ended", "draining")
    os.kill(supervised.pids(2)[0], signal.SIGKILL)

    assert supervised.exit_code() == 1
    assert len(supervised.pids(1)) == len(supervised.pids(2)) == 1


@pytest.mark.long
def test_one_that_does_not_end_in_its_time_is_killed(supervise: Supervise) -> None:
    supervised = supervise("stay", "work", grace=0)
    supervised.until_states("working", "working")

    supervised.send(signal.SIGTERM)

    assert supervised.exit_code() == 1
    assert "process_does_not_end" in supervised.said
    assert not is_running(supervised.pids(1)[0])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_all_at_once(supervise: Supervise, number: signal.Signals, code: int) -> None:
    supervised = supervise("stay", "linger", grace=60)
    supervised.until_states("working", "starting")
    until(lambda: supervised.pids(2) and supervised.pids("helper-1"), "all are there", 40)
    supervised.send(number)
    supervised.until_said("supervisor_drains")

    supervised.send(number)

    assert supervised.exit_code() == code
    everybody = [each for place in (1, "helper-1", 2) for each in supervised.pids(place)]
    until(lambda: not any(map(is_running, everybody)), "they end as well", 40)


@pytest.fixture
def terminal() -> Iterator[tuple[int, str]]:
    """The far end of a terminal, and the name of the near one."""
    far, near = os.openpty()
    name = os.ttyname(near)
    os.close(near)
    try:
        yield far, name
    finally:
        os.close(far)


def test_one_ctrl_c_in_a_terminal_is_one_signal(supervise: Supervise, terminal: tuple[int, str]) -> None:
    far, name = terminal
    supervised = supervise("stay", "work", grace=60, terminal=name)
    supervised.until_states("working", "working")

    os.write(far, b"\x03")
    supervised.until_states("draining", "ended")

    assert is_running(supervised.pids(1)[0])  # Ctrl-C itself did not reach it
    os.write(far, b"\x03")
    assert supervised.exit_code() == 130


def test_a_terminal_that_is_closed_ends_it(supervise: Supervise) -> None:
    far, near = os.openpty()
    supervised = supervise("work", "work", terminal=os.ttyname(near))
    supervised.until_states("working", "working")

    supervised.send(signal.SIGHUP)  # by the shell
    os.close(near)
    os.close(far)

    assert supervised.exit_code() == 0


@pytest.mark.parametrize("late", [signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_that_comes_too_late_does_not_change_how_it_ends(supervise: Supervise, late: signal.Signals) -> None:
    """As the kernel's, when the terminal is closed whose shell has sent one before."""
    supervised = supervise("work", environment={"LATE_SIGNAL": str(int(late))})
    supervised.until_states("working")

    supervised.send(signal.SIGTERM)

    assert supervised.exit_code() == 0


def test_sighup_replaces_one_after_the_other(supervise: Supervise) -> None:
    supervised = supervise("work", "work")
    supervised.until_states("working", "working")

    supervised.send(signal.SIGHUP)
    until(lambda: len(supervised.pids(2)) == 2, "both are replaced", 40)
    supervised.until_states("working", "working")

    numbers = [each["number"] for each in small_workers.notes(supervised.directory)[2:]]
    assert numbers == ["1", "1", "2", "2"]
    assert supervised.process.poll() is None


def test_a_replacement_that_does_not_work_costs_no_more_than_one(supervise: Supervise) -> None:
    supervised = supervise("work leave-2 leave-2 leave-2 leave-2 leave-2", "work")
    supervised.until_states("working", "working")

    supervised.send(signal.SIGHUP)
    until(lambda: len(supervised.pids(1)) == 3, "the first one is tried again", 40)

    assert len(supervised.pids(2)) == 1
    assert is_running(supervised.pids(2)[0])


def test_sigusr1_has_the_health_of_each_logged(supervise: Supervise) -> None:
    supervised = supervise("work", "linger")
    supervised.until_states("working", "starting")

    supervised.send(signal.SIGUSR1)

    supervised.until_said("process_health", 2)
    assert f"Health: process 1, working, pid {supervised.pids(1)[0]}, 1 running" in supervised.said
    assert "Health: process 2, starting" in supervised.said


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no other process than the first one takes in orphans")
def test_orphans_that_end_are_collected(supervise: Supervise) -> None:
    supervised = supervise("orphan", "work")
    until(lambda: supervised.pids("orphan"), "there is an orphan", 40)

    (supervised.directory / "release").touch()

    (orphan,) = supervised.pids("orphan")
    until(lambda: not Path(f"/proc/{orphan}").exists(), "nothing is left of it", 40)
    supervised.until_states("working", "working")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets us change the limits of another process")
def test_a_process_that_cannot_be_started_is_tried_again(supervise: Supervise) -> None:
    """F-10."""
    supervised = supervise("fall-1 fall-1 fall-1 fall-1")  # so that we may be late by seconds
    supervised.until_states("down")
    limits = resource.prlimit(supervised.process.pid, resource.RLIMIT_NOFILE)

    resource.prlimit(supervised.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    supervised.until_said("Worker process 1 could not be started: OSError: [Errno 24] Too many open files")
    before = len(supervised.pids(1))
    resource.prlimit(supervised.process.pid, resource.RLIMIT_NOFILE, limits)

    until(lambda: len(supervised.pids(1)) > before, "it is tried again", 40)


# systemd


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket that systemd listens at."""
    with listening_systemd(tmp_path / "notify") as listening:
        yield listening


def test_systemd_is_told_when_all_work_that_they_live_and_when_they_stop(
    supervise: Supervise, systemd: socket.socket
) -> None:
    told = {"NOTIFY_SOCKET": systemd.getsockname(), "WATCHDOG_USEC": "400000"}
    supervised = supervise("work", "leave-5", environment=told)

    first = hear(systemd, "STATUS")
    assert "READY" not in first
    assert hear(systemd, "READY")["STATUS"] == "2 working; 2 jobs running"
    assert len(supervised.pids(2)) == 2
    assert hear(systemd, "WATCHDOG")["WATCHDOG"] == "1"
    assert "READY" not in hear(systemd, "STATUS")
    supervised.send(signal.SIGTERM)
    assert hear(systemd, "STOPPING") == {"STOPPING": "1"}
    assert supervised.exit_code() == 0
