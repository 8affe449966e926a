"""What both faces do, written once: reading, waiting and steering; `client/starter` has the starts.

Every verb takes a `Runner` first: the store, its blocking twin or a caller's transaction. The async face awaits a
verb; over a blocking runner nothing suspends, so the blocking face finishes the same coroutine with `drive()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, get_args
from uuid import UUID

from holdfast import current_block
from holdfast.client.chain_handle import Seconds
from holdfast.client.list_options import ChainListOptions, JobListOptions, PageOptions, chain_list, job_list, paging
from holdfast.client.starter import Starter
from holdfast.client.transactions import InBlock
from holdfast.client.waiter import Until, Waits
from holdfast.codec import clean_text
from holdfast.database.borrowed import Borrowed
from holdfast.database.tx import Operation, Runner
from holdfast.errors import ChainCancelled, ChainFailed, ChainNotFound, InvalidInput
from holdfast.ids import Target, target_id
from holdfast.models import Asked, CancelAnswer, Event, Job, Page, PauseAnswer, StoredChain
from holdfast.states import Status
from holdfast.store import polls, reads
from holdfast.store.chains import creation, deletes
from holdfast.store.jobs import completing, steering
from holdfast.store.log import reading
from holdfast.tasks.calls import check_delay, milliseconds_of
from holdfast.tasks.task import Task, require_task

P = ParamSpec("P")
R = TypeVar("R")

When: TypeAlias = tuple[int, int]
"""A time in milliseconds since 1970, and how long from now it is instead if that is past."""

WORDS_LENGTH = 2_000


class Verbs:
    """The verbs over one registry of tasks and one set of settings, those of *starter*."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._decoder = starter.decoder

    async def get_job(self, runner: Runner, target: Target) -> Job:
        """Read one job."""
        return self._decoder.job(await runner.read(reads.get_job, target_id(target)))

    async def get_chain(self, runner: Runner, target: Target) -> StoredChain[Any]:
        """Read one chain."""
        return self._decoder.chain(await runner.read(reads.get_chain, target_id(target)))

    async def result(self, runner: Runner, waits: Waits, chain_id: UUID, timeout: Seconds | None) -> Any:
        """Wait until a chain closes and give its output; or raise why there is none."""
        seconds = _timeout(timeout)
        end = (await runner.read(polls.chain_results, [chain_id])).get(chain_id)
        if end is None:
            raise ChainNotFound(chain_id)
        if end.closed_as is None:
            end = (await waits.wait([end.chain_id], "all", seconds))[end.chain_id]
        match end.closed_as:
            case Status.FAILED:
                raise ChainFailed(end.chain_id, end.job_id, end.reason, end.error)
            case Status.CANCELLED:
                raise ChainCancelled(end.chain_id, end.job_id, end.reason)
        return self._decoder.output(end.task, end.output)

    async def wait(
        self, runner: Runner, waits: Waits, targets: Sequence[Target], until: Until, timeout: Seconds | None
    ) -> list[StoredChain[Any]]:
        """Wait until all, or any, of the chains have closed; give all of them as they are then."""
        if until not in get_args(Until):
            raise InvalidInput("one waits for 'all' or for 'any'", "until")
        seconds = _timeout(timeout)
        ids = _ids_in_any_order(targets)
        found = await runner.read(polls.chain_results, ids) if ids else {}
        if missing := [each for each in ids if each not in found]:
            raise ChainNotFound(missing[0])
        still_open = list({each.chain_id: None for each in found.values() if each.closed_as is None})
        if still_open and (until == "all" or len(still_open) == len({each.chain_id for each in found.values()})):
            await waits.wait(still_open, until, seconds)
        chain_ids = [found[each].chain_id for each in ids]
        known = {each.id: self._decoder.chain(each) for each in await runner.read(reads.chains_by_id, chain_ids)}
        if gone := [each for each in chain_ids if each not in known]:
            raise ChainNotFound(gone[0])
        return [known[each] for each in chain_ids]

    async def list_jobs(self, runner: Runner, options: JobListOptions) -> Page[Job]:
        """List jobs."""
        page = await runner.read(reads.list_jobs, *job_list(**options))
        return Page(tuple(map(self._decoder.job, page.items)), page.next_cursor)

    async def list_chains(self, runner: Runner, options: ChainListOptions) -> Page[StoredChain[Any]]:
        """List chains."""
        page = await runner.read(reads.list_chains, *chain_list(**options))
        return Page(tuple(map(self._decoder.chain, page.items)), page.next_cursor)

    async def list_chain_jobs(self, runner: Runner, target: Target, options: PageOptions) -> Page[Job]:
        """List the jobs of one chain."""
        page = await runner.read(reads.list_chain_jobs, target_id(target), paging(**options))
        return Page(tuple(map(self._decoder.job, page.items)), page.next_cursor)

    async def delete(self, runner: Runner, target: Target, cascade: bool) -> list[UUID]:
        """Delete one chain, which must be there."""
        deleted = await self.delete_many(runner, only_one(target, "delete"), cascade)
        if not deleted:
            raise ChainNotFound(target_id(target))
        return deleted

    async def delete_many(self, runner: Runner, targets: Sequence[Target], cascade: bool) -> list[UUID]:
        """Delete chains, as far as they are there."""
        ids = _ids_in_any_order(targets)
        refuse_in_block(runner, _verb("delete", targets))
        return await runner.run(deletes.delete, ids, cascade)

    async def cancel(self, runner: Runner, jobs: Sequence[Target], asked: Asked) -> list[CancelAnswer]:
        """Cancel jobs."""
        return await _steer(runner, "cancel", steering.cancel, jobs, asked)

    async def pause(self, runner: Runner, jobs: Sequence[Target], asked: Asked) -> list[PauseAnswer]:
        """Pause jobs."""
        return await _steer(runner, "pause", steering.pause, jobs, asked)

    async def resume(self, runner: Runner, jobs: Sequence[Target], asked: Asked) -> list[Job]:
        """Let paused jobs go on."""
        return [self._decoder.job(each) for each in await _steer(runner, "resume", steering.resume, jobs, asked)]

    async def retry(self, runner: Runner, jobs: Sequence[Target], asked: Asked) -> list[Job]:
        """Run failed or cancelled jobs again."""
        return [self._decoder.job(each) for each in await _steer(runner, "retry", steering.retry, jobs, asked)]

    async def reschedule(self, runner: Runner, jobs: Sequence[Target], when: When, asked: Asked) -> list[Job]:
        """Have pending jobs run at another time, or at once."""
        verb = "trigger" if when is NOW else "reschedule"
        moved = await _steer(runner, verb, steering.reschedule, jobs, *when, asked)
        return [self._decoder.job(each) for each in moved]

    async def complete(self, runner: Runner, task: Task[..., Any], target: Target, output: object, asked: Asked) -> Job:
        """Complete a job without a worker."""
        require_task(task, "hf.complete")
        refuse_in_block(runner, "complete")
        operation = completing.complete if _is_callers(runner) else completing.complete_at_once
        job = await runner.run(operation, target_id(target), task.names, task.encode_output(output), asked)
        return self._decoder.job(job)

    async def get_blockers(self, runner: Runner, target: Target) -> list[StoredChain[Any]]:
        """Read the chains that a job waits for."""
        return [self._decoder.chain(each) for each in await runner.read(reads.get_blockers, target_id(target))]

    async def list_blocked_by(self, runner: Runner, target: Target, options: PageOptions) -> Page[Job]:
        """List the jobs that wait for a chain."""
        page = await runner.read(reads.list_blocked_by, target_id(target), paging(**options))
        return Page(tuple(map(self._decoder.job, page.items)), page.next_cursor)

    async def cursor(self, runner: Runner) -> str:
        """Give the cursor of now."""
        return (await runner.read(reading.now)).text

    async def timeline(self, runner: Runner, target: Target, options: PageOptions) -> Page[Event]:
        """List the events of one job."""
        wanted = paging(**options)
        page = await runner.read(reading.timeline, target_id(target), wanted.limit, wanted.cursor)
        return Page(tuple(map(self._decoder.event, page.items)), page.next_cursor)

    async def start_again(
        self, runner: Runner, jobs: Sequence[Target], connection: object, asked: Asked
    ) -> list[StoredChain[Any]]:
        """Start new chains like those of *jobs*."""
        refuse_in_block(runner, _verb("start_again", jobs))
        self._starter.take([], connection)
        wanted = [(each, self._starter.new_id()) for each in _target_ids(jobs)]
        started = await runner.run(creation.start_again, wanted, asked.said()) if wanted else []
        return [self._decoder.chain(each) for each in started]


