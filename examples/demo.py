"""A small shop at work on a SQLite file: `python3 dev.py demo`. What you see is read live from Holdfast's own log.

A worker with eight slots runs the shop's jobs in this process; for a while a second one runs in another, and is killed.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from uuid import UUID

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast import ChainCancelled, ChainNotFound, Context, Event, Holdfast, Job, Retry, Tasks

SECONDS = 10
"""How long the demo waits for anything before it gives up, instead of hanging."""

STYLES = {
    "job:completed": "green", "job:phase:completed": "green", "job:retrying": "yellow", "job:reaped": "yellow",
    "job:failed": "red",
    "job:cancelling": "magenta", "job:cancelled": "magenta", "job:paused": "magenta", "job:resumed": "magenta",
    "lane:paused": "magenta", "lane:resumed": "magenta", "job:blocked": "cyan", "job:unblocked": "cyan",
}  # fmt: skip

console = Console(highlight=False, soft_wrap=True)
logging.getLogger("holdfast").setLevel(logging.ERROR)  # a worker found dead is a warning; here it is the show
tasks = Tasks()


# The shop's handlers. Where a real one would work, these sleep.


@tasks.task(name="send_receipt")
async def send_receipt(order_id: int) -> str:
    """Run in the event loop, as every `async def` does."""
    return f"receipt for order {order_id}"


@tasks.task(name="charge", retry=Retry(attempts=4, first=0.2, jitter=0))
async def charge(ctx: Context, order_id: int) -> str:
    """Raise twice, and be tried again: after 0.2 seconds, then after 0.4."""
    if ctx.job.used < 3:
        raise ConnectionError("the card terminal does not answer")
    return f"order {order_id} is paid"


@tasks.task(name="pack")
async def pack(order_id: int) -> None:
    """Keep a robot busy; its lane sees to it that it packs one order at a time."""
    await asyncio.sleep(0.08)


@tasks.task(name="fetch_price")
def fetch_price(file: str, item: str) -> int:
    """Run in a thread, as every plain `def` does, and write to the shop's own table."""
    time.sleep(0.15)
    cents = 100 * len(item)
    with sqlite3.connect(file, timeout=SECONDS) as shop:
        shop.execute("INSERT INTO prices VALUES (?, ?)", [item, cents])
    shop.close()
    return cents


@tasks.task(name="price_list")
def price_list(file: str) -> str:
    """Read what the fetches have written."""
    shop = sqlite3.connect(file)
    rows = shop.execute("SELECT item, cents FROM prices ORDER BY item").fetchall()
    shop.close()
    return ", ".join(f"{item} {cents / 100:.2f}" for item, cents in rows)


@tasks.task(name="stocktake")
async def stocktake(ctx: Context, shelves: int) -> int:
    """Take far longer than anybody wants to wait, and say how far it is."""
    for shelf in range(shelves):
        ctx.progress(100 * shelf / shelves, f"shelf {shelf} of {shelves}")
        await asyncio.sleep(0.1)
    return shelves


@tasks.task(name="catalogue", phases=("photos", "layout", "print"), retry=Retry(attempts=2, first=0.2, jitter=0))
async def catalogue(ctx: Context, pages: int) -> str:
    """Run out of paper in the first attempt; what was done before that is not done again."""
    photos = await ctx.phase("photos", take_photos, ctx, pages)
    layout = await ctx.phase("layout", lambda: f"a layout of {photos} photos")
    return await ctx.phase("print", print_pages, ctx, layout)


async def take_photos(ctx: Context, pages: int) -> int:
    """Be a phase: what it returns is stored."""
    for page in range(1, pages + 1):
        await asyncio.sleep(0.1)
        ctx.progress(page, total=pages, message=f"photo {page}")
    return pages


async def print_pages(ctx: Context, layout: str) -> str:
    """Be a phase that fails once."""
    if ctx.job.used == 1:
        raise OSError("no paper")
    return f"{layout}, printed"


@tasks.task(name="deliver", queue="road")
async def deliver(ctx: Context, order_id: int) -> str:
    """Never arrive in the first attempt: its process is killed on the way."""
    ctx.progress(50, "half way")
    if ctx.job.used == 1:
        await ctx.aborted
    return f"order {order_id} is delivered, in attempt {ctx.job.attempt}"


# The demo itself.


