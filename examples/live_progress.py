"""Live progress in a web page: jobs with phases, their events as server-sent events, and a page that shows them.

Run it with a port (`python examples/live_progress.py 8000`) and open http://127.0.0.1:8000 in a browser. Without one it
serves itself for a moment: it fetches its page, starts a film, and prints what a browser would be shown.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Route

from holdfast import Context, Holdfast
from holdfast.http import Events
from holdfast.integrations.starlette import lifespan

PAGE = Path(__file__).with_suffix(".html")


def make_app(database: str, pace: float) -> Starlette:
    """Make the application; a film takes about thirty times *pace* seconds."""
    hf = Holdfast(database)
    numbers = count(1)

    @hf.task(name="transcode", phases=("download", "encode", "upload"))
    async def transcode(ctx: Context, title: str) -> str:
        """Pretend to transcode a film."""
        await ctx.phase("download", work, ctx, "fetching")
        await ctx.phase("encode", work, ctx, "squeezing")
        await ctx.phase("upload", work, ctx, "sending")
        return f"{title}.webm"

    async def work(ctx: Context, doing: str) -> None:
        for percent in range(0, 100, 10):
            ctx.progress(percent, message=doing)
            await asyncio.sleep(pace)

    async def show_page(request: Request) -> FileResponse:
        return FileResponse(PAGE)

    async def start_film(request: Request) -> JSONResponse:
        chain = await hf.start(transcode(title=f"Film {next(numbers)}"))
        return JSONResponse({"id": str(chain.id)}, 202)

    return Starlette(
        routes=[
            Route("/", show_page),
            Route("/films", start_film, methods=["POST"]),
            Route("/api/events", Events(hf)),
        ],
        lifespan=lifespan(hf, worker=True),
    )


async def look(address: str) -> None:
    """Do what a browser does with the page, and print what it would show."""
    async with httpx.AsyncClient(base_url=address) as browser:
        page = await browser.get("/")
        print(f"page:   {page.status_code}, {page.headers['content-type']}")
        async with browser.stream("GET", "/api/events", params={"task": "transcode"}) as stream:
            async for name, told in messages(stream):
                if name == "snapshot":
                    print(f"jobs:   {len(told['jobs'])}")
                    await browser.post("/films")
                elif name in ("job:phase:completed", "job:completed"):
                    print(f"event:  {name}, {told['job']['progress']} %")
                if name == "job:completed":
                    print(f"output: {told['job']['output']}")
                    return


async def messages(stream: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    """Give the name and the data of each message; ours have one line of data."""
    name = ""
    async for line in stream.aiter_lines():
        field, _, value = line.partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


async def main(port: int | None) -> None:
    """Serve on *port* until Ctrl-C, or on any one until we have looked for ourselves."""
    with tempfile.TemporaryDirectory() as directory, socket.create_server(("127.0.0.1", port or 0)) as listening:
        app = make_app(str(Path(directory) / "films.db"), pace=0.01 if port is None else 0.5)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve([listening]))
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            if port is None:
                await look(address)
                server.should_exit = True
            else:
                print(f"open {address}")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else None))
