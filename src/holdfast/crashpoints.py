"""Crash points: named places, at every commit boundary, where a test can have the process die, raise, stop or wait.

`HOLDFAST_CRASH=name[:n[:mode]]` arms one of them, at its n-th pass (the first, if not said). Modes: `kill` (SIGKILL to
itself; the default), `raise`, `stop` (SIGSTOP: every thread stands still until somebody continues it) or
`stop=<seconds>`, `delay=<seconds>` (only this thread), `cut` (every network connection of the process is shut; SQLite
has none). It is read once, when this module is imported, and logged; unset, `reach` does nothing.

A delivery of a webhook is a job like any other, so what is recorded of it goes by `complete` and its kin; the n-th step
of a migration is the n-th pass of `migrate.step`.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import InvalidSettings

VARIABLE = "HOLDFAST_CRASH"

POINTS = (
    "start.before_commit", "start.after_commit",
    "group.before_commit", "group.after_commit",
    "admit.after_lock", "admit.after_places", "admit.after_blockers",
    "claim.after_update", "claim.after_commit", "claim.before_handler",
    "child.after_outcome",
    "renew.before", "renew.after",
    "progress.after_commit",
    "prepare.before_commit", "prepare.after_commit",
    "begin_phase.before_commit", "begin_phase.after_commit",
    "phase.before_commit", "phase.after_commit",
    "complete.after_user_code", "complete.after_check", "complete.after_update", "complete.after_successor",
    "complete.after_promote", "complete.after_unblock", "complete.after_event", "complete.after_delivery",
    "complete.before_commit", "complete.after_commit",
    "flush.before_commit", "flush.after_commit",
    "outside.after_lock", "outside.before_commit", "outside.after_commit",
    "provided.before_commit", "provided.after_commit",
    "error.after_update", "error.after_commit",
    "snooze.after_update", "snooze.after_commit",
    "pause.after_update", "pause.after_commit",
    "giveback.after_update", "giveback.after_commit",
    "acknowledge.after_update", "acknowledge.after_commit",
    "cancel.after_update", "cancel.after_commit",
    "resume.after_update", "resume.after_commit",
    "retry.after_update", "retry.after_commit",
    "reschedule.after_update", "reschedule.after_commit",
    "start_again.after_update", "start_again.after_commit",
    "delete.after_update", "delete.after_commit",
    "skip.after_update", "skip.after_commit",
    "pause_lane.after_update", "pause_lane.after_commit",
    "resume_lane.after_update", "resume_lane.after_commit",
    "pause_queue.after_update", "pause_queue.after_commit",
    "resume_queue.after_update", "resume_queue.after_commit",
    "subscribe.after_update", "subscribe.after_commit",
    "unsubscribe.after_update", "unsubscribe.after_commit",
    "enable.after_update", "enable.after_commit",
    "disable.after_update", "disable.after_commit",
    "redeliver.after_update", "redeliver.after_commit",
    "deliver.after_post",
    "mark.after_update", "mark.after_commit",
    "retain.after_hook", "retain.after_delete", "retain.after_commit",
    "trim.after_update", "trim.after_commit",
    "reap.after_proof", "reap.after_update", "reap.after_commit",
    "migrate.step",
    "shutdown.after_stop_claim", "shutdown.after_giveback",
)  # fmt: skip
"""Every point there is; a test walks this list and fails for one that is never reached."""

MODES = ("kill", "raise", "cut", "stop", "delay")

logger = logging.getLogger(__name__)


class CrashPoint(Exception):
    """What a point in mode `raise` raises."""


@dataclass(slots=True)
class Trap:
    """An armed point."""

    name: str
    passes: int
    mode: str
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def parse(cls, text: str) -> Trap:
        """Read `name[:n[:mode]]`, or raise `InvalidSettings`."""
        name, passes, mode = [*text.split(":"), "", ""][:3]
        if name not in POINTS:
            raise InvalidSettings(f"{VARIABLE}: there is no crash point {name!r}; there are {', '.join(POINTS)}")
        kind, _, seconds = mode.partition("=")
        is_timed = kind == "delay" or mode.startswith("stop=")
        if kind not in ("", *MODES) or is_timed is not seconds.replace(".", "", 1).isdigit():
            raise InvalidSettings(f"{VARIABLE}: the modes are kill, raise, cut, stop, stop=<seconds>, delay=<seconds>")
        if passes and not passes.isdigit():
            raise InvalidSettings(f"{VARIABLE}: {passes!r} is no number of passes; write {name}:2")
        return cls(name, int(passes or 1), mode or "kill")

    def reach(self, name: str) -> None:
        """Spring, if this is the pass that was waited for; raise `LookupError` for a point that is not in the list."""
        if name not in POINTS:
            raise LookupError(f"{name} is no crash point; add it to POINTS")
        if name != self.name:
            return
        with self._lock:
            self.passes -= 1
            if self.passes != 0:
                return
        self._spring()

    def _spring(self) -> None:
        logger.warning("crash_point_reached", extra={"point": self.name, "mode": self.mode})
        kind, _, seconds = self.mode.partition("=")
        match kind:
            case "raise":
                raise CrashPoint(f"crash point {self.name}")
            case "delay":
                threading.Event().wait(float(seconds))
            case "stop":
                stop(float(seconds) if seconds else None)
            case "cut":
                cut_connections()
            case _:
                os.kill(os.getpid(), signal.SIGKILL)
                threading.Event().wait()  # the signal may take a moment, in which nothing more shall happen


def stop(seconds: float | None) -> None:
    """Stop this whole process; a child continues it after *seconds*, if they are given."""
    if seconds is not None:
        script = f"import os, signal, time; time.sleep({seconds}); os.kill({os.getpid()}, signal.SIGCONT)"
        subprocess.Popen([sys.executable, "-c", script])
    # to this very thread, which then goes no further; another would be a moment ahead of the rest
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def cut_connections() -> None:
    """Shut every connection of this process to another one, whoever uses it; files, pipes and listeners stay."""
    for descriptor in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        with suppress(OSError):  # not connected, or closed meanwhile
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    if connection.getpeername():  # an event loop wakes itself over a pair without names
                        connection.shutdown(socket.SHUT_RDWR)


_trap: Trap | None = None


def reach(name: str) -> None:
    """Pass the point *name*."""
    if _trap is not None:
        _trap.reach(name)


def is_armed() -> bool:
    """Tell whether any point is armed."""
    return _trap is not None


def arm(text: str | None) -> None:
    """Set the trap that *text* describes, as the environment variable does, or none."""
    global _trap
    _trap = Trap.parse(text) if text else None
    if _trap is not None:
        logger.warning("crash_point_set", extra={"point": _trap.name, "pass": _trap.passes, "mode": _trap.mode})


arm(os.environ.get(VARIABLE))
