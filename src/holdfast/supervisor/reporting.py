"""Where a worker command reports its health: a file that `holdfast health` reads, and systemd's notification socket."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from pydantic_core import to_json

from holdfast.errors import Misuse
from holdfast.logging import reason_of, say
from holdfast.supervisor.health import BEAT_SECONDS, HealthReport, is_stuck, problems, summary

SEND_SECONDS = 0.5
OWN_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")

logger = logging.getLogger(__name__)


class Reporting:
    """Publishes reports in *health_file* and by *notifier*, as far as they are given."""

    def __init__(self, health_file: Path | None, notifier: Notifier | None) -> None:
        self._file = None if health_file is None else HealthFile(health_file)
        self._notifier = notifier
        self._have_worked: set[int] = set()
        self._is_ready_sent = False
        self._is_stopping = False

    @property
    def has_readers(self) -> bool:
        """Whether anybody reads the reports at all."""
        return self._file is not None or self._notifier is not None

    @property
    def seconds(self) -> float:
        """How often to publish."""
        watchdog = self._notifier.watchdog if self._notifier is not None else None
        return BEAT_SECONDS if watchdog is None else min(BEAT_SECONDS, watchdog / 2)

    def begin(self, report: HealthReport) -> None:
        """Publish the first report; raise `Misuse` if the file cannot be written."""
        if self._file is not None:
            self._file.begin(report)
        self._notify(report)

    def publish(self, report: HealthReport) -> None:
        """Publish another *report*."""
        if self._file is not None:
            self._file.write(report)
        self._notify(report)

    def stop(self) -> None:
        """Announce that the end has begun; of more than one call the first counts."""
        if self._notifier is not None and not self._is_stopping:
            self._notifier.send(STOPPING=1)
        self._is_stopping = True

    def end(self) -> None:
        """Leave no report behind of what has ended."""
        if self._file is not None:
            self._file.remove()

    def _notify(self, report: HealthReport) -> None:
        if self._notifier is None:
            return
        self._have_worked |= {each.number for each in report.processes if each.state == "working"}
        is_ready = len(self._have_worked) == len(report.processes)  # not all at once: one may fall again and again
        facts: dict[str, str | int] = {"STATUS": summary(report)}
        if is_ready and not self._is_ready_sent:
            facts["READY"] = 1
        if self._notifier.watchdog is not None and not is_stuck(problems(report, report.at)):
            facts["WATCHDOG"] = 1
        self._is_ready_sent |= self._notifier.send(**facts) and is_ready


class HealthFile:
    """The newest report, as JSON, in the file at *path*: always a whole one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = path.with_name(f".{path.name}.new")
        self._is_in_trouble = False

    def begin(self, report: HealthReport) -> None:
        """Write the first one, or raise `Misuse`."""
        try:
            self._replace(report)
        except OSError as error:
            raise Misuse(
                f"cannot write the health file {self._path}: {error.strerror}; give --health-file a path that this "
                "user can write"
            ) from None

    def write(self, report: HealthReport) -> None:
        """Write the next one; if that cannot be done say so, once."""
        try:
            self._replace(report)
        except OSError as error:  # a worker that works is not stopped for it; whoever reads the file sees its age
            if not self._is_in_trouble:
                say(logger, "health_file_not_written", path=str(self._path), reason=reason_of(error))
            self._is_in_trouble = True
        else:
            self._is_in_trouble = False

    def remove(self) -> None:
        """Take it away."""
        for each in (self._path, self._new):
            try:
                each.unlink(missing_ok=True)
            except OSError as error:
                say(logger, "health_file_not_removed", path=str(each), reason=reason_of(error))

    def _replace(self, report: HealthReport) -> None:
        # the directory may be one that others write to: nothing is written through a link that one of them has left
        self._new.unlink(missing_ok=True)
        descriptor = os.open(self._new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode=0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(to_json(report, indent=1) + b"\n")
        self._new.replace(self._path)


class Notifier:
    """Sends to the socket at *address*; *watchdog* is how many seconds systemd waits for a sign of life, if it does."""

    def __init__(self, address: str, watchdog: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog = watchdog

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str]) -> Self | None:
        """Make one of what systemd has put there, and take it out: what we start is not to speak for us."""
        address, microseconds, process = (environment.pop(name, "") for name in OWN_VARIABLES)
        if not address:
            return None
        is_watched = microseconds.isdecimal() and process in ("", str(os.getpid()))
        return cls(address, (int(microseconds) / 1e6 or None) if is_watched else None)  # 0: it does not watch

    def send(self, **facts: str | int) -> bool:
        """Send *facts*; answer whether they were taken. We work on whether they were or not."""
        text = "\n".join(f"{name}={value}" for name, value in facts.items())
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.settimeout(SEND_SECONDS)  # its queue may be full for a moment
            connection.sendto(text.encode(), self._address)
            return True
        return False
