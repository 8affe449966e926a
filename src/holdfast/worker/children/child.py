"""The program of a child process: imports the application, and runs the jobs that its worker gives it, one at a time.

The very `Attempt` of the worker runs here, over the application's own store, which is opened when it is first needed.
A thread does nothing but listen to the worker. When the pipe ends the worker is gone, and so is this process, whatever
its handler does. When the lease of its job is not renewed, as if the worker stood still, it stops the handler itself,
and if that does not stop, the process.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.errors import Misuse
from holdfast.fault_points import reach
from holdfast.outcomes import Outcome
from holdfast.runtime import Runtime
from holdfast.worker.attempts.aborts import AbortReason
from holdfast.worker.attempts.attempt import Attempt, Middleware
from holdfast.worker.attempts.blocks import make_desks
from holdfast.worker.children.bootstrap import ENGINE, ChildEngine, database_digest, mark_as_child
from holdfast.worker.children.import_path import Main, import_object
from holdfast.worker.children.limits import HandlerThreads, at_most, die_with, end_copy, resident_megabytes
from holdfast.worker.children.messages import CHUNK, JOB, OUTCOME, REPORT, Message, MessageReader, encode
from holdfast.worker.children.proxies import LeaseOfChild, ProgressOfChild
from holdfast.worker.children.remote_attempt import FENCED

STOP_SECONDS = 5.0
"""How long a handler has that is stopped because the worker is silent, before the process ends itself."""
STANDSTILL_SECONDS, SPARE_SECONDS = 1.0, 2.0  # who comes later than that has stood still, maybe with its worker
REST_SECONDS = 0.1
THREADS = 4
GUARD = 'what starts the program belongs below `if __name__ == "__main__":`, for a child runs the script, too'
LONGEST_SECONDS = 3_600.0


class ParentPipe:
    """The child's end of the pipe to its worker."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)  # what a handler starts has no business with it
        self._poll = select.poll()  # a time-out of the socket itself would be one of what is sent, too
        self._poll.register(self._socket, select.POLLIN)
        self._reader = MessageReader()
        self._sending = threading.Lock()

    def send(self, message: str, **facts: object) -> None:
        """Send a message; in any thread."""
        with self._sending:
            self._socket.sendall(encode(message, **facts))

    def receive(self, seconds: float | None) -> list[Message]:
        """Wait for messages, *seconds* at most; end the process if there will be none."""
        if not self._poll.poll(None if seconds is None else min(max(seconds, 0), LONGEST_SECONDS) * 1000):
            return []
        try:
            piece = self._socket.recv(CHUNK)
        except OSError:
            piece = b""
        if not piece:
            os._exit(0)
        return list(self._reader.feed(piece))


