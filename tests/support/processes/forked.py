"""Programs of ours in processes of their own, without the third of a second that each would need to import Holdfast.

A process that has imported it waits, and forks for each program that is to be run; `run` and `Popen` are those of
`subprocess` otherwise. What is forked belongs to who asked for it: it is his child, by a process between them that ends
at once while he takes in orphans. It has its own environment, directory and streams, and runs to its end as any other:
it can be killed, waited for, and told from all others. Only Linux can; elsewhere programs are started anew.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import gc
import io
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast import fault_points

TAKE_IN_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER
COMMAND = str(Path(sys.executable).with_name("holdfast"))
LENGTH = struct.Struct("!I")
ROOT = Path(__file__).parents[3]


class Popen(subprocess.Popen[Any]):
    """A program of ours that runs: the command `holdfast`, a module, a file, or a text."""

    def _execute_child(self, args: Any, *rest: Any) -> None:
        _, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *streams = rest[:15]
        words = [os.fspath(each) for each in args] if not isinstance(args, str) else []
        program = _program(words)
        if program is None or preexec_fn or pass_fds or shell or sys.platform != "linux":
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        read_in, write_in, read_out, write_out, read_err, write_err = streams
        given = [read_in, write_out, write_err]
        request = {
            "program": program,
            "cwd": os.fspath(cwd) if cwd is not None else str(Path.cwd()),
            "environment": dict(os.environ if env is None else env),
        }
        self.pid = FORKS.fork(request, [own if own != -1 else fd for fd, own in enumerate(given)])
        self._child_created = True
        self._close_pipe_fds(read_in, write_in, read_out, write_out, read_err, write_err)  # type: ignore[attr-defined]


def run(command: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end, as `subprocess.run` does."""
    capture, timeout, check = (options.pop(name, None) for name in ("capture_output", "timeout", "check"))
    if capture:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, **options) as process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def _program(words: list[str]) -> dict[str, Any] | None:
    """Tell what *words* run, if it is ours: how it is found, its words, and whether warnings are errors."""
    if words[:1] == [COMMAND]:
        return {"kind": "command", "words": words, "is_strict": False}
    if words[:1] != [sys.executable]:
        return None
    is_strict, left = words[1:3] == ["-W", "error"], words[3:] if words[1:3] == ["-W", "error"] else words[1:]
    if left[:1] == ["-m"] and len(left) > 1:
        return {"kind": "module", "words": left[1:], "is_strict": is_strict}
    if left[:1] == ["-c"] and len(left) > 1:
        return {"kind": "text", "words": left, "is_strict": is_strict}
    if left and left[0].endswith(".py"):
        return {"kind": "file", "words": left, "is_strict": is_strict}
    return None


