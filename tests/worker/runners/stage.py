"""What a test of the contract has in its hand: one runner on one database."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from holdfast import Chain, Holdfast
from holdfast.models import Event, Job
from holdfast.tasks.calls import Call
from holdfast.worker.worker import Worker
from tests.support.conditions import until
from tests.worker.runners.behaviours import CHILDREN, LONGEST_SECONDS, PLAIN, Behaviour
from tests.worker.runners.notes import open_gate, read_notes

RECEIPTS = "CREATE TABLE IF NOT EXISTS receipt (id integer PRIMARY KEY, amount integer NOT NULL)"
READY_SECONDS = 100.0
PAY = "INSERT INTO receipt (id, amount) VALUES (:id, 1)"


async def make_table(tx: Any) -> None:
    """Make the user's table."""
    await tx.execute(RECEIPTS)


async def receipt_numbers(tx: Any) -> set[int]:
    """Read the user's table."""
    return {number for (number,) in await tx.fetch_all("SELECT id FROM receipt")}


async def until_ready(worker: Worker) -> None:
    """Wait until a child has imported the application: on a busy machine that takes longer than any test."""

    def is_ready() -> bool:
        children = worker.health().children
        return children is not None and children.idle > 0

    await until(is_ready, "a child is ready", READY_SECONDS)


@dataclass(frozen=True, slots=True)
class Runner:
    """Where handlers run, under a worker that is shared: what a test starts, it knows by its chain."""

    hf: Holdfast
    name: str

    @property
    def database(self) -> Literal["sqlite", "postgres"]:
        """Which database it is."""
        return self.hf.store.database

    @property
    def is_plain(self) -> bool:
        """Tell whether handlers are plain functions."""
        return self.name in PLAIN

    @property
    def is_child(self) -> bool:
        """Tell whether handlers run in a process of their own."""
        return self.name in CHILDREN

    def call(self, behaviour: Behaviour, **arguments: Any) -> Call[Any]:
        """Build a call of a behaviour's task for this runner."""
        return behaviour.on(self.name)(**arguments)

    async def start(self, behaviour: Behaviour, **arguments: Any) -> Chain[Any]:
        """Start a chain with it."""
        return await self.hf.start(self.call(behaviour, **arguments))

    async def result(self, behaviour: Behaviour, **arguments: Any) -> Any:
        """Run it, and give its output."""
        return await self.output(await self.start(behaviour, **arguments))

    async def output(self, chain: Chain[Any]) -> Any:
        """Wait for the output of a chain."""
        return await chain.result(timeout=LONGEST_SECONDS)

    async def end(self, behaviour: Behaviour, **arguments: Any) -> Job:
        """Run it, and give its job, however it ended."""
        return await self.ended(await self.start(behaviour, **arguments))

    async def ended(self, chain: Chain[Any]) -> Job:
        """Wait for the end of a chain of one job, and give that."""
        await self.hf.wait([chain], timeout=LONGEST_SECONDS)
        return await self.hf.get_job(chain)

    async def until_state(self, chain: Chain[Any], state: str) -> Job:
        """Wait until a job is in this state, and give it."""

        async def holds() -> bool:
            return (await self.hf.get_job(chain)).state == state

        await until(holds, f"the job is {state}", LONGEST_SECONDS)
        return await self.hf.get_job(chain)

    async def until_noted(self, chain: Chain[Any], word: str) -> list[Any]:
        """Wait until the handler has written a note that begins with *word*, and give it."""

        def found() -> list[list[Any]]:
            return [words for words in self.notes(chain) if words[0] == word]

        await until(lambda: bool(found()), f"the handler has noted {word!r}", LONGEST_SECONDS)
        return found()[0]

    async def until_told(self, chain: Chain[Any], name: str) -> None:
        """Wait until there is an event of this name in a job's timeline."""

        async def holds() -> bool:
            return bool(await self.history(chain, name))

        await until(holds, f"the history has {name}", LONGEST_SECONDS)

    def notes(self, chain: Chain[Any] | Job) -> list[list[Any]]:
        """Read what the handler has noted."""
        return read_notes(chain.id)

    def open_gate(self, chain: Chain[Any]) -> None:
        """Let the handler go on."""
        open_gate(chain.id)

    async def receipts(self) -> set[int]:
        """Read the user's table."""
        return await self.hf.store.read(receipt_numbers)

    async def history(self, chain: Chain[Any] | Job, name: str) -> list[Event]:
        """Read the events of this name from a job's timeline."""
        return [each for each in (await self.hf.timeline(chain.id)).items if each.name == name]
