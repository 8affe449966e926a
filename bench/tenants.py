"""What tenants cost: idle ones, busy ones, and starts beside a flooded, a locked and a broken one.

*Idle*: one worker for all tenants, in a process of its own, is left alone and then watched. The statements on
PostgreSQL are those that the server has logged, BEGIN and COMMIT included; on SQLite those that the library has run.
Memory is what a process has for itself alone. Locks are those on tables and indexes, from the worker's start until it
is watched.

*A look*: the statement that looks at 25 tenants at once, as a worker runs it: when it is planned, when it runs again,
and after an ANALYZE of one tenant, as autovacuum makes, which has the server plan it anew.

*Busy*: the same number of jobs, in one tenant or spread over more, all with one worker; beside a worker without
tenants, which runs them in the control place.

*Start to handler*: so many starts a second, in one tenant or in turn in 50, for a worker in another process. Beside
them one tenant has 100,000 jobs waiting (`--flood` for another number), one has its tables locked, and one has none any
more. The jobs of the flooded one take 10 ms each, and then those of another no time at all: they take all the CPU that
four slots allow. What 50 tenants wait is compared with what one waits that has all these starts, and beside the same
flood. All lines are run by turns, several times; shown is the median of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import psycopg

from bench.backends import Backends, megabytes_of, watched
from bench.drain import BATCH, GOAL, TASKS, TEXT, work
from bench.idle import log_statements, logged
from bench.meter import Meter
from bench.places import Places, both
from bench.report import Comparison, grid, table
from bench.rounds import Entrant, awaited, take_turns
from bench.worker_process import TASKS as NOTING
from bench.worker_process import WorkerProcess, note, take_time, worker_process
from holdfast import Holdfast
from holdfast.database import make_glance_store
from holdfast.runtime import Runtime
from holdfast.store import glance
from holdfast.tenancy import directory_of, file_of, schema_of

DATABASE = "many_tenants"
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
BUSY = (1, 10, 50)
LOOKED_AT = 25
AIMED_AT = 200
SLOTS = 4
AT_ONCE = 4

IDLE = (
    *("idle", "statements/s", "CPU %", "server CPU %", "worker MB", "backends MB", "connections", "most locks"),
    *("seconds", "target", ""),
)
LOOK = ("a look at", "planned ms", "again ms", "after an ANALYZE ms")
WAITS = (
    *("start to handler", "p50 ms", "p99 ms", "longest ms", "starts", "p50 of one tenant's", "p99 of one tenant's"),
    *("target", ""),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many tenants there are, how long they are left alone and watched, and how much is done in them."""

    tenants: int = AIMED_AT
    settle: float = 45.0
    watch: float = 60.0
    busy: tuple[int, ...] = BUSY
    rounds: int = 3
    jobs: int = 5_000
    warm_up: int = 20
    starts: int = 750
    each_second: float = 50.0
    flood: int = 100_000


