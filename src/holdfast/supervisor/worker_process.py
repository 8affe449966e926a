"""A worker process as its supervisor knows it, and the pipe between them.

The process has the writing end, and writes a line about its health every two seconds: the first one says that it works.
When the supervisor is gone, however that came about, writing fails, and the process drains by itself.

It leads a process group of its own, so that Ctrl-C in a terminal, which goes to a whole group, is for the supervisor
alone. Whoever else may send it SIGTERM as well, as systemd does to all it finds, cannot hurry it: it drains once.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
from collections.abc import MutableMapping, Sequence
from contextlib import suppress
from typing import Any, Self

from holdfast.supervisor.health import facts_of
from holdfast.worker.health import Health

VARIABLE = "HOLDFAST_SUPERVISED"
"""Tells a process the number of its slot, and the descriptor of its end of the pipe: `2:7`."""
MOST_BYTES = 65_536


class WorkerProcess:
    """A process that runs *command* in slot *number*; raises `OSError` if it cannot be started."""

    def __init__(self, command: Sequence[str], number: int) -> None:
        self.pipe, theirs = os.pipe()
        os.set_blocking(self.pipe, False)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,  # it is not in the group that may read from the terminal
                pass_fds=[theirs],
                process_group=0,
                env={**os.environ, VARIABLE: f"{number}:{theirs}"},
            )
        except BaseException:
            os.close(self.pipe)
            raise
        finally:
            os.close(theirs)
        self.heard_at: float | None = None
        self.is_silent = False
        self.poll = 0.0
        self.health: dict[str, Any] = {}
        self._unfinished = b""

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    @property
    def has_worked(self) -> bool:
        """Tell whether it has said that it works."""
        return self.heard_at is not None

    def read_pipe(self, now: float) -> None:
        """Read what it has written; of several lines the last one counts."""
        with suppress(BlockingIOError):
            while read := os.read(self.pipe, MOST_BYTES):
                *lines, self._unfinished = (self._unfinished + read).split(b"\n")
                with suppress(ValueError):
                    for parsed in map(json.loads, lines[-1:]):
                        self.health, self.poll, self.heard_at = dict(parsed["health"]), float(parsed["poll"]), now
            self.is_silent = True  # it has closed its end

    def terminate(self) -> None:
        """Tell it to drain; it was not collected yet, so the number is still its own."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it now, and whatever it has started that is still in its group."""
        os.killpg(self.pid, signal.SIGKILL)

    def close(self, code: int) -> None:
        """Let go of it; it was collected, and has ended with *code*."""
        self._process.returncode = code  # collected by us, not by `subprocess`
        os.close(self.pipe)


class SupervisorPipe:
    """The other end: where the process in slot *number* writes."""

    def __init__(self, number: int, descriptor: int) -> None:
        self.number = number
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Self | None:
        """Make it of what the supervisor has put there, and take that out; None if there is no supervisor."""
        number, _, descriptor = environment.pop(VARIABLE, "").partition(":")
        return cls(int(number), int(descriptor)) if number else None

    def write(self, health: Health, poll: float) -> bool:
        """Write the health of the worker; answer whether the supervisor is still there."""
        line = json.dumps({"poll": poll, "health": facts_of(health)}, ensure_ascii=False)
        try:
            os.write(self._descriptor, line.encode() + b"\n")
        except BlockingIOError:  # it does not read for the moment, and misses this one
            return True
        except OSError as error:
            return error.errno != errno.EPIPE
        return True


def how_it_ended(code: int) -> str:
    """Say in words how a process ended, by the number that Python has for it: below zero it is a signal."""
    if code >= 0:
        return f"exit code {code}"
    known = {each.value: each.name for each in signal.Signals}
    return f"killed by {known.get(-code, f'signal {-code}')}"
