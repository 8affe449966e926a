"""What a worker logs: its start and its stop, every failed attempt, and the job in each line of a handler."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from holdfast import Context, Fail, Holdfast, Pause, Retry, __version__
from holdfast.logging import JobFilter
from holdfast.outcomes import Reschedule
from holdfast.runtime import Runtime
from holdfast.store.jobs import claiming
from holdfast.store.jobs.claiming import Want
from holdfast.store.jobs.settling import Settlement
from holdfast.worker.claiming.unsettled import Unsettled
from holdfast.worker.upkeep.reaper import Upkeep
from tests.support.conditions import until
from tests.support.log_lines import lines, named

FAILURES = ("attempt_failed", "job_failed", "job_paused")


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(
    request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast], caplog: pytest.LogCaptureFixture
) -> AsyncIterator[Holdfast]:
    """A face on each database, whose log is caught from INFO on, with the jobs in its lines."""
    caplog.set_level(logging.INFO)
    added = JobFilter()
    caplog.handler.addFilter(added)
    made = new_holdfast(request.param)
    await made.open()
    yield made
    await made.close()
    caplog.handler.removeFilter(added)


def failures(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int, bool]]:
    """Give the name, the attempt and whether there is a traceback, of every line about a failure."""
    found = [vars(each) for each in caplog.records if vars(each).get("event_name") in FAILURES]
    return [(each["event_name"], each["attempt"], each["exc_info"] is not None) for each in found]


@pytest.mark.parametrize("is_async", [True, False])
async def test_every_failed_attempt_is_logged_the_first_and_the_last_with_a_traceback(
    hf: Holdfast, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """B1."""

    async def pack(order: int) -> None:
        raise ValueError(f"no box for {order}\nnor a bag")

    def pack_plainly(order: int) -> None:
        raise ValueError(f"no box for {order}\nnor a bag")

    task = hf.task(name="pack", retry=Retry(attempts=3, first=0.01))(pack if is_async else pack_plainly)
    async with hf.worker():
        chain = await hf.start(task(order=7))
        await hf.wait([chain], timeout=30)

    assert failures(caplog) == [("attempt_failed", 1, True), ("attempt_failed", 2, False), ("job_failed", 3, True)]
    first, _ = named(caplog, "attempt_failed")
    (last,) = named(caplog, "job_failed")
    assert (first.levelname, last.levelname) == ("WARNING", "ERROR")
    assert first.getMessage() == (
        f"Attempt 1 of job {chain.id} (task pack) failed: ValueError: no box for 7; "
        f"it runs again in {vars(first)['seconds']} s"
    )
    assert last.getMessage() == (
        f"Job {chain.id} (task pack) failed for good in attempt 3 (attempts used up): ValueError: no box for 7"
    )
    assert last.exc_info is not None
    trace = last.exc_info[2]
    assert trace is not None
    assert trace.tb_frame.f_code.co_name == ("pack" if is_async else "pack_plainly")  # none of ours before it


async def test_what_a_handler_decides_is_logged_and_what_people_ask_for_is_not(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    """B1."""
    begun = asyncio.Event()

    @hf.task(name="steers")
    async def steers(how: str) -> None:
        match how:
            case "fail":
                raise Fail("the card was declined")
            case "pause":
                raise Pause("a person has to look")
            case "later":
                raise Reschedule(after=3600)
            case "wait":
                begun.set()
                await asyncio.sleep(3600)

    async with hf.worker():
        fails, pauses, later, waits = await hf.start_many(
            [steers(how=each) for each in ("fail", "pause", "later", "wait")]
        )
        await begun.wait()
        await hf.pause(waits)
        await until(
            lambda: _are(hf, {fails: "failed", pauses: "paused", later: "scheduled", waits: "paused"}), "all end"
        )

    assert sorted(failures(caplog)) == [("job_failed", 1, True), ("job_paused", 1, False)]


async def test_a_continuation_that_cannot_be_written_is_logged_as_a_failure(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    """B1: its handler had returned."""

    @hf.task(name="pack", retry=Retry.never())
    async def pack(ctx: Context, order: int) -> int:
        return ctx.continue_with(pack(order=8).options(id=other.id))

    other = await hf.start(pack(order=1), paused=True)
    async with hf.worker():
        chain = await hf.start(pack(order=7))
        await hf.wait([chain], timeout=30)

    (failed,) = named(caplog, "job_failed")
    assert f"Job {chain.id} (task pack) failed for good in attempt 1" in failed.getMessage()
    assert f"IdTaken: job {other.id} exists already" in failed.getMessage()


@pytest.mark.parametrize(
    ("on_lost", "line"),
    [
        ("fail", ("job_failed", "lost", "Lost: the worker was gone")),
        ("pause", ("job_paused", "lost", None)),
        ("retry", None),
    ],
)
async def test_a_job_that_ends_with_its_worker_is_logged_by_whoever_finds_it(
    hf: Holdfast, on_lost: Any, line: tuple[str, str, str | None] | None, caplog: pytest.LogCaptureFixture
) -> None:
    """B1: nobody else can say it, because its worker is gone."""

    @hf.task(name="pack", on_lost=on_lost)
    async def pack() -> None: ...

    chain = await hf.start(pack())
    (job,) = await hf.store.run(claiming.claim, [Want("default", "pack", 1000)], 1, "worker-dead", "nonce")
    await hf.store.run(_expire)

    await Upkeep(hf.store, Runtime(), []).step()

    said = [vars(each) for each in caplog.records if vars(each).get("event_name") in FAILURES]
    assert [(each["event_name"], each["job"], each["attempt"]) for each in said] == (
        [] if line is None else [(line[0], str(chain.id), job.token.attempt)]
    )
    if line is not None:
        assert said[0]["reason"] == line[1]
        assert str(said[0].get("error", "")).startswith(line[2] or "")


async def _expire(tx: Any) -> None:
    await tx.execute("UPDATE holdfast_job SET lease_until = $now - 1")


async def _are(hf: Holdfast, states: dict[Any, str]) -> bool:
    return all([(await hf.get_job(job)).state == state for job, state in states.items()])


@pytest.mark.source("JC-70")
async def test_a_worker_says_what_it_serves_when_it_starts_and_that_it_stops(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    """B1."""

    @hf.task(name="pack", queue="parcels")
    async def pack() -> None: ...

    async with hf.worker(concurrency=7, name="shop") as worker:
        await until(lambda: "worker_started" in lines(caplog), "it says that it starts")

    (started,) = named(caplog, "worker_started")
    assert f"Worker {worker.id} (pid {os.getpid()}, Holdfast {__version__}) started on " in started.getMessage()
    assert started.getMessage().endswith(": 7 slots, queues default, parcels, tasks pack")
    assert hf.settings.shown_database in started.getMessage()
    assert [each for each in lines(caplog) if each.startswith("worker_")][-2:] == ["worker_drains", "worker_stopped"]


@pytest.mark.source("JC-113")
async def test_lines_of_handlers_have_their_job(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    """B1."""
    own = logging.getLogger("shop")

    @hf.task(name="at_once")
    async def at_once() -> None:
        own.info("at once")

    @hf.task(name="waiting")
    async def waiting() -> None:
        await asyncio.sleep(0)
        own.info("waiting")

    @hf.task(name="plain")
    def plain() -> None:
        own.info("plain")

    async def around(ctx: Any, following: Any) -> None:
        own.info("around")
        await following()

    @hf.task(name="wrapped", middleware=[around])
    async def wrapped() -> None: ...

    async with hf.worker():
        chains = await hf.start_many([at_once(), waiting(), plain(), wrapped(), at_once()])
        await hf.wait(chains, timeout=30)
        own.info("outside")

    said = [
        (each.getMessage(), vars(each)["job"], vars(each)["attempt"]) for each in caplog.records if each.name == "shop"
    ]
    ids = [str(each.id) for each in chains]
    assert set(said) == {
        ("at once", ids[0], 1),
        ("waiting", ids[1], 1),
        ("plain", ids[2], 1),
        ("around", ids[3], 1),
        ("at once", ids[4], 1),
        ("outside", None, None),
    }


async def test_lines_of_the_worker_do_not_have_the_job_of_a_handler_that_ended(
    hf: Holdfast, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that waits for nothing runs in a task of the worker, which goes on with other things after it."""
    settle = Unsettled.add

    def add(unsettled: Unsettled, *settlements: Settlement) -> None:
        logging.getLogger("holdfast").info("written next")
        settle(unsettled, *settlements)

    monkeypatch.setattr(Unsettled, "add", add)

    @hf.task(name="at_once")
    async def at_once() -> None: ...

    async with hf.worker():
        await hf.wait([await hf.start(at_once())], timeout=30)

    assert {vars(each)["job"] for each in caplog.records if each.getMessage() == "written next"} == {None}


