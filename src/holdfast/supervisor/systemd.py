"""Tells systemd how we are, by its protocol of datagrams; where there is no systemd, nobody is told."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Self

SEND_SECONDS = 0.5
OWN_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


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
        """Tell *facts*; say whether they were taken. We work on whether they were or not."""
        text = "\n".join(f"{name}={value}" for name, value in facts.items())
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(SEND_SECONDS)  # its queue may be full for a moment
            line.sendto(text.encode(), self._address)
            return True
        return False
