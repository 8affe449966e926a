"""Holdfast in a Starlette or FastAPI application: it opens, works and stops with the application.

    app = Starlette(lifespan=lifespan(hf, worker=True))

The worker begins after the application's own lifespan has made what handlers need, and has stopped before that is taken
away. A server waits for the end of a lifespan without a limit, so ours comes in time: the worker's grace, then a few
seconds, also if a handler does not stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from importlib.util import find_spec
from typing import Any, TypeAlias

from holdfast.errors import MissingLibrary

if find_spec("starlette") is None:
    raise MissingLibrary("holdfast.integrations.starlette", "starlette", ".[http]")

from starlette.applications import Starlette
from starlette.requests import HTTPConnection

from holdfast.app import Holdfast
from holdfast.errors import Misuse
from holdfast.logging import reason_of, say
from holdfast.worker.options import WorkerKeywords, WorkerOptions

__all__ = ["Lifespan", "get_holdfast", "lifespan"]


Lifespan: TypeAlias = Callable[[Any], AbstractAsyncContextManager[Any]]
"""What Starlette takes as `lifespan=`: a context manager for an application, which may give a state."""

logger = logging.getLogger(__name__)


def lifespan(hf: Holdfast, *, worker: bool | WorkerKeywords = False, own: Lifespan | None = None) -> Lifespan:
    """Make a lifespan that opens *hf*, and closes it when the application stops.

    *worker* runs one in this process: True, or the keywords of `hf.worker()`. *own* is a lifespan of yours: it is
    entered when *hf* is open and before the worker begins, and left when the worker has stopped; its state is handed
    on. When the application stops, the worker has its grace; what does not stop within a few seconds after that is
    left behind, and its job given back to be run elsewhere.
    """
    options: WorkerKeywords = {} if isinstance(worker, bool) else worker
    WorkerOptions(**options)  # raises now what is wrong with them, not when the server has been started

    @asynccontextmanager
    async def run_lifespan(app: Starlette) -> AsyncIterator[Any]:
        inner = nullcontext() if own is None else own(app)
        running = nullcontext() if worker is False else _running_worker(hf, options)
        async with hf, _attached(app, hf), inner as state, running:
            yield state

    return run_lifespan


def get_holdfast(connection: HTTPConnection) -> Holdfast:
    """Give the Holdfast of the application that serves this request or websocket; it is also a dependency."""
    found = getattr(connection.app.state, "holdfast", None)
    if not isinstance(found, Holdfast):
        raise Misuse(
            "this application has no open Holdfast; create it with `lifespan=lifespan(hf)`; in a test, enter "
            "`app.router.lifespan_context(app)` first; in a mounted application, import hf instead"
        )
    return found


@asynccontextmanager
async def _attached(app: Starlette, hf: Holdfast) -> AsyncIterator[None]:
    # the application's state, not the lifespan's: a test that sends requests without a server has only this one
    if hasattr(app.state, "holdfast"):
        raise Misuse("this application already has a Holdfast; give an application only one lifespan(hf)")
    app.state.holdfast = hf
    try:
        yield
    finally:
        del app.state.holdfast


@asynccontextmanager
async def _running_worker(hf: Holdfast, options: WorkerKeywords) -> AsyncIterator[None]:
    worker = await hf.worker(**options).__aenter__()
    worker.ended.add_done_callback(_log_broken)
    try:
        yield
    finally:
        await worker.stop()


def _log_broken(ended: asyncio.Future[None]) -> None:
    """Log at once that a worker has broken; its application goes on without it, and gets the error when it stops."""
    if not ended.cancelled() and (error := ended.exception()) is not None:
        say(logger, "worker_broke", trace=error, error=reason_of(error))
