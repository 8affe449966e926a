"""The keeper: a small process that owns a PostgreSQL server and outlives the server's user by a moment.

It starts and stops the server when told to. When its user closes the socket or is gone, be it by `kill -9`, it
stops the server and removes the directory. The server is its child, so there is no moment at which a killed
user could leave one behind that nobody knows of. Both ends of the socket are here: the user holds a `Keeper`,
`main` is the process. That runs this file alone, which therefore imports only the standard library.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

PARENT_CHECK_SECONDS = 1.0
STOP_SECONDS = 20.0
REPLY_SECONDS = 60.0


class Keeper:
    """The user's end: one JSON request a line, one JSON reply a line."""

    def __init__(
        self, directory: Path, environment: dict[str, str], prefix: Sequence[str], user: dict[str, Any]
    ) -> None:
        start = {"directory": str(directory), "environment": environment, "prefix": prefix, "user": user}
        self._socket, child_end = socket.socketpair()
        self._socket.settimeout(REPLY_SECONDS)
        self._stream = self._socket.makefile("rw", encoding="utf-8")
        # a session of its own: Ctrl-C in a terminal is for the user, who then ends the server in good order
        with child_end:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, json.dumps(start), str(os.getpid())],
                stdin=child_end.fileno(),
                stdout=child_end.fileno(),
                cwd="/",
                start_new_session=True,
            )

    def ask(self, verb: str, **details: object) -> int | None:
        """Have something done and answer its result; raise `OSError` if the keeper does not."""
        print(json.dumps({"verb": verb, **details}), file=self._stream, flush=True)
        reply = self._stream.readline()
        if not reply:
            raise ConnectionResetError("the process that keeps the PostgreSQL server is gone")
        return cast("int | None", json.loads(reply))

    def close(self) -> None:
        """Let the keeper end the server and remove its directory, and wait until it has."""
        self._stream.close()
        self._socket.close()
        self._process.wait()


class _ServerOwner:
    """The server, and the directory that goes when it goes."""

    def __init__(self, directory: str, environment: dict[str, str], prefix: list[str], user: dict[str, Any]) -> None:
        self._directory = Path(directory)
        self._environment = environment
        self._prefix = prefix
        self._user = user
        self._server: subprocess.Popen[bytes] | None = None

    def answer(self, request: dict[str, Any]) -> int | None:
        """Do what *request* asks: answer an exit code, a process id, or `None` for a server that runs."""
        match request["verb"]:
            case "run":
                return self._spawn(request["command"]).wait()
            case "start":
                self._server = self._spawn(request["command"])
                return self._server.pid
            case "poll":
                return self._server.poll() if self._server else 0
            case "stop":
                return self._stop(request["signal"])
            case verb:
                raise ValueError(f"no such verb: {verb}")

    def end(self) -> None:
        """Stop the server without ceremony and remove all it has written."""
        self._stop(signal.SIGQUIT)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self._directory / "server.log").open("ab") as log:
            return subprocess.Popen(
                [*self._prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
                env=self._environment,
                **self._user,
            )

    def _stop(self, number: int) -> int:
        if self._server is None or self._server.poll() is not None:
            return 0
        self._server.send_signal(number)
        try:
            return self._server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._server.kill()
            return self._server.wait()


def main() -> None:
    """Serve the parent process until it ends."""
    # who the parent is must be told: it may be gone before we could ask
    start, parent = json.loads(sys.argv[1]), int(sys.argv[2])
    os.umask(0o077)  # the log may quote what is in the database
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    owner = _ServerOwner(**start)
    try:
        _serve(owner, parent)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter fails at its exit
    finally:
        owner.end()


def _serve(owner: _ServerOwner, parent: int) -> None:
    # A process forked from the parent may hold the socket open after the parent has died: look for it as well.
    while os.getppid() == parent:
        if not select.select([sys.stdin], [], [], PARENT_CHECK_SECONDS)[0]:
            continue
        request = sys.stdin.readline()
        if not request:
            return
        print(json.dumps(owner.answer(json.loads(request))), flush=True)


if __name__ == "__main__":
    main()