async def main(path: Path) -> None:
    """Show it, a step at a time."""
    hf = Holdfast(str(path), tasks=[tasks])
    console.print(f"[bold]Holdfast[/] on SQLite {sqlite3.sqlite_version}: a shop, and a worker with eight slots")
    async with hf:  # opened before your own transaction: the first use of a new file creates its tables
        shop = sqlite3.connect(path, isolation_level=None)
        shop.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
        shop.execute("CREATE TABLE prices (item TEXT PRIMARY KEY, cents INTEGER NOT NULL)")
        async with Log(hf) as log, hf.worker(queues=["default"], concurrency=8, name="till"):
            async with log.step("An order and its job, in one transaction of the shop's own"):
                await commit_together(hf, log, shop)
            async with log.step("An error: tried again, a little later each time"):
                paid = await hf.start(charge(order_id=1))
                await log.say(await paid.result(SECONDS))
            async with log.step("Two robots, a lane each: jobs of a lane run one at a time, in order"):
                calls = [pack(order_id=n).options(lane=f"robot-{n % 2 + 1}") for n in range(1, 7)]
                await hf.wait(await hf.start_many(calls), timeout=SECONDS)
            async with log.step("A robot is paused: what stands in its lane waits until it is resumed"):
                await pause_a_robot(hf, log)
            async with log.step("Blockers: the list waits until every price is fetched"):
                fetches = [fetch_price(file=str(path), item=item) for item in ("kettle", "teapot", "cup")]
                prices = await hf.start(price_list(file=str(path)), blockers=await hf.start_many(fetches))
                await log.say(await prices.result(SECONDS))
            async with log.step("A unique key: the second start is given the chain of the first"):
                await start_twice(hf, log)
            async with log.step("A running job says how far it is, and is cancelled"):
                await cancel_while_it_runs(hf, log)
            async with log.step("Phases: what is done stays done, whatever happens later"):
                printed = await hf.start(catalogue(pages=3))
                await log.say(await printed.result(SECONDS))
                phases = (await hf.get_job(printed)).phases
                await log.say(", ".join(f"{each.name} {each.status}" for each in phases))
            async with log.step("kill -9: a worker in another process dies, another one takes its job over"):
                await kill_a_worker(hf, log, path)
        print_summary(shop)
        shop.close()


async def commit_together(hf: Holdfast, log: Log, shop: sqlite3.Connection) -> None:
    """Write an order with its job, twice: committed, and rolled back."""
    shop.execute("BEGIN IMMEDIATE")
    shop.execute("INSERT INTO orders VALUES (1, 'kettle')")
    chain = hf.sync.start(send_receipt(order_id=1), connection=shop)
    await log.say(f"before COMMIT, others see the job: {await is_there(hf, chain.id)}")
    shop.execute("COMMIT")
    await log.say(f"after COMMIT,  others see the job: {await is_there(hf, chain.id)}")
    await hf.wait([chain], timeout=SECONDS)

    shop.execute("BEGIN IMMEDIATE")
    shop.execute("INSERT INTO orders VALUES (2, 'teapot')")
    ghost = hf.sync.start(send_receipt(order_id=2), connection=shop)
    shop.execute("ROLLBACK")
    await log.say(f"after ROLLBACK of another one:     {await is_there(hf, ghost.id)}, it never was")


async def is_there(hf: Holdfast, chain_id: UUID) -> str:
    """Ask on a connection of its own whether the chain is there."""
    try:
        await hf.get_chain(chain_id)
    except ChainNotFound:
        return "[red]no[/]"
    return "[green]yes[/]"


async def pause_a_robot(hf: Holdfast, log: Log) -> None:
    """Pause a lane that is empty, give it a job, and resume it."""
    robot = hf.lane("robot-1")
    await robot.pause(by="ada", why="a new battery")
    packed = await hf.start(pack(order_id=7), lane="robot-1")
    overtaken = await hf.start(pack(order_id=8), lane="robot-2")
    await overtaken.result(SECONDS)
    info = await robot.info()
    await log.say(
        f"robot-1 was paused by {info.paused_by} for {info.reason}; its job is {(await hf.get_job(packed)).state}"
    )
    await robot.resume(by="ada")
    await packed.result(SECONDS)


async def start_twice(hf: Holdfast, log: Log) -> None:
    """Start one thing twice; the job is paused, so that it is surely still open at the second start."""
    first = await hf.start(send_receipt(order_id=1), unique="order-1", paused=True)
    again = await hf.start(send_receipt(order_id=1), unique="order-1")
    await log.say(f"the same chain: {first.id == again.id}, deduplicated: {again.deduplicated}")
    await hf.resume(first, by="ada")
    await again.result(SECONDS)


async def cancel_while_it_runs(hf: Holdfast, log: Log) -> None:
    """Cancel a job whose handler has begun."""
    count = await hf.start(stocktake(shelves=40))
    await log.until("job:progress", count.id, times=3)
    await log.say(f"cancel is answered with: {await hf.cancel(count, by='ada', why='the shop opens')}")
    try:
        await count.result(SECONDS)
    except ChainCancelled:
        await log.say("and whoever waits for its result is told so")


async def kill_a_worker(hf: Holdfast, log: Log, path: Path) -> None:
    """Kill the process that runs a job, and have another worker go on."""
    parcel = await hf.start(deliver(order_id=1))
    van = await asyncio.create_subprocess_exec(sys.executable, __file__, "--van", str(path))
    try:
        await log.until("job:progress", parcel.id)
    finally:
        van.kill()
        await van.wait()
    await log.say("the process is gone; nobody has said goodbye")
    async with hf.worker(queues=["road"], concurrency=1, name="bicycle"):
        await log.say(await parcel.result(SECONDS))