class Child:
    """What runs in this process."""

    def __init__(self, pipe: ParentPipe, runtime: Runtime) -> None:
        self._pipe = pipe
        self._runtime = runtime
        self._monotonic = runtime.monotonic
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._lease = LeaseOfChild(pipe.send, runtime.monotonic)
        self._progress = ProgressOfChild(pipe.send, self._later)
        self._threads = HandlerThreads(THREADS, "holdfast-handler")
        self._attempt: Attempt | None = None
        self._number = 0
        """The job that runs, or ran last: the first, the second, …"""
        self._aborted: tuple[int, AbortReason] | None = None
        self._exit_at: tuple[int, float] | None = None
        """The job that is to be over by now, and when the process ends if it is not."""
        self._middleware: list[Middleware] = []

    async def run(self) -> None:
        """Begin, and run what comes, until the worker says that it is enough."""
        self._runtime.stepper(self._listen, "holdfast-line").wake()
        self._threads.make_ready()  # a thread that is there already counts not towards a limit of memory
        engine = await self._begin(await self._messages.get())
        while engine is not None and (message := await self._messages.get())["say"] == "run":
            await self._run(engine, message)
        if engine is not None:
            await engine.store.close()

    async def _begin(self, message: Message) -> ChildEngine | None:
        """Import the application and say what was found."""
        die_with(message["parent"])
        try:
            engine, mistake = self._import(message), None
        except BaseException as error:  # noqa: BLE001 - whatever modules do when they are imported, it is reported
            traceback.print_exception(error)
            engine, mistake = None, f"{type(error).__name__}: {error}"[:500]
            if message["main"] is not None:
                mistake += f"; {GUARD}"
        database = engine and database_digest(engine.starter.settings, engine.store)
        self._pipe.send("hello", mistake=mistake, database=database)
        return engine

    def _import(self, message: Message) -> ChildEngine:
        sys.path[:] = message["path"]
        sys.argv[:] = message["arguments"]
        if message["main"] is not None:
            Main(**message["main"]).run()
        app = import_object(message["app"])
        self._middleware = [import_object(each) for each in message["middleware"]]  # type: ignore[misc]
        engine = getattr(app, ENGINE, None)
        if not isinstance(engine, ChildEngine):
            raise Misuse(f"{message['app']} is of type {type(app).__name__}, and not a Holdfast")
        self._desks = make_desks(
            engine.store,
            engine.opener,
            engine.runtime,
            engine.starter,
            self._lease,
            self._progress,
            message["worker"],
        )
        return engine

    async def _run(self, engine: ChildEngine, message: Message) -> None:
        job = JOB.validate_python(message["job"])
        if job.task not in engine.starter.tasks or engine.starter.tasks.get(job.task).is_declared:
            self._end(None, is_unknown=True)
            return
        task = engine.starter.tasks.get(job.task)
        attempt = Attempt(
            job,
            task,
            self._desks[task.signature.is_async],
            self._middleware,
            self._threads,
            engine.runtime.chance,
            self._progress.teller(job.token),
        )
        self._attempt, self._number = attempt, message["number"]
        if self._aborted is not None and self._aborted[0] == self._number:  # before it began
            attempt.abort(self._aborted[1])
        with at_most(task.policy.memory_megabytes):
            outcome = await self._loop.create_task(_run_attempt(attempt))
        self._attempt = None
        self._progress.end()
        self._progress.forget([job.token])
        self._end(outcome, attempt.warning)

    def _end(self, outcome: Outcome | None, warning: str | None = None, *, is_unknown: bool = False) -> None:
        self._lease.end()
        self._pipe.send(
            "ended",
            outcome=OUTCOME.dump_python(outcome, mode="json"),
            warning=warning,
            is_unknown=is_unknown,
            megabytes=resident_megabytes(),
        )
        reach("child.after_outcome")

    def _later(self, call: Callable[[], None]) -> None:
        """Have *call* called in the loop when reports have rested; in any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._soon(self._loop.call_later, REST_SECONDS, call)

    # in the thread that listens

    def _listen(self) -> float:
        """Wait for messages of the worker, and see to it that nothing runs on without its lease."""
        seconds = self._lease.seconds if self._exit_at is None else self._exit_at[1] - self._monotonic()
        for message in self._pipe.receive(seconds):
            self._on_message(message)
        self._fence()
        return 0.0

    def _on_message(self, message: Message) -> None:
        match message["say"]:
            case "lease":
                self._lease.renew(message["number"], message["until"])
            case "abort":
                self._abort_soon(message["number"], AbortReason(message["reason"]))
            case "written":
                self._progress.written(REPORT.validate_python(message["report"]))
            case "answer":
                self._progress.answered(message["number"], message["answer"])
            case "run":
                self._lease.begin(message["number"], message["lease"])
                self._pipe.send("taken")
                self._soon(self._messages.put_nowait, message)
            case _:
                self._soon(self._messages.put_nowait, message)

    def _soon(self, call: Callable[..., object], *given: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the program cannot be used, and is about to end
            self._loop.call_soon_threadsafe(call, *given)

    def _abort_soon(self, number: int, reason: AbortReason) -> None:
        self._soon(self._abort, number, reason)

    def _abort(self, number: int, reason: AbortReason) -> None:
        if self._attempt is not None and number == self._number:
            self._attempt.abort(reason)
        elif number > self._number:
            self._aborted = number, reason

    def _fence(self) -> None:
        """Stop the handler if its lease may be over, and the process if it does not stop."""
        number, seconds, now = self._lease.number, self._lease.seconds, self._monotonic()
        if self._exit_at is not None:
            if number != self._exit_at[0]:  # it has stopped
                self._exit_at = None
            elif now >= self._exit_at[1]:
                os._exit(FENCED)
        elif number is not None and seconds is not None and seconds <= 0:
            if seconds < -STANDSTILL_SECONDS and self._lease.spare(SPARE_SECONDS):
                return
            self._exit_at = number, now + STOP_SECONDS
            self._abort_soon(number, AbortReason.ERROR)


async def _run_attempt(attempt: Attempt) -> Outcome | None:
    process = os.getpid()
    outcome = await attempt.run()
    end_copy(process)
    return outcome


async def _main(descriptor: int) -> None:
    await Child(ParentPipe(descriptor), Runtime()).run()


def main(arguments: list[str]) -> None:
    """Run until the worker says that it is enough."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # they are for the worker, which drains; a terminal signals us, too
        signal.signal(number, _ignore)
    mark_as_child()
    asyncio.run(_main(int(arguments[1])))


def _ignore(*_: Any) -> None:
    """Do nothing; unlike a signal that is ignored by the system, this is not handed on to what a handler starts."""


if __name__ == "__main__":
    main(sys.argv)
