"""A supervisor whose worker processes are this very file: small, and obedient to what the test has ordered.

    small_workers.py DIRECTORY PROCESSES GRACE [TERMINAL]

With LATE_SIGNAL in the environment the supervisor gets that signal when Python has given up its handlers, at its end.

What the nth process in a place does is the nth word of the file `orders-PLACE`, and `work` if there is none:

    work      says that it works, and ends with 0 at SIGTERM
    stay      says that it works, and does not heed SIGTERM; nor does a process that it has started
    linger    never says that it works
    leave-N   ends with the exit code N before it has said so; below zero, by that signal
    fall-N    says that it works, and then ends so
    orphan    works, and leaves a process behind that has ended
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

TAKE_IN_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER


def work(directory: Path, number: str, line: int) -> None:
    """Be a worker process."""
    order = next_order(directory, number)
    signal.signal(signal.SIGTERM, lambda *_: None if order == "stay" else leave(directory, number, 0))
    note(directory, number, "start")
    word, _, code = order.partition("-")
    if word == "leave":
        leave(directory, number, int(code))
    if word == "orphan":
        leave_an_orphan(directory)
    if word == "stay" and os.fork() == 0:
        number = f"helper-{number}"
        note(directory, number, "start")
        word = "linger"
    if word != "linger":
        os.write(line, json.dumps({"poll": 2.0, "health": {"id": f"small-{number}", "running": 1}}).encode() + b"\n")
    if word == "fall":
        leave(directory, number, int(code))
    while True:
        signal.pause()


def next_order(directory: Path, number: str) -> str:
    """Read what the process that is started now is to do."""
    before = sum(each["number"] == number and each["what"] == "start" for each in notes(directory))
    try:
        orders = (directory / f"orders-{number}").read_text().split()
    except FileNotFoundError:
        return "work"
    return orders[before] if before < len(orders) else "work"


def leave(directory: Path, number: str, code: int) -> None:
    """End with an exit code, or by a signal."""
    note(directory, number, "end")
    if code < 0:
        os.kill(os.getpid(), -code)
    os._exit(code)


def leave_an_orphan(directory: Path) -> None:
    """Have a process whose parent is gone, and which ends when the test wishes."""
    if os.fork() == 0:
        if os.fork() == 0:
            note(directory, "orphan", "start")
            while not (directory / "release").exists():
                time.sleep(0.01)
        os._exit(0)
    os.wait()


def note(directory: Path, number: str, what: str) -> None:
    """Write down what happens, whole."""
    line = {"number": number, "what": what, "pid": os.getpid(), "at": time.monotonic()}
    with (directory / "notes").open("ab", buffering=0) as file:
        file.write(json.dumps(line).encode() + b"\n")


def notes(directory: Path) -> list[dict[str, str]]:
    """Read what has happened, in whole lines."""
    try:
        text = (directory / "notes").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(each) for each in text.rpartition("\n")[0].splitlines()]


def supervise(directory: Path, processes: int, grace: float, terminal: str | None) -> int:
    """Be the supervisor, in a session of its own on *terminal*."""
    import ctypes

    from holdfast.logging import LogOptions, set_up_logging
    from holdfast.supervisor import reporting, supervisor

    ctypes.CDLL(None).prctl(TAKE_IN_ORPHANS, 1)  # as the first process of a container does
    if terminal is not None:
        os.setsid()
        os.dup2(os.open(terminal, os.O_RDWR), 0)  # the first one that is opened is that of the session
    set_up_logging(LogOptions())
    told = reporting.Reporting(directory / "health.json", reporting.Notifier.from_environment(os.environ))
    return supervisor.supervise(processes, grace, told)


class Late:
    """Sends this process a signal when it is forgotten, which a global is when nothing handles signals any more."""

    def __init__(self, number: int) -> None:
        self._send = partial(os.kill, os.getpid(), number)

    def __del__(self) -> None:
        self._send()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    supervised = os.environ.get("HOLDFAST_SUPERVISED")  # asked before anything is imported that takes its time
    if supervised is not None:
        work(place, supervised.partition(":")[0], int(supervised.partition(":")[2]))
    late = Late(int(os.environ["LATE_SIGNAL"])) if "LATE_SIGNAL" in os.environ else None
    sys.exit(supervise(place, int(sys.argv[2]), float(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None))
