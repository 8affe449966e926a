"""A phase queue on a SQLite file: phases that never run twice, live events, signed webhooks, and retention.

This is what the phase queue (jobqueue) does in one process, with its settings: an error is fatal unless it was named as
recoverable, and a job that was lost with its process has failed. The upload breaks off once. It is tried again alone:
what was downloaded and encoded stays. Another job has an error that nobody named; it fails at once, is retried by hand,
and its first phase does not run again either.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast import ChainFailed, Context, Event, Holdfast, Job, Retention, Retry, Tasks
from holdfast.parts import new_secret, verify_webhook

tasks = Tasks()
runs: Counter[str] = Counter()
secret = new_secret()


class Breaks(Exception):
    """What passes if one tries again."""


def remove(job: Job) -> None:
    """Clean up what belongs to a job outside of the database, before its row is deleted."""
    print(f"removed:  the film of job {job.input.title!r}")


@tasks.task(
    name="publish",
    phases=("download", "encode", "upload"),
    retry=Retry(attempts=3, backoff="fixed", first=0.05, jitter=0, retry_on=Breaks),  # all others are fatal
    on_lost="fail",
    retention=Retention(stale_after=0, delete_after=0, on_delete=remove),
)
async def publish(ctx: Context, title: str) -> str:
    """Bring a film to its viewers; a phase that has finished gives its stored result, however often this runs."""
    source = await ctx.phase("download", download, ctx, title)
    film = await ctx.phase("encode", encode, ctx, source)
    return await ctx.phase("upload", upload, ctx, film)


async def download(ctx: Context, title: str) -> str:
    """Fetch the film."""
    runs["download"] += 1
    ctx.progress(50, "half of it is here")
    return f"{title}.mov"


async def encode(ctx: Context, source: str) -> str:
    """Make it small, if it is a film."""
    runs["encode"] += 1
    if source == "noise.mov" and runs["encode"] == 2:
        raise ValueError("this is no film")
    return source.replace(".mov", ".webm")


async def upload(ctx: Context, film: str) -> str:
    """Send it away; the first time the line breaks."""
    runs["upload"] += 1
    if runs["upload"] == 1:
        raise Breaks("the line is broken")
    return f"https://films.example/{film}"


@asynccontextmanager
async def receiving(told: asyncio.Queue[str]) -> AsyncIterator[str]:
    """Serve on this machine, as any web framework would, and check what is posted; give the address."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head if line)}
        said = verify_webhook(await reader.readexactly(int(headers["content-length"])), headers, secret)
        told.put_nowait(said["type"])
        writer.write(b"HTTP/1.1 204 \r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


def open_queue(path: Path) -> Holdfast:
    """Make a face whose webhooks are signed, and may go to this machine."""
    return Holdfast(
        str(path),
        tasks=[tasks],
        webhook_secrets={"default": [secret]},
        webhook_http=True,
        webhook_ports=None,
        webhook_private_addresses=True,
    )


async def main() -> None:
    """Publish two films, and clear up after them."""
    told: asyncio.Queue[str] = asyncio.Queue()
    with tempfile.TemporaryDirectory() as directory:
        hf = open_queue(Path(directory) / "films.db")

        @hf.on("job:retrying", "job:failed", "job:resumed", "job:completed")
        async def listen(event: Event) -> None:
            print(f"event:    {event.name}")

        async with receiving(told) as url, hf, hf.worker(), hf.events(names="job:webhook:delivered") as delivered:
            await hf.webhooks.subscribe(url, events=["job:completed", "job:failed", "job:retrying"])
            chain = await hf.start(publish(title="cat"))
            print("output:  ", await chain.result(timeout=20))
            print("webhooks:", await told.get(), await told.get())

            other = await hf.start(publish(title="noise"))
            try:
                await other.result(timeout=20)
            except ChainFailed as error:
                print("failed:  ", error.reason)
            await hf.retry(other)
            print("output:  ", await other.result(timeout=20))
            print("webhooks:", await told.get(), await told.get())
            job = await hf.get_job(other)
            print("phases:  ", *(f"{each.name} {each.status}," for each in job.phases), f"in all {job.progress} %")
            print("runs:    ", *(f"{name} {number}" for name, number in sorted(runs.items())))

            async with hf.event_stream(snapshot=True) as stream:
                piece = (await anext(stream)).decode()
            print("stream:  ", *(line for line in piece.splitlines() if line.startswith("event: ")))
            for _ in range(4):
                await anext(delivered)  # retention waits for webhooks, too
            done = await hf.retain()
            print(f"retained: {done.stale} marked stale, {done.deleted} deleted")


if __name__ == "__main__":
    asyncio.run(main())