def _timeout(timeout: Seconds | None) -> float | None:
    if timeout is None:
        return None
    seconds: object = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
        raise InvalidInput("it is seconds or a timedelta, 0 or more; None waits for ever", "timeout")
    return seconds


class OnlyOne(list[Target]):
    """What a verb for one job was given, as the verb for many takes it."""


def only_one(target: Target, verb: str) -> OnlyOne:
    """Take the one job that *verb* is given; refuse several of them with the line to write."""
    if _are_several(target):
        raise InvalidInput(f"hf.{verb}() takes one job, chain or id; write hf.{verb}_many([...])")
    return OnlyOne([target])


def _verb(name: str, targets: object) -> str:
    """Give the name by which the caller has asked for it: that for one, or that for many."""
    return name if isinstance(targets, OnlyOne) else f"{name}_many"


def _ids_in_any_order(targets: object) -> list[UUID]:
    if isinstance(targets, Iterable) and _are_several(targets):
        return [target_id(each) for each in targets]
    raise InvalidInput(
        f"it is a list of jobs, chains or ids, not one {type(targets).__name__}; write [chain]", "chains"
    )


def _target_ids(targets: object) -> list[UUID]:
    if isinstance(targets, Sequence) and not isinstance(targets, str | bytes):
        return [target_id(each) for each in targets]
    if _are_several(targets):
        raise InvalidInput("several are given as a list or a tuple, for the answers have their order; write list(…)")
    raise InvalidInput(f"it is a list of jobs, chains or ids, not one {type(targets).__name__}; write [job]", "jobs")