QUICK = Sizes(
    tenants=8, settle=0.5, watch=0.5, busy=(1, 2), rounds=1, jobs=40, warm_up=4, starts=12, each_second=20.0, flood=200
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")
    parser.add_argument("--only", choices=tuple(STORES), help="one of the stores")
    parser.add_argument("--tenants", type=int, help="how many tenants there are, instead of 200")
    parser.add_argument("--flood", type=int, help="how many jobs the flooded tenant has, instead of 100,000")
    parser.add_argument("--rounds", type=int, help="how often lines are measured by turns, instead of 3 times")
    parser.add_argument("--part", choices=("idle", "busy", "waits"), action="append", help="a part of it")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether targets are met."""
    sizes = QUICK if arguments.quick else Sizes()
    given = {name: getattr(arguments, name) for name in ("tenants", "flood", "rounds") if getattr(arguments, name)}
    sizes = replace(sizes, **given)
    parts: dict[str, Callable[[Place], str]] = {"idle": measure_idle, "busy": measure_busy, "waits": measure_waits}
    with both(is_quick=arguments.quick) as places:
        for store in (name for key, name in STORES.items() if arguments.only in (None, key)):
            with made(places, store, sizes) as place:
                for name, measure in parts.items():
                    if arguments.part is None or name in arguments.part:
                        print(measure(place), end="\n\n", flush=True)
    return 0


@dataclass(frozen=True, slots=True)
class Place:
    """A database with tenants, and who measures there."""

    places: Places
    store: str
    url: str
    sizes: Sizes
    runner: asyncio.Runner
    meter: Meter

    @property
    def is_postgres(self) -> bool:
        """Tell whether there is a server."""
        return self.store == "PostgreSQL"


def name_of(number: int) -> str:
    """Name a tenant."""
    return f"t{number:04}"


@contextmanager
def made(places: Places, store: str, sizes: Sizes) -> Iterator[Place]:
    """Make a database with its tenants."""
    with asyncio.Runner() as runner, places.address(store, DATABASE) as url:
        began = time.monotonic()
        runner.run(make_tenants(url, sizes.tenants))
        took = time.monotonic() - began
        print(f"{store}: {sizes.tenants} tenants made, {took / sizes.tenants * 1000:.0f} ms each\n", flush=True)
        yield Place(places, store, url, sizes, runner, places.meter(store))


async def make_tenants(url: str, count: int) -> None:
    """Make so many tenants, some at a time."""
    hf = Holdfast(url, tenants=True)
    await hf.migrate()
    numbers = iter(range(count))

    async def make_some() -> None:
        for number in numbers:
            await hf.tenants.create(name_of(number))

    await asyncio.gather(*(make_some() for _ in range(AT_ONCE)))
    await hf.close()


# idle


def measure_idle(place: Place) -> str:
    """Watch a worker of one idle tenant and one of all; and one look."""
    lines = [idle_line(place, 1, {name_of(0): SLOTS}), idle_line(place, place.sizes.tenants, {"*": SLOTS})]
    shown = grid(IDLE, lines, IDLE[1:-1])
    if place.is_postgres:
        shown += f"\n\n{grid(LOOK, [place.runner.run(look_line(place))], LOOK[1:])}"
    return shown


def idle_line(place: Place, count: int, tenants: Mapping[str, int]) -> tuple[str, ...]:
    """Watch a worker for *tenants*, which are *count*; write its cells."""
    sizes, server = place.sizes, place.places.server.url
    if place.is_postgres:
        log_statements(server, DATABASE)
    with (
        watched(place.store, server, DATABASE) as watch,
        worker_process(place.url, tenants, counts=True) as worker,
    ):
        time.sleep(sizes.settle)
        if watch is not None:
            watch.stop()
        before, counted = worker.usage(), logged(place.places)
        cost = place.meter.measure(partial(time.sleep, sizes.watch))
        after, counted_later = worker.usage(), logged(place.places)
        held = Backends() if watch is None else watch.read()
        own = megabytes_of(worker.pid)
    statements: float | None = after[1] - before[1]
    if place.is_postgres:
        statements = None if counted is None or counted_later is None else counted_later - counted
    rate = None if statements is None else statements / sizes.watch
    has_target = place.is_postgres and count <= AIMED_AT
    served = None if cost.server is None else cost.server / sizes.watch * 100
    return (
        f"{place.store}: {count} tenant{'s' if count > 1 else ''}",
        "not ours to count" if rate is None else f"{rate:.2f}",
        f"{(after[0] - before[0]) / sizes.watch * 100:.2f}",
        *(_cell(each, digits) for each, digits in ((served, 2), (own, 0), (held.megabytes, 0))),
        *(str(each) if place.is_postgres else "-" for each in (held.connections, held.most_locks)),
        f"{sizes.watch:g}",
        "< 2" if has_target else "",
        "" if not has_target or rate is None else "✓" if rate < 2 else "✗",
    )


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


async def look_line(place: Place) -> tuple[str, ...]:
    """Time the statement that looks at many tenants; write its cells."""
    hf = Holdfast(place.url, tasks=[TASKS], tenants=True)
    store = make_glance_store(hf.settings, Runtime())
    schemas = [schema_of(hf.settings.schema_name, name_of(each)) for each in range(min(LOOKED_AT, place.sizes.tenants))]
    text, served = glance.text_for(schemas), glance.Served(["default"], [task.name for task in hf.tasks])

    async def look() -> float:
        began = time.perf_counter()
        await store.read(glance.look_at_many, text, served)
        return (time.perf_counter() - began) * 1000

    await store.read(glance.answer)
    planned = await look()
    again = median([await look() for _ in range(20)])
    anew = []
    async with await psycopg.AsyncConnection.connect(place.url, autocommit=True) as connection:
        for schema in schemas[:5]:
            await connection.execute(f"ANALYZE {schema}.holdfast_job")
            anew.append(await look())
    await store.close()
    await hf.close()
    return f"{len(schemas)} tenants", f"{planned:.1f}", f"{again:.1f}", f"{median(anew):.1f}"


# busy


def measure_busy(place: Place) -> str:
    """Run the same number of jobs in the control place, in one tenant and in more."""
    plain, names = f"{place.store}: no tenant", {count: _tenants(place.store, count) for count in place.sizes.busy}
    with ExitStack() as stack:
        hf = Holdfast(place.url, tasks=[TASKS], tenants=True)
        place.runner.run(hf.open())
        stack.callback(lambda: place.runner.run(hf.close()))
        for worker in (hf.worker(), hf.worker(tenants={"*": 100})):
            place.runner.run(worker.__aenter__())
            stack.callback(lambda worker=worker: place.runner.run(worker.stop()))  # type: ignore[misc]
        entrants = [
            Entrant(name, place.sizes.jobs, awaited(partial(drain_all, faces, place.meter), place.runner))
            for name, faces in (
                (plain, [hf]),
                *((name, [hf.tenant(name_of(each)) for each in range(count)]) for count, name in names.items()),
            )
        ]
        with watched(place.store, place.places.server.url, DATABASE) as watch:
            costs = take_turns(entrants, place.sizes.rounds, place.meter)
            held = None if watch is None else watch.read()
    one = names[min(names)]
    shown = table([Comparison(one, plain), *(Comparison(each, one) for each in names.values() if each != one)], costs)
    if held is None:
        return shown
    size = _cell(held.megabytes, 0)
    return f"{shown}\nafterwards: {held.connections} connections, {size} MB in backends, most locks {held.most_locks}"


def _tenants(store: str, count: int) -> str:
    return f"{store}: {count} busy tenant{'s' if count > 1 else ''}"


async def drain_all(faces: Sequence[Holdfast], meter: Meter, count: int) -> None:
    """Start *count* jobs, shared among *faces*, whose queue is paused meanwhile, and have them run."""
    for number, face in enumerate(faces):
        await face.queue("default").pause()
        wanted = count // len(faces) + (number < count % len(faces))
        for first in range(0, wanted, BATCH):
            await face.start_many([work(text=TEXT) for _ in range(first, min(first + BATCH, wanted))])
    GOAL.set(count)
    meter.reset()
    for face in faces:
        await face.queue("default").resume()
    await GOAL.wait()
    await all_ended(faces)


async def all_ended(faces: Sequence[Holdfast]) -> None:
    """Wait until nothing runs in *faces* any more."""
    for face in faces:
        while (await face.list_jobs(status="running", limit=1)).items:  # noqa: ASYNC110 - nobody tells this process
            await asyncio.sleep(0.01)


# start to handler


def measure_waits(place: Place) -> str:
    """Start jobs in one tenant and in many, with nothing in the way and beside tenants in trouble."""
    many, spare = max(place.sizes.busy), iter(range(place.sizes.tenants - 1, max(place.sizes.busy) - 1, -1))
    floods = {None: "", 0.01: ", a flood of 10 ms jobs", 0.0: ", a flood of 0 ms jobs"}
    trouble = Trouble(name_of(next(spare)), name_of(next(spare)))
    one: dict[float | None, list[Waits]] = {seconds: [] for seconds in floods}
    all_: dict[float | None, list[Waits]] = {seconds: [] for seconds in floods}
    for _ in range(place.sizes.rounds):
        for seconds in floods:
            with flooded(place, spare, seconds):
                one[seconds].append(starts_in(place, 1))
            with flooded(place, spare, seconds), in_trouble(place, trouble, seconds):
                all_[seconds].append(starts_in(place, many))
    lines = []
    for seconds, beside in floods.items():
        also = "" if seconds is None else ", a locked and a broken one"
        lines.append(waits_line(f"{place.store}: 1 tenant{beside}", one[seconds]))
        lines.append(waits_line(f"{place.store}: {many} tenants{beside}{also}", all_[seconds], one[seconds]))
    return grid(WAITS, lines, WAITS[1:-1])


class Waits(NamedTuple):
    """How long the starts of one round waited, in milliseconds."""

    median: float
    p99: float
    longest: float
    starts: int


def waits_line(name: str, rounds: Sequence[Waits], beside: Sequence[Waits] | None = None) -> tuple[str, ...]:
    """Write the cells of one line: the medians of its rounds, and what they are of those *beside*."""
    shown = _medians(rounds)
    cells = name, *(f"{each:.1f}" for each in shown[:3]), f"{shown.starts:,}"
    if beside is None:
        return *cells, "", "", "", ""
    other = _medians(beside)
    ratio = shown.p99 / other.p99
    return *cells, f"{shown.median / other.median:.1f}", f"{ratio:.1f}", "≤ 2", "✓" if ratio <= 2 else "✗"


def _medians(rounds: Sequence[Waits]) -> Waits:
    return Waits(
        median(each.median for each in rounds),
        median(each.p99 for each in rounds),
        median(each.longest for each in rounds),
        sum(each.starts for each in rounds),
    )


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def starts_in(place: Place, count: int) -> Waits:
    """Start jobs in so many tenants in turn, for a worker that is awake there; give milliseconds."""
    with worker_process(place.url, {"*": SLOTS}) as worker:
        found = place.runner.run(_starts_in(place, count, worker))
    return Waits(median(found), _p99(found), max(found), len(found))


async def _starts_in(place: Place, count: int, worker: WorkerProcess) -> list[float]:
    sizes = place.sizes
    hf = Holdfast(place.url, tasks=[NOTING], tenants=True)
    faces = [hf.tenant(name_of(number)) for number in range(count)]
    for _ in range(sizes.warm_up):  # opens and prepares on both sides what a tenant needs there
        await asyncio.gather(*(each.start(note(sent=time.monotonic_ns())) for each in faces))
        await asyncio.to_thread(lambda: [worker.read() for _ in faces])
    await all_ended(faces)  # their handlers have begun: that their ends are written takes as long again
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(asyncio.to_thread(lambda: [int(worker.read()) / 1e6 for _ in range(sizes.starts)]))
        began = time.monotonic()
        for number in range(sizes.starts):
            await asyncio.sleep(max(0.0, began + number / sizes.each_second - time.monotonic()))
            await faces[number % count].start(note(sent=time.monotonic_ns()))
    await hf.close()
    return reading.result()


@contextmanager
def flooded(place: Place, spare: Iterator[int], seconds: float | None) -> Iterator[None]:
    """Have one of the *spare* tenants want to run more than it can until the block ends; None: no such one."""
    if seconds is None:
        yield
        return
    name = name_of(next(spare))
    place.runner.run(fill(place, name, seconds))
    yield
    place.runner.run(suspend(place, name))


async def fill(place: Place, name: str, seconds: float) -> None:
    """Start many jobs in a tenant."""
    hf = Holdfast(place.url, tasks=[NOTING], tenants=True)
    for first in range(0, place.sizes.flood, BATCH):
        wanted = min(BATCH, place.sizes.flood - first)
        await hf.tenant(name).start_many([take_time(seconds=seconds) for _ in range(wanted)])
    await hf.close()


async def suspend(place: Place, name: str) -> None:
    """Suspend a tenant."""
    hf = Holdfast(place.url, tenants=True)
    await hf.tenants.suspend(name)
    await hf.close()


class Trouble(NamedTuple):
    """Which tenant has its tables locked, and which has none any more."""

    locked: str
    broken: str


@contextmanager
def in_trouble(place: Place, trouble: Trouble, seconds: float | None) -> Iterator[None]:
    """Lock the tables of a tenant that has jobs until the block ends, and take those of another away for good."""
    if seconds is None:
        yield
        return
    place.runner.run(start_some(place.url, trouble.locked))
    if not place.is_postgres:
        directory = Path(directory_of(place.url))
        (directory / file_of(trouble.broken)).write_bytes(b"this is no database" * 1000)
        with closing(sqlite3.connect(directory / file_of(trouble.locked), isolation_level=None)) as stranger:
            stranger.execute("BEGIN EXCLUSIVE")
            yield
        return
    with psycopg.connect(place.url) as stranger:
        stranger.execute(f"DROP SCHEMA IF EXISTS {schema_of('public', trouble.broken)} CASCADE")
        stranger.commit()
        stranger.execute(f"LOCK TABLE {schema_of('public', trouble.locked)}.holdfast_job IN ACCESS EXCLUSIVE MODE")
        yield


async def start_some(url: str, tenant: str) -> None:
    """Start some jobs in a tenant."""
    hf = Holdfast(url, tasks=[NOTING], tenants=True)
    await hf.tenant(tenant).start_many([take_time(seconds=0.0) for _ in range(100)])
    await hf.close()
