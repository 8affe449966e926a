"""A socket as systemd has it, for what services tell it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def listening_systemd(path: Path) -> Iterator[socket.socket]:
    """Listen at *path*."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(path))
        listening.settimeout(20)
        yield listening


def hear(systemd: socket.socket, word: str) -> dict[str, str]:
    """Wait for a datagram that has *word*; give what stands there."""
    while True:
        facts = dict(each.split("=", 1) for each in systemd.recv(4096).decode().splitlines())
        if word in facts:
            return facts
