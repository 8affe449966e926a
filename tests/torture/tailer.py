"""Who follows the log: `python -m tests.torture.tailer events`, or `stream`, as server-sent events.

It writes down each event that it is given, and with it the place in the log; when it comes back after it was killed it
goes on behind the last line. The first one goes on from where the run began.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from holdfast.errors import CursorExpired, StoreError
from tests.support.sse_reader import Reader
from tests.torture.application import hf
from tests.torture.notes import Notes, is_set, place, read

LAGGING_SECONDS = 0.5


class Tail:
    """What one reader has been given."""

    def __init__(self, way: str) -> None:
        path = place() / f"stream-{way}.jsonl"
        self._notes = Notes(path)
        self.cursor = _last_cursor(path) or (place() / "cursor").read_text()

    def take(self, cursor: str, **facts: object) -> None:
        """Write an event down."""
        self._notes.write(**facts, cursor=cursor)
        self.cursor = cursor


def _last_cursor(path: Path) -> str | None:
    lines = list(read(path))
    return str(lines[-1]["cursor"]) if lines else None


async def follow_events(tail: Tail) -> None:
    """Follow until something breaks it off, or the run is over."""
    async with hf.events(after=tail.cursor) as events:
        async for event in events:
            job = event.job
            facts = {} if job is None else {"job": str(job.id), "job_version": job.version, "queue": job.queue}
            tail.take(event.cursor, name=event.name, version=event.version, of=event.queue, **facts)


async def follow_stream(tail: Tail) -> None:
    """Do the same as a browser does."""
    reader = Reader()
    async with hf.event_stream(snapshot=False, last_event_id=tail.cursor, ping_seconds=LAGGING_SECONDS) as pieces:
        async for piece in pieces:
            for message in reader.feed(piece):
                if message.event == "ping":
                    continue
                job = message.json.get("job") or {}
                facts = {"job": job.get("id"), "job_version": job.get("version"), "queue": job.get("queue")}
                facts |= {"version": message.json.get("version"), "of": message.json.get("facts", {}).get("queue")}
                tail.take(message.last_id, name=message.event, **facts)


async def main(way: str) -> None:
    """Follow until the run is over, whatever happens to the database."""
    tail = Tail(way)
    follow = {"events": follow_events, "stream": follow_stream}[way]
    async with hf:
        over = asyncio.create_task(_over())
        while not over.done():
            following = asyncio.create_task(follow(tail))
            await asyncio.wait([following, over], return_when=asyncio.FIRST_COMPLETED)
            following.cancel()
            try:
                await following
            except asyncio.CancelledError:
                pass
            except CursorExpired:
                tail.take(tail.cursor, name="reset")
                raise
            except StoreError:
                await asyncio.sleep(0.1)


async def _over() -> None:
    while not is_set("over"):
        await asyncio.sleep(0.1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