async def drive_the_van(path: str) -> None:
    """Be the worker that is killed."""
    hf = Holdfast(path, tasks=[tasks])
    async with hf, hf.worker(queues=["road"], concurrency=1, name="van"):
        await asyncio.Event().wait()


# What is printed: the log as it grows, and the demo's own words.


class Log:
    """Prints what happens, as it is told, for as long as it is entered, and knows what has been there."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = hf
        self._began: datetime | None = None
        self._grown = asyncio.Event()
        self._seen: Counter[tuple[str, UUID]] = Counter()

    async def __aenter__(self) -> Log:
        self._events = self._hf.events(after=await self._hf.cursor())
        self._following = asyncio.create_task(self._follow())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._events.aclose()
        await self._following

    @asynccontextmanager
    async def step(self, title: str) -> AsyncIterator[None]:
        """Print *title* over what follows, and all of that before the next one."""
        console.print(f"\n[bold blue]*[/] [bold]{title}[/]")
        yield
        await self._catch_up()

    async def say(self, text: str) -> None:
        """Print what the demo itself has to say, after what has led to it."""
        await self._catch_up()
        console.print(f"         [bold]{text}[/]")

    async def until(self, name: str, job_id: UUID, times: int = 1) -> None:
        """Wait until event *name* of a job was told, so many *times*."""
        async with asyncio.timeout(SECONDS):
            while self._seen[name, job_id] < times:
                self._grown.clear()
                await self._grown.wait()

    async def _catch_up(self) -> None:
        """Wait until all that has happened by now is printed."""
        async with asyncio.timeout(SECONDS):
            self._grown.clear()
            while self._events.cursor != await self._hf.cursor():
                await self._grown.wait()  # set, too, if an event was printed while the cursor was read
                self._grown.clear()

    async def _follow(self) -> None:
        async for event in self._events:
            self._print(event)
            if event.job is not None:
                self._seen[event.name, event.job.id] += 1
            self._grown.set()

    def _print(self, event: Event) -> None:
        self._began = self._began or event.at
        if event.name == "chain:completed":  # every chain here has one job
            return
        what = f"{event.job.task} {order_of(event.job)}" if event.job else event.lane or ""
        style = STYLES.get(event.name, "none")
        seconds = (event.at - self._began).total_seconds()
        line = f"  {seconds:5.2f}  [{style}]{event.name:<19}[/] {escape(what):<20} {escape(explain(event))}"
        console.print(line.rstrip())


def order_of(job: Job) -> str:
    """Give the one argument of a job that tells it from others."""
    return " ".join(str(value) for name, value in asdict(job.input).items() if name != "file")


def explain(event: Event) -> str:
    """Say in a few words what an event tells."""
    facts = event.facts
    match event.name:
        case "job:started":
            where = f", {event.job.lane}" if event.job and event.job.lane else ""
            return f"attempt {event.attempt}, by {str(facts['worker']).partition('-')[0]}{where}"
        case "job:progress":
            return f"{facts['progress']:>3} %  {facts['message'] or facts.get('phase', '')}"
        case "job:phase:completed":
            return str(facts["phase"])
        case "job:retrying":
            return f"{facts['error']['type']}: {facts['error']['message']}"
        case _:
            return " ".join(f"{key}={facts[key]}" for key in ("by", "reason") if facts.get(key))


def print_summary(shop: sqlite3.Connection) -> None:
    """Print what the log tells of the whole, by task."""
    rows = shop.execute("""
        SELECT job.task, count(DISTINCT job.seq), sum(event.name = 'job:started'), sum(event.name = 'job:retrying'),
            sum(event.name = 'job:reaped'), sum(event.name = 'job:completed'), sum(event.name = 'job:cancelled')
        FROM holdfast_event AS event JOIN holdfast_job AS job ON job.seq = event.job
        GROUP BY job.task ORDER BY min(job.seq)""")
    table = Table(box=None, padding=(0, 2, 0, 0), title="From the log", title_justify="left", title_style="bold")
    table.add_column("task")
    for head in ("jobs", "attempts", "retried", "taken over", "completed", "cancelled"):
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(*(str(value or "") for value in row))
    ((count,),) = shop.execute("SELECT count(*) FROM holdfast_event")
    console.print("", table, f"\n{count} events, each in the same commit as the change that it tells of.", sep="\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--van"]:
        asyncio.run(drive_the_van(sys.argv[2]))
        sys.exit()
    keep = "--keep" in sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        asyncio.run(main(folder / "shop.db"))
    finally:
        if not keep:
            shutil.rmtree(folder)
    console.print(f"Kept: {folder}" if keep else "The file is removed again; --keep keeps it.")
