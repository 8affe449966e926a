"""Carries out what an explanation advises."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from holdfast.explanations import Remedy
from tests.support.ways import Awaitable, Way


class Helper:
    """Carries remedies out on the face of a way; the workers that it starts end with it."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._workers = AsyncExitStack()

    async def carry_out(self, remedy: Remedy | None, output: object = None) -> None:
        """Do as *remedy* says; *output* is what a person answers."""
        assert remedy is not None, "nothing but time, or another job, helps"
        face, hf = self._way.face, self._way.hf
        match remedy.verb:
            case "resume" | "retry" | "trigger":
                await getattr(face, remedy.verb)(remedy.target)
            case "complete":
                await face.complete(hf.tasks.get(str(remedy.arguments["task"])), remedy.target, output)
            case "lane.resume":
                await self._of_colour(lambda face: face.lane(remedy.target)).resume()
            case "queue.resume":
                await self._of_colour(lambda face: face.queue(remedy.target)).resume()
            case "tenants.resume":
                await self._origin().tenants.resume(str(remedy.target))
            case "worker":
                queues = {} if remedy.target is None else {"queues": [remedy.target]}
                tenant = remedy.arguments.get("tenant")
                worker = (
                    hf.worker(**queues) if tenant is None else self._origin().worker(**queues, tenants={str(tenant): 1})
                )
                await self._workers.enter_async_context(worker)

    def _origin(self) -> Any:
        """Give the control place of a tenant."""
        origin = self._way.hf._origin()
        assert origin is not None
        return origin

    def _of_colour(self, handle: Callable[[Any], Any]) -> Any:
        """Give a handle whose methods are awaited, in either colour."""
        hf = self._way.hf
        return handle(hf) if self._way.is_async else Awaitable(handle(hf.sync))

    async def close(self) -> None:
        """Stop the workers."""
        await self._workers.aclose()