class Forks:
    """The user's end of the process that forks, which is started when it is first needed."""

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._line: socket.socket | None = None
        self._owner = 0

    def fork(self, request: dict[str, Any], streams: list[int]) -> int:
        """Have a program run with these standard streams, as a child of ours; give its number."""
        with self._one_at_a_time:
            line = self._ready()
            text = json.dumps(request).encode()
            fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
            take_in = ctypes.CDLL(None).prctl
            take_in(TAKE_IN_ORPHANS, 1)
            try:
                line.sendmsg([LENGTH.pack(len(text))], fds)
                line.sendall(text)
                (number,) = LENGTH.unpack(_read(line, LENGTH.size))
            finally:
                take_in(TAKE_IN_ORPHANS, 0)
            return int(number)

    def _ready(self) -> socket.socket:
        if self._line is None or self._owner != os.getpid():
            self._line, theirs = socket.socketpair()
            self._owner = os.getpid()
            with theirs:
                environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
                process = subprocess.Popen(
                    [sys.executable, __file__, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    cwd=ROOT,
                    env={**environment, "PYTHONPATH": str(ROOT)},
                )
            atexit.register(_end, self._line, process)
        return self._line


FORKS = Forks()


def _end(line: socket.socket, process: subprocess.Popen[bytes]) -> None:
    line.close()
    process.wait()


def _read(line: socket.socket, number: int) -> bytes:
    found = b""
    while len(found) < number:
        piece = line.recv(number - len(found))
        if not piece:
            raise ConnectionResetError("the process that forks is gone")
        found += piece
    return found


# the other end


def serve(line: socket.socket) -> dict[str, Any] | None:
    """Fork for each request; give the request in who was forked, and None when there are no more."""
    while True:
        head, ancillary, _, _ = line.recvmsg(LENGTH.size, socket.CMSG_LEN(3 * array.array("i").itemsize))
        if not head:
            return None
        (length,) = LENGTH.unpack(head)
        request: dict[str, Any] = json.loads(_read(line, length))
        streams = array.array("i")
        streams.frombytes(ancillary[0][2])
        read, write = os.pipe()
        between = os.fork()
        if between == 0:
            number = os.fork()
            if number != 0:
                os.write(write, LENGTH.pack(number))
                os._exit(0)
            os.close(read)
            os.close(write)
            line.close()
            _dress(request, list(streams))
            return request
        os.close(write)
        number = LENGTH.unpack(os.read(read, LENGTH.size))[0]
        os.close(read)
        os.waitpid(between, 0)  # from now on its child is that of who asked
        for each in streams:
            os.close(each)
        line.sendall(LENGTH.pack(number))


def _dress(request: dict[str, Any], streams: list[int]) -> None:
    """Make of a fork what a new process would be."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
        if stream > 2:
            os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    if isinstance(sys.stdout, io.TextIOWrapper):  # nothing has been written to it yet
        sys.stdout.reconfigure(line_buffering=os.isatty(1) or bool(os.environ.get("PYTHONUNBUFFERED")))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):  # which the tests may have been told to ignore, by nohup for one
        signal.signal(number, signal.SIG_DFL)
    fault_points.arm(
        request["environment"].get(fault_points.VARIABLE)
    )  # which a new process does as it imports Holdfast


def perform(program: dict[str, Any], environment: dict[str, str]) -> None:
    """Run a program as its interpreter would have."""
    kind, words = program["kind"], program["words"]
    if program["is_strict"]:
        import warnings

        sys.warnoptions[:] = ["error"]
        warnings.simplefilter("error")
    paths = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    own = {
        "command": str(Path(words[0]).parent),
        "module": str(Path.cwd()),
        "text": "",
        "file": str(Path(words[0]).absolute().parent),
    }
    sys.path[:] = [own[kind], *paths, *(each for each in sys.path if each not in (own[kind], str(ROOT)))]
    flags = [*(["-W", "error"] if program["is_strict"] else []), *(["-m"] if kind == "module" else [])]
    sys.orig_argv[:] = [sys.executable, *flags, *words]
    text = words.pop(1) if kind == "text" else ""
    sys.argv[:] = words
    if kind == "command":
        from holdfast.cli import main

        sys.exit(main())
    sys.modules["__main__"] = program_itself = ModuleType("__main__")
    if kind == "module":
        runpy._run_module_as_main(words[0])  # type: ignore[attr-defined]
    elif kind == "text":
        exec(compile(text, "<string>", "exec"), program_itself.__dict__)
    else:
        program_itself.__file__ = words[0]
        exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), program_itself.__dict__)


def main() -> None:
    """Import what programs of ours import, and fork for them until nobody asks any more."""
    line = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the programs
    with suppress(ImportError):
        import psycopg  # noqa: F401
    import holdfast.cli
    import holdfast.cli.worker  # noqa: F401

    sys.path.remove(str(Path(__file__).parent))
    gc.collect()
    gc.freeze()
    request = serve(line)
    if request is not None:
        perform(request["program"], request["environment"])


if __name__ == "__main__":
    main()
