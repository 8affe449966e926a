"""The program of a child process: imports the application, and runs the jobs that its worker gives it, one at a time.

The very `Attempt` of the worker runs here, over the application's own store, which is opened when it is first needed.
The next jobs are here before one has ended: it is the number in the `tickets` that lets one begin, and what the last
one came to is said before that. A thread does nothing but listen to the worker. When the pipe ends the worker is gone,
and so is this process, whatever its handler does. When the lease of its job is not renewed, as if the worker stood
still, it stops the handler itself, and if that does not stop, the process.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.client.engine_parts import EngineParts
from holdfast.errors import Misuse
from holdfast.fault_points import reach
from holdfast.logging import LogOptions, set_up_logging
from holdfast.outcomes import Kind, Outcome
from holdfast.runtime import Runtime
from holdfast.store.jobs.claiming import Claimed
from holdfast.worker.attempts.aborts import AbortReason
from holdfast.worker.attempts.attempt import Attempt, Middleware
from holdfast.worker.attempts.late_entries import LateEntries
from holdfast.worker.attempts.services import Keepers, make_services
from holdfast.worker.children.bootstrap import database_digest, import_object, mark_as_child, run_program
from holdfast.worker.children.limits import HandlerThreads, at_most, die_with, end_copy, resident_megabytes
from holdfast.worker.children.messages import CHUNK, JOB, OUTCOME, REPORT, Message, MessageReader, encode
from holdfast.worker.children.proxies import JobsOfChild, ProgressOfChild
from holdfast.worker.children.remote_attempt import FENCED
from holdfast.worker.children.tickets import END, Tickets

STOP_SECONDS = 5.0
"""How long a handler has that is stopped because the worker is silent, before the process ends itself."""
STANDSTILL_SECONDS, SPARE_SECONDS = 1.0, 2.0  # who comes later than that has stood still, maybe with its worker
REST_SECONDS = 0.1
THREADS = 4
GUARD = (
    'move the code that starts the program below `if __name__ == "__main__":`, because a child process runs the '
    "script too"
)
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
        self.send_bytes(encode(message, **facts))

    def send_bytes(self, messages: bytes) -> None:
        with self._sending:  # in any thread
            self._socket.sendall(messages)

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
    def __init__(self, pipe: ParentPipe, tickets: Tickets, runtime: Runtime) -> None:
        self._pipe = pipe
        self._tickets = tickets
        self._runtime = runtime
        self._monotonic = runtime.monotonic
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[Message] = self._loop.create_future()
        self._jobs = JobsOfChild(pipe.send, runtime.monotonic, self._soon)
        self._progress = ProgressOfChild(pipe.send, partial(self._soon, self._loop.call_later, REST_SECONDS))
        self._threads = HandlerThreads(THREADS, "holdfast-handler")
        self._variables = contextvars.copy_context()
        """The context variables that every plain handler finds."""
        self._process = os.getpid()
        self._taken: int | None = None
        """The job whose number was taken, and that has not begun."""
        self._number = END
        """The job that has begun last."""
        self._running: tuple[int, Attempt] | None = None
        self._unsaid = b""
        self._aborted: tuple[int, AbortReason] | None = None
        self._exit_at: tuple[int, float] | None = None
        """The job that is to be over by now, and when the process ends if it is not."""
        self._middleware: list[Middleware] = []
        self._most_megabytes: float | None = None
        self._megabytes = 0.0

    async def run(self) -> None:
        """Begin, and run what comes, until the worker says that it is enough."""
        self._runtime.stepper(self._listen, "holdfast-line").wake()
        self._threads.make_ready()  # a thread that is there already counts not towards a limit of memory
        engine = self._begin(await self._first)
        if engine is None:
            return
        while (attempt := await self._next()) is not None:
            if self._is_plain(attempt):
                attempt = await self._threads.start(partial(self._run_plain, attempt))
            if attempt is not None:
                with at_most(attempt.task.policy.memory_megabytes):
                    outcome = await self._loop.create_task(self._run_in_loop(attempt))
                self._end(attempt.job, outcome, attempt.warning)
        self._late.cancel()
        await engine.store.close()

    def _begin(self, message: Message) -> EngineParts | None:
        """Import the application and say what was found."""
        die_with(message["parent"])
        self._most_megabytes = message["megabytes"]
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

    def _import(self, message: Message) -> EngineParts:
        sys.path[:] = message["path"]
        sys.argv[:] = message["arguments"]
        if message["main"] is not None:
            run_program(**message["main"])
        app = import_object(message["app"])
        self._middleware = [import_object(each) for each in message["middleware"]]  # type: ignore[misc]
        if message["tenant"] is not None:
            app = app.tenant(message["tenant"])  # type: ignore[attr-defined]  # as it is looked at right below
        engine = getattr(app, "__holdfast_engine__", None)
        if not isinstance(engine, EngineParts):
            raise Misuse(f"{message['app']} is a {type(app).__name__}, not a Holdfast object; correct app=")
        if message["log"] is not None:
            set_up_logging(LogOptions(**message["log"]))
        self._tasks = engine.starter.tasks
        late_entries = LateEntries(engine.store, engine.runtime)
        self._late = self._loop.create_task(late_entries.run())
        keepers = Keepers(self._jobs, self._progress, late_entries, self._threads)
        self._services = make_services(
            engine.store, engine.opener, engine.runtime, engine.starter, keepers, message["worker"]
        )
        return engine

    async def _next(self) -> Attempt | None:
        """Wait for the next job, and begin it; None if there will be none."""
        while (attempt := self._begin_next()) is None and self._taken != END:
            if self._taken is not None:
                await self._jobs.wait_for(self._taken)
            else:
                self._say()
                reach("child.after_outcome")
                await self._tickets.wait()
        self._say()
        return attempt

    def _begin_next(self) -> Attempt | None:
        """Begin the next job, if it is here, and say so together with what the last one came to; in any thread."""
        while True:
            if self._taken is None:
                most = self._most_megabytes  # its worker knows as well that it has more, and takes the others back
                self._taken = END if most is not None and self._megabytes > most else self._tickets.take_now()
                if self._taken:
                    self._say(encode("taken", number=self._taken))
            if not self._taken or (message := self._jobs.begin(self._taken)) is None:
                return None
            self._number, self._taken = self._taken, None
            if (attempt := self._make(JOB.validate_python(message["job"]))) is not None:
                return attempt

    def _make(self, job: Claimed) -> Attempt | None:
        """Make an attempt of *job*; None if it cannot run here now, which is said in the place of its end."""
        task = self._tasks.get(job.task) if job.task in self._tasks else None
        if task is None or task.is_declared:
            self._end(job, None, is_unknown=True)
            return None
        if not self._jobs.may_complete(job.token):  # the worker has stood still while it waited here
            self._end(job, Outcome(Kind.GIVE_BACK, reason=AbortReason.ERROR))
            return None
        self._progress.begin(job.token)
        attempt = Attempt(job, task, self._services[task.signature.is_async], self._middleware)
        self._running = self._number, attempt  # before it is looked for a stop, which is left before this is looked at
        if self._aborted is not None and self._aborted[0] == self._number:
            attempt.abort(self._aborted[1])
        return attempt

    def _is_plain(self, attempt: Attempt) -> bool:
        """Tell whether a handler can run without the event loop, which hears all the same if it is to stop."""
        task, policy = attempt.task, attempt.task.policy
        needs_loop = task.signature.is_async or policy.phases or policy.keep_logs or policy.timeout is not None
        return not (needs_loop or policy.memory_megabytes is not None or task.middleware or self._middleware)

    def _run_plain(self, attempt: Attempt | None) -> Attempt | None:
        """Run a plain handler in this thread, and those that follow: to go to the loop and back costs more than a job.

        Give the attempt that needs the loop, to begin or to end; None if there is no job.
        """
        while attempt is not None and self._is_plain(attempt):
            outcome = self._variables.copy().run(attempt.run_here)
            end_copy(self._process)
            if outcome is None:
                return attempt
            self._end(attempt.job, outcome, attempt.warning)
            attempt = self._begin_next()
        return attempt

    async def _run_in_loop(self, attempt: Attempt) -> Outcome | None:
        outcome = await attempt.run()
        end_copy(self._process)
        return outcome

    def _end(
        self, job: Claimed, outcome: Outcome | None, warning: str | None = None, *, is_unknown: bool = False
    ) -> None:
        self._running = None
        self._progress.end(job.token)
        self._jobs.end()
        if self._most_megabytes is not None:
            self._megabytes = resident_megabytes()
        self._unsaid += encode(
            "ended",
            number=self._number,
            outcome=OUTCOME.dump_python(outcome, mode="json", exclude_defaults=True),
            warning=warning,
            is_unknown=is_unknown,
            megabytes=self._megabytes,
        )

    def _say(self, message: bytes = b"") -> None:
        """Say what is to be said of jobs that have ended, and then *message*."""
        said, self._unsaid = self._unsaid + message, b""
        if said:
            self._pipe.send_bytes(said)

    # in the thread that listens

    def _listen(self) -> float:
        """Wait for messages of the worker, and see to it that nothing runs on without its lease."""
        try:
            own = self._jobs.seconds if self._exit_at is None else self._exit_at[1] - self._monotonic()
            bounds = [each for each in (own, self._jobs.waiting_seconds) if each is not None]
            for message in self._pipe.receive(min(bounds, default=None)):
                self._on_message(message)
        except MemoryError:  # what was read is lost, perhaps a job that nobody would begin; the handler had it all
            os._exit(1)
        self._fence()
        return 0.0

    def _on_message(self, message: Message) -> None:
        match message["say"]:
            case "run":
                self._jobs.add(message)
            case "lease":
                self._jobs.renew(message["number"], message["until"])
            case "abort":
                self._soon(self._abort, message["number"], AbortReason(message["reason"]))
            case "written":
                self._progress.written(REPORT.validate_python(message["report"]))
            case "answer":
                self._progress.answered(message["number"], message["answer"])
            case _:
                self._soon(self._first.set_result, message)

    def _soon(self, call: Callable[..., object], *given: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: the program cannot be used, and is about to end
            self._loop.call_soon_threadsafe(call, *given)

    def _abort(self, number: int, reason: AbortReason) -> None:
        if self._running is None or self._running[0] != number:
            self._aborted = number, reason  # it has not begun, or begins just now in another thread, or is over
        if (running := self._running) is not None and running[0] == number:
            running[1].abort(reason)

    def _fence(self) -> None:
        """Stop the handler if its lease may be over, and the process if it does not stop."""
        number, seconds, now = self._jobs.number, self._jobs.seconds, self._monotonic()
        if self._exit_at is not None:
            if number != self._exit_at[0]:  # it has stopped
                self._exit_at = None
            elif now >= self._exit_at[1]:
                os._exit(FENCED)
        elif number is not None and seconds is not None and seconds <= 0:
            if seconds < -STANDSTILL_SECONDS and self._jobs.spare(SPARE_SECONDS):
                return
            self._exit_at = number, now + STOP_SECONDS
            self._soon(self._abort, number, AbortReason.ERROR)


async def _main(pipe: int, tickets: int) -> None:
    await Child(ParentPipe(pipe), Tickets(tickets), Runtime()).run()


def main(arguments: list[str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # for the worker, which drains; a terminal signals us, too
        signal.signal(number, _ignore)
    mark_as_child()
    asyncio.run(_main(int(arguments[1]), int(arguments[2])))


def _ignore(*_: Any) -> None:
    """Do nothing; unlike a signal that is ignored by the system, this is not handed on to what a handler starts."""


if __name__ == "__main__":
    main(sys.argv)
