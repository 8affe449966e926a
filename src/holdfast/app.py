"""Holdfast for async code: one line a method; `hf.sync` is the same face, blocking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload
from uuid import UUID

from holdfast.calls import Call, StartOptions
from holdfast.errors import Misuse
from holdfast.models import Chain, Job, Page
from holdfast.settings import Settings, SettingsOptions
from holdfast.store import migrations
from holdfast.store.borrowed import Lender
from holdfast.store.stores import make_store
from holdfast.store.tx import Runner, Store
from holdfast.surroundings import Surroundings
from holdfast.sync import BlockingHoldfast
from holdfast.tasks import Tasks
from holdfast.verbs import ChainListOptions, JobListOptions, PageOptions, Target, Verbs

R = TypeVar("R")


class Holdfast:
    """Durable jobs in your own database: a SQLite file, or PostgreSQL. No I/O until it is first used.

    >>> hf = Holdfast("jobs.db")
    >>> @hf.task(name="greet")
    ... async def greet(name: str) -> str:
    ...     return f"Hello, {name}"
    >>> hf
    <Holdfast on SQLite, 1 task>
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        tasks: Iterable[Tasks] = (),
        settings: Settings | None = None,
        store: Store | None = None,
        surroundings: Surroundings | None = None,
        **options: Unpack[SettingsOptions],
    ) -> None:
        self.settings = _settings(database, settings, options)
        self.tasks = Tasks()
        self.tasks.merge(*tasks)
        self.task = self.tasks.task
        self.declare = self.tasks.declare
        self._surroundings = surroundings or Surroundings()
        self.store = store or make_store(self.settings, self._surroundings)
        self._lender = Lender(self.store)
        self._verbs = Verbs(self.tasks, self.settings, self._surroundings)
        self.sync = BlockingHoldfast(self.store, self._lender, self._verbs)
        """The same face for blocking code; it opens itself and closes at exit."""

    async def open(self) -> Self:
        """Connect, check the schema (a SQLite file is brought up to date) and write down the tasks known here."""
        await self.store.open()
        await self._verbs.record_tasks(self.store)
        return self

    async def close(self) -> None:
        """Let go of all connections and threads; the next use opens it again."""
        self._verbs.forget()
        await self.store.close()
        self._surroundings.threads.close()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; return the names of the steps that were taken."""
        self._verbs.forget()
        return await self.store.migrate()

    async def start(self, call: Call[R], *, connection: object = None, **options: Unpack[StartOptions]) -> Chain[R]:
        """Start a chain with *call*; it exists when this returns, or when the transaction of *connection* commits.

        The keywords are those of `Call.options`. A start that meets its `unique` key or its id gives the chain that
        has it, with `deduplicated` set.
        """
        return (await self.start_many([call.options(**options) if options else call], connection=connection))[0]

    async def start_many(self, calls: Sequence[Call[R]], *, connection: object = None) -> list[Chain[R]]:
        """Start a chain for each of *calls*, in order, all or none, in a constant number of statements."""
        taken = self._verbs.take(calls, connection)
        if connection is None:
            await self._verbs.record_tasks(self.store)
        return await self._verbs.start(await self._at(connection), taken)

    def call(self, name: str, arguments: Mapping[str, Any]) -> Call[Any]:
        """Build a call by the task's name, for a task that this process does not import."""
        return self.tasks.call(name, arguments)

    async def get_job(self, job: Target, *, connection: object = None) -> Job:
        """Read a job, or raise `JobNotFound`."""
        return await self._verbs.get_job(await self._at(connection), job)

    @overload
    async def get_chain(self, chain: Chain[R], *, connection: object = None) -> Chain[R]: ...
    @overload
    async def get_chain(self, chain: Target, *, connection: object = None) -> Chain[Any]: ...
    async def get_chain(self, chain: Target, *, connection: object = None) -> Chain[Any]:
        """Read the chain of this id, or the one that the job of this id belongs to; or raise `ChainNotFound`."""
        return await self._verbs.get_chain(await self._at(connection), chain)

    async def list_jobs(self, **wanted: Unpack[JobListOptions]) -> Page[Job]:
        """List jobs a page at a time, newest first unless `order="oldest"`.

        `task`, `status`, `queue` and `lane` take one word or several; `status` also the derived words (`scheduled`,
        `waiting`, …); `created_from` and `created_to` aware datetimes; `cursor` the `next_cursor` of the page before.
        """
        return await self._verbs.list_jobs(self.store, wanted)

    async def list_chains(self, **wanted: Unpack[ChainListOptions]) -> Page[Chain[Any]]:
        """List chains a page at a time, newest first unless `order="oldest"`.

        `status` is that of the last job, `is_open=True` leaves out closed chains, `roots_only=True` those that are
        blockers; the rest as in `list_jobs`.
        """
        return await self._verbs.list_chains(self.store, wanted)

    async def list_chain_jobs(self, chain: Target, **page: Unpack[PageOptions]) -> Page[Job]:
        """List the jobs of a chain, its first one first; or raise `ChainNotFound`."""
        return await self._verbs.list_chain_jobs(self.store, chain, page)

    async def delete(self, chain: Target, *, cascade: bool = False, connection: object = None) -> list[UUID]:
        """Delete a whole chain, with *cascade* also all it waits for; return the ids of the deleted chains.

        Raises `ChainNotFound`, and `StillReferenced` while an open job of another chain waits for it.
        """
        return await self._verbs.delete(await self._at(connection), chain, cascade)

    async def delete_many(
        self, chains: Sequence[Target], *, cascade: bool = False, connection: object = None
    ) -> list[UUID]:
        """Delete whole chains, all or none; ids that are not there are passed over."""
        return await self._verbs.delete_many(await self._at(connection), chains, cascade)

    async def _at(self, connection: object) -> Runner:
        if connection is None:
            return self.store
        return await self._lender.borrow(connection, is_async=True, identity=self._identity)

    async def _identity(self) -> str | None:
        return await self.store.read(migrations.identity, self.store.database)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> None:
        raise Misuse("this face is async; write `async with hf:`, or `with hf.sync:` in blocking code")

    def __exit__(self, *_: object) -> None:
        raise Misuse("this face is async; write `async with hf:`")

    def __repr__(self) -> str:
        kind = "PostgreSQL" if self.settings.is_postgres else "SQLite"
        return f"<Holdfast on {kind}, {len(self.tasks)} task{'' if len(self.tasks) == 1 else 's'}>"


def _settings(database: str | None, settings: Settings | None, options: SettingsOptions) -> Settings:
    if settings is not None:
        if database is not None or options:
            raise Misuse("give either settings= or the single settings, not both")
        return settings
    given: dict[str, object] = dict(options)
    return Settings.from_environment(**given if database is None else given | {"database": database})
