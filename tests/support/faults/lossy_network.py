"""A network that loses every packet in silence, when it is told to; Linux, and root.

A namespace of its own is joined to this one by a pair of virtual cables, and a socket listens there. To lose packets,
this end is told a wrong hardware address for the other: nobody answers, nobody refuses, and a new connection hears as
little as an old one. `ip` alone is enough for that; a firewall is not needed.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

NEW_NETWORK = 0x40000000
NOBODY = "02:00:00:00:00:01"


class NoNamespace(RuntimeError):
    """This machine, or this user, cannot make a network of its own; the message says why."""


@dataclass(frozen=True, slots=True)
class LossyNetwork:
    """A socket that listens at the other end of a cable."""

    cable: str
    address: str
    listening: socket.socket

    def lose(self) -> None:
        """Let no packet arrive from now on."""
        run("ip", "neigh", "replace", self.address, "lladdr", NOBODY, "dev", self.cable, "nud", "permanent")

    def carry(self) -> None:
        """Let packets arrive again."""
        run("ip", "neigh", "del", self.address, "dev", self.cable)


@contextmanager
def lossy_network() -> Iterator[LossyNetwork]:
    """Make such a network, for the length of a `with` block; raise `NoNamespace` where that cannot be."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        raise NoNamespace("a network of its own takes root, and `ip` of Debian's package iproute2")
    name = secrets.token_hex(3)
    here, there = f"hf{name}a", f"hf{name}b"
    # of the networks that are set aside for tests of devices, one that nobody here is likely to use
    third, fourth = secrets.randbelow(256), 4 * secrets.randbelow(64)
    ours, theirs = f"198.19.{third}.{fourth + 1}", f"198.19.{third}.{fourth + 2}"
    listening: list[socket.socket] = []
    raised: list[NoNamespace] = []

    def join() -> None:
        try:
            unshare_network()
            run("ip", "link", "add", there, "type", "veth", "peer", "name", here, "netns", str(os.getpid()))
            run("ip", "address", "add", f"{theirs}/30", "dev", there)
            run("ip", "link", "set", there, "up")
            listening.append(socket.create_server((theirs, 0)))
        except NoNamespace as error:
            raised.append(error)

    thread = threading.Thread(target=join, name="lossy-network")  # only the thread is in the namespace
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
    try:
        run("ip", "address", "add", f"{ours}/30", "dev", here)
        run("ip", "link", "set", here, "up")
        yield LossyNetwork(here, theirs, listening[0])
    finally:
        listening[0].close()
        subprocess.run(["ip", "link", "del", here], check=False, capture_output=True)


def unshare_network() -> None:
    """Put this thread into a network namespace of its own."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_NETWORK) != 0:
        raise NoNamespace(f"this machine lets nobody make a network: {os.strerror(ctypes.get_errno())}")


def run(*command: str) -> None:
    """Run a command of the system."""
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    if ran.returncode != 0:
        raise NoNamespace(f"`{' '.join(command)}` says: {ran.stderr.strip()}")