def _are_several(targets: object) -> bool:
    return isinstance(targets, Iterable) and not isinstance(targets, str | bytes) and not hasattr(targets, "id")


async def _steer(
    runner: Runner,
    verb: str,
    operation: Operation[Concatenate[Sequence[UUID], P], list[R]],
    targets: Sequence[Target],
    *args: P.args,
    **kwargs: P.kwargs,
) -> list[R]:
    """Run *operation*; on a caller's connection what it leaves to admission stays left until the commit."""
    ids = _target_ids(targets)
    if not ids:
        return []
    refuse_in_block(runner, _verb(verb, targets))
    if _is_callers(runner):
        return await runner.run(operation, ids, *args, **kwargs)
    return await runner.run(steering.at_once, operation, ids, *args, **kwargs)


def refuse_in_block(runner: Runner, verb: str) -> None:
    """Raise `Misuse` for *verb* in a transaction of our own, if a block of a handler is open here."""
    if not _is_callers(runner):
        current_block.refuse_write(f"hf.{verb}")


def _is_callers(runner: Runner) -> bool:
    """Tell whether it writes in a transaction that the caller, or a block, has opened and will commit."""
    return isinstance(runner, Borrowed | InBlock)


def asked_by(by: str | None, why: str | None) -> Asked:
    """Say who asks and why, in texts that can be stored."""
    return Asked(_words(by, "by"), _words(why, "why"))


def _words(value: object, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidInput(
            f"it is a text, not {type(value).__name__}; write {name}=str(…), or what it stands for", name
        )
    return value and clean_text(value, WORDS_LENGTH)


def when_of(at: datetime | None, after: float | timedelta | None) -> When:
    """Read `at=` or `after=`, just one of them, as the store takes it."""
    if (at is None) == (after is None):
        raise InvalidInput("give at= or after=, and just one of them", "at")
    return milliseconds_of(at, "at") or 0, 0 if after is None else check_delay(after)


NOW: When = (0, 0)
