"""Holdfast for blocking code: the methods of the async face, one line each, over the same verbs."""

from __future__ import annotations

import atexit
import weakref
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload
from uuid import UUID

from holdfast.calls import Call, StartOptions
from holdfast.models import Chain, Job, Page
from holdfast.store import migrations
from holdfast.store.borrowed import Lender
from holdfast.store.tx import Blocking, Runner, Store, drive
from holdfast.verbs import ChainListOptions, JobListOptions, PageOptions, Target, Verbs
from holdfast.worker.context import BlockingContext as Context

__all__ = ["BlockingHoldfast", "Context"]

R = TypeVar("R")


class BlockingHoldfast:
    """The blocking face of a `Holdfast`, as `hf.sync`: opens itself when first used, closes at exit."""

    def __init__(self, store: Store, lender: Lender, verbs: Verbs) -> None:
        self.store = store
        self._blocking = Blocking(store)
        self._lender = lender
        self._verbs = verbs
        atexit.register(_close_at_exit, weakref.ref(store))

    def open(self) -> Self:
        """Connect, check the schema (a SQLite file is brought up to date) and write down the tasks known here."""
        self.store.open_sync()
        drive(self._verbs.record_tasks(self._blocking))
        return self

    def close(self) -> None:
        """Let go of all connections and threads; the next use opens it again."""
        self._verbs.forget()
        self.store.close_sync()

    def migrate(self) -> list[str]:
        """Bring the schema up to date; return the names of the steps that were taken."""
        self._verbs.forget()
        return self.store.migrate_sync()

    def start(self, call: Call[R], *, connection: object = None, **options: Unpack[StartOptions]) -> Chain[R]:
        """Start a chain with *call*; it exists when this returns, or when the transaction of *connection* commits.

        The keywords are those of `Call.options`. A start that meets its `unique` key or its id gives the chain that
        has it, with `deduplicated` set.
        """
        return self.start_many([call.options(**options) if options else call], connection=connection)[0]

    def start_many(self, calls: Sequence[Call[R]], *, connection: object = None) -> list[Chain[R]]:
        """Start a chain for each of *calls*, in order, all or none, in a constant number of statements."""
        taken = self._verbs.take(calls, connection)
        if connection is None:
            drive(self._verbs.record_tasks(self._blocking))
        return drive(self._verbs.start(self._at(connection), taken))

    def call(self, name: str, arguments: Mapping[str, Any]) -> Call[Any]:
        """Build a call by the task's name, for a task that this process does not import."""
        return self._verbs.tasks.call(name, arguments)

    def get_job(self, job: Target, *, connection: object = None) -> Job:
        """Read a job, or raise `JobNotFound`."""
        return drive(self._verbs.get_job(self._at(connection), job))

    @overload
    def get_chain(self, chain: Chain[R], *, connection: object = None) -> Chain[R]: ...
    @overload
    def get_chain(self, chain: Target, *, connection: object = None) -> Chain[Any]: ...
    def get_chain(self, chain: Target, *, connection: object = None) -> Chain[Any]:
        """Read the chain of this id, or the one that the job of this id belongs to; or raise `ChainNotFound`."""
        return drive(self._verbs.get_chain(self._at(connection), chain))

    def list_jobs(self, **wanted: Unpack[JobListOptions]) -> Page[Job]:
        """List jobs a page at a time, newest first unless `order="oldest"`.

        `task`, `status`, `queue` and `lane` take one word or several; `status` also the derived words (`scheduled`,
        `waiting`, …); `created_from` and `created_to` aware datetimes; `cursor` the `next_cursor` of the page before.
        """
        return drive(self._verbs.list_jobs(self._blocking, wanted))

    def list_chains(self, **wanted: Unpack[ChainListOptions]) -> Page[Chain[Any]]:
        """List chains a page at a time, newest first unless `order="oldest"`.

        `status` is that of the last job, `is_open=True` leaves out closed chains, `roots_only=True` those that are
        blockers; the rest as in `list_jobs`.
        """
        return drive(self._verbs.list_chains(self._blocking, wanted))

    def list_chain_jobs(self, chain: Target, **page: Unpack[PageOptions]) -> Page[Job]:
        """List the jobs of a chain, its first one first; or raise `ChainNotFound`."""
        return drive(self._verbs.list_chain_jobs(self._blocking, chain, page))

    def delete(self, chain: Target, *, cascade: bool = False, connection: object = None) -> list[UUID]:
        """Delete a whole chain, with *cascade* also all it waits for; return the ids of the deleted chains.

        Raises `ChainNotFound`, and `StillReferenced` while an open job of another chain waits for it.
        """
        return drive(self._verbs.delete(self._at(connection), chain, cascade))

    def delete_many(self, chains: Sequence[Target], *, cascade: bool = False, connection: object = None) -> list[UUID]:
        """Delete whole chains, all or none; ids that are not there are passed over."""
        return drive(self._verbs.delete_many(self._at(connection), chains, cascade))

    def _at(self, connection: object) -> Runner:
        if connection is None:
            return self._blocking
        return drive(self._lender.borrow(connection, is_async=False, identity=self._identity))

    async def _identity(self) -> str | None:
        return self.store.read_sync(migrations.identity, self.store.database)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close_at_exit(reference: weakref.ref[Store]) -> None:
    store = reference()
    if store is not None:
        store.close_sync()
