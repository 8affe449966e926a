"""The HTTP API in a process of its own: `python -m bench.http_server URL`, by uvicorn, as `holdfast serve` runs it.

Beside it, in the same process, stands a bare route of Starlette, which reads the JSON of a body and answers so many
bytes of JSON. The process says its port and a token. It takes a line of JSON at a time and answers with one: `usage` is
how many seconds of CPU it has used and how many statements SQLite has run for it, which are counted only with
`--count`; `make` starts jobs and gives their ids; `call` makes one of `CALLS` in Python, some at a time, in the event
loop that serves, and tells the milliseconds of each. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from subprocess import PIPE, Popen
from typing import Any, NamedTuple, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from bench import worker_process
from bench.figures import TASKS as CROWD
from bench.machine import Unsuited
from bench.worker_process import COUNT, count_statements
from holdfast import Holdfast, Tasks
from holdfast.http import asgi
from holdfast.http.limits import Limits

NO_LIMITS = Limits(requests_per_second=1_000_000, streams=100_000, all_streams=100_000)
PAGE = 50
FAR = 86_400.0
TEXT = "x" * 188

TASKS = Tasks()


@TASKS.task(name="answer")
async def answer(text: str) -> None:
    """Do nothing, some day: nobody works here."""


Calling: TypeAlias = Callable[[Holdfast, str], Awaitable[object]]


async def read(hf: Holdfast, job: str) -> None:
    """Read a job."""
    await hf.get_job(job)


async def list_some(hf: Holdfast, _: str) -> None:
    """Read a page of jobs."""
    await hf.list_jobs(limit=PAGE)


async def start(hf: Holdfast, _: str) -> None:
    """Start a job, and write down who did it."""
    await hf.acting(by="bench").start(answer(text=TEXT).options(delay=FAR))


async def cancel(hf: Holdfast, job: str) -> None:
    """Cancel a job, write down who did it, and read it."""
    await hf.acting(by="bench").cancel(job)
    await hf.get_job(job)


CALLS: dict[str, Calling] = {"read": read, "list": list_some, "start": start, "cancel": cancel}


class Called(NamedTuple):
    """What some calls took: by the clock, in CPU of the process, and each of them."""

    seconds: float
    cpu: float
    milliseconds: list[float]


class HttpServer:
    """Our side of the pipe."""

    def __init__(self, process: Popen[str]) -> None:
        self._process = process
        first = self._read()
        self.port: int = first["port"]
        self.token: str = first["token"]

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    def usage(self) -> tuple[float, int]:
        """Ask for its seconds of CPU and its statements."""
        seconds, statements = self._ask("usage")
        return float(seconds), int(statements)

    def make(self, count: int) -> list[str]:
        """Have it start *count* jobs, and give their ids."""
        ids: list[str] = self._ask("make", count)
        return ids

    def call(self, name: str, ids: list[str], at_once: int) -> Called:
        """Have it make a call in Python for each of *ids*."""
        return Called(*self._ask("call", name, ids, at_once))

    def _ask(self, *words: object) -> Any:
        if self._process.stdin is None:
            raise Unsuited("the server has no standard input")
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise Unsuited(f"the server ended with code {self._process.wait()}")
        return json.loads(line)


@contextmanager
def http_server(url: str, *, counts: bool = False) -> Iterator[HttpServer]:
    """Serve *url* until the block ends; if it *counts*, it counts the statements of SQLite."""
    command = [sys.executable, "-m", "bench.http_server", url, *([COUNT] if counts else [])]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        yield HttpServer(process)


async def bare(request: Request) -> JSONResponse:
    """Answer so many bytes of JSON."""
    if request.method == "POST":
        await request.json()
    return JSONResponse(
        {"text": "x" * (request.path_params["bytes"] - len('{"text":""}'))}, request.path_params["status"]
    )


def beside(api: ASGIApp) -> ASGIApp:
    """Put the bare route beside *api*."""
    other = Starlette(routes=[Route("/bare/{status:int}/{bytes:int}", bare, methods=["GET", "POST"])])

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (other if scope.get("path", "").startswith("/bare/") else api)(scope, receive, send)

    return app


async def call_some(hf: Holdfast, name: str, ids: list[str], at_once: int) -> Called:
    """Make one call for each of *ids*, some at a time."""
    waiting, milliseconds = iter(ids), list[float]()

    async def call() -> None:
        for each in waiting:
            began = time.perf_counter()
            await CALLS[name](hf, each)
            milliseconds.append((time.perf_counter() - began) * 1000)

    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(call() for _ in range(at_once)))
    return Called(time.perf_counter() - began, time.process_time() - used, milliseconds)


async def answer_lines(hf: Holdfast) -> None:
    """Do what the lines say, until the input ends."""
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, *rest = json.loads(line)
        found: object = time.process_time(), worker_process.statements
        if word == "make":
            calls = [answer(text=TEXT).options(delay=FAR)] * rest[0]
            found = [str(chain.id) for chain in await hf.start_many(calls)]
        elif word == "call":
            found = await call_some(hf, *rest)
        print(json.dumps(found), flush=True)


async def main(url: str) -> None:
    """Serve until the input ends."""
    hf = Holdfast(url, tasks=[TASKS, CROWD], deadline_seconds=60)
    async with hf:
        token = await hf.tokens.create("bench", role="operator")
        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listening:
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            config = uvicorn.Config(
                beside(asgi(hf, limits=NO_LIMITS)),
                access_log=False,
                log_level="warning",
                lifespan="off",
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=1,
            )
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve([listening]))
            print(json.dumps({"port": listening.getsockname()[1], "token": token.token}), flush=True)
            await answer_lines(hf)
            server.should_exit = True
            await serving


if __name__ == "__main__":
    url, *_ = (each for each in sys.argv[1:] if each != COUNT)
    if COUNT in sys.argv:
        count_statements()
    asyncio.run(main(url))
