"""Who takes webhooks: a real server in a thread, that writes down what it is sent and does not always behave."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from tests.torture.notes import Notes
from tests.webhooks.receivers import Received, answers, receiver

MISHAPS = (*["take"] * 8, "refuse", "break off")
MOST_MISHAPS = 2
"""After so many tries a message is taken: each try comes three times as late as the one before."""


class Hook:
    """Takes messages."""

    def __init__(self, notes: Notes, chance: Random) -> None:
        self._notes = notes
        self._chance = chance
        self._tries: Counter[str] = Counter()

    async def behave(self, request: Received, writer: asyncio.StreamWriter) -> None:
        """Take a message, refuse it for now, or hang up in the middle."""
        message = request.headers["webhook-id"]
        data = json.loads(request.body)["data"]
        self._tries[message] += 1
        mishap = "take" if self._tries[message] > MOST_MISHAPS else self._chance.choice(MISHAPS)
        digest = hashlib.sha256(request.body).hexdigest()[:16]
        self._notes.write(message=message, job=data["job"]["id"], event=data["event"], answer=mishap, body=digest)
        if mishap == "break off":
            return
        await answers(200 if mishap == "take" else 503)(request, writer)


@contextmanager
def receiving(notes: Notes, chance: Random) -> Iterator[str]:
    """Take messages until the block ends; give the address that they are to be sent to."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="receiver", daemon=True)
    thread.start()
    server = receiver(Hook(notes, chance).behave)
    made = asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(10)
    try:
        yield made.url
    finally:
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