class Endless(Exception):
    def __str__(self) -> str:
        return "x" * 1_000_000


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


def without_a_text() -> None:
    raise ValueError("\ud800")


def out_of_another() -> None:
    raise ValueError("short") from Endless()


async def test_an_error_that_no_log_can_take_is_cut_short(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    def endless() -> None:
        raise Endless

    def mute() -> None:
        raise Mute

    raising = {each.__name__: each for each in (endless, mute, without_a_text, out_of_another)}

    @hf.task(name="odd", retry=Retry.never())
    async def odd(name: str) -> None:
        raising[name]()

    async with hf.worker():
        await hf.wait(await hf.start_many([odd(name=each) for each in raising]), timeout=30)

    assert len(failures(caplog)) == len(raising)
    assert len(caplog.text.encode()) < 50_000


async def test_a_log_that_raises_harms_no_job(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    """I-07."""

    class Broken(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ZeroDivisionError

    @hf.task(name="fails", retry=Retry.never())
    async def fails() -> None:
        raise ValueError

    broken = Broken()
    caplog.handler.addFilter(broken)
    async with hf.worker(concurrency=1):
        done = await hf.wait(await hf.start_many([fails(), fails()]), timeout=30)
    caplog.handler.removeFilter(broken)

    assert [job.status for job in done] == ["failed", "failed"]


async def test_passwords_in_the_text_of_an_error_stay_out_of_the_log(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    """S-24: an address with its password is the usual text of a driver's error."""

    @hf.task(name="pack", retry=Retry.never())
    async def pack() -> None:
        raise ValueError("cannot reach postgres://ada:hunter2@db/shop")

    async with hf.worker():
        chain = await hf.start(pack())
        await hf.wait([chain], timeout=30)

    assert failures(caplog) == [("job_failed", 1, True)]
    assert "postgres://ada:•••@db/shop" in caplog.text
    assert "hunter2" not in caplog.text
