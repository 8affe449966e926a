"""The receivers of webhooks: they answer well, badly, never, or are gone; a post is one moment of virtual time.

What is checked here is what a receiver can see: every message is a delivery that was committed, with the body that it
was committed with; of one job's messages none comes before an earlier one has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.webhooks.answers import Answer, NotPosted
from tests.simulation.violations import Violation

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

OWN = "https://own.example/hook"
"""The address of jobs that have a webhook of their own."""
WELL = 200
ANSWERS = (*[WELL] * 10, 500, 500, 503, 404, 410, "never", "away", "dies")
ANSWER_SECONDS = 15.0
ATTEMPTS = 5
RETRY_SECONDS = 0.5


class PostOffice:
    """Everybody who is posted to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.answers: dict[str, set[int]] = {}
        """What was answered, by the id of the message."""

    async def receive(self, process: Process, address: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Take a message; give an answer, or none."""
        world = self._world
        await asyncio.sleep(world.disk.latency())
        how = WELL if world.is_calm or world.is_staged else world.chance.choice(ANSWERS)
        if how == "away":
            raise NotPosted("connect", "no connection", 0.0)
        message = headers["webhook-id"]
        try:
            world.checker.kept.arrived(message, address, body.decode())
        except Violation as violation:
            world.machine.errors.append(str(violation))
        said = self.answers.setdefault(message, set())
        world.reached["posted again" if said else "posted"] += 1
        if how == "dies":  # after the message, before anybody could write down that it was taken
            said.add(WELL)
            world.note(f"{process.name} dies of a post")
            world.kill(process)
            await asyncio.get_running_loop().create_future()
        if how == "never":
            await asyncio.sleep(ANSWER_SECONDS)
            raise NotPosted("timeout", "no answer in time", ANSWER_SECONDS)
        assert isinstance(how, int)
        said.add(how)
        return Answer(how, 0.0, "")


class VirtualPoster:
    """Posts for one process."""

    def __init__(self, office: PostOffice, process: Process) -> None:
        self._office = office
        self._process = process

    async def post(self, address: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Post *body* with *headers* to *address*; give the answer, or raise `NotPosted`."""
        return await self._office.receive(self._process, address, headers, body)
