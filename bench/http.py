"""What the HTTP API costs: single requests, a thousand open streams, and lists of a million jobs, on both stores.

The server is uvicorn in a process of its own, with the API's limits raised, and it works nowhere. *Requests*: eight
connections that are kept, each of which sends the next request when it has the answer to the last. Beside them the
same call in Python, by eight tasks in the event loop that serves, acts with their row in the audit; and a bare route
of Starlette in the same process, which answers as many bytes of JSON. *Both together* is the sum of these two, round
by round: what a request must cost at least. CPU is that of the server's process + that of PostgreSQL; that of the
client, which has the other core, is not counted.

*Streams*: so many are open (`brief`, `merge_ms=250`), all read by this process. They are left alone, then each gets the
event of a single start, some times; then so many starts a second come from this process, each of a job of its own, so
that nothing is merged. Statements are counted as in `bench idle`, without those of the starts. *Behind* is how long
after the last of these starts the slowest stream had all of them.

*Lists*: the first page of 50, asked for some times on one connection, of a crowd as `bench figures` makes it, with
1,000 jobs and with a million. One job in the middle has a tag that no other has. One request looks at so many jobs and
no more, so a page may be empty and have a next one: *pages to the first* is how many it takes until a job is found, or
until the end, if there is none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from bench.backends import megabytes_of
from bench.backlog import connected
from bench.figures import job_of, write_crowd
from bench.http_client import Asked, Http, ask_all, ask_once
from bench.http_server import FAR, PAGE, TASKS, TEXT, HttpServer, answer, http_server
from bench.idle import log_statements, logged
from bench.meter import Cost, Meter
from bench.places import Places, both
from bench.places import add_arguments as add_stores
from bench.report import Comparison, grid, table
from bench.streaming import Client
from holdfast import Holdfast

DATABASE = "http"
AT_ONCE = 8
STREAM = "/api/events?snapshot=false&brief=true&merge_ms=250&name=job:enqueued"
BURSTS_PER_SECOND = 10
PATIENCE = 120.0

LATENCY = ("milliseconds", "p50", "p99", "in Python p50", "in Python p99", "bare p50", "bare p99", "bytes")
STREAMING = ("streams", "CPU %", "server CPU %", "statements/s", "MB", "p50 ms", "p99 ms", "longest ms", "behind ms")
LISTS = ("list", "jobs", "items", "looked at", "p50 ms", "longest ms", "pages to the first", "their ms")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked: requests in a round and rounds, streams and their events, and jobs that are listed."""

    rounds: int = 5
    requests: int = 800
    streams: int = 1_000
    singles: int = 10
    settle: float = 5.0
    watch: float = 20.0
    starts_per_second: tuple[int, ...] = (50, 200)
    jobs: tuple[int, ...] = (1_000, 1_000_000)
    pages: int = 20


QUICK = Sizes(
    rounds=1, requests=24, streams=5, singles=1, settle=0.1, watch=0.5, starts_per_second=(20,), jobs=(300,), pages=2
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A request that is measured: its name, what it is in Python, and how it is sent for a job."""

    name: str
    in_python: str
    method: str
    path: str
    body: Any = None
    status: int = 200


KINDS = {
    "read": Kind("GET a job", "get_job", "GET", "/api/jobs/{id}"),
    "list": Kind(f"GET {PAGE} jobs", "list_jobs", "GET", f"/api/jobs?limit={PAGE}"),
    "start": Kind(
        *("POST a start", "start", "POST", "/api/jobs"),
        {"task": "answer", "arguments": {"text": TEXT}, "options": {"delay": FAR}},
        201,
    ),
    "cancel": Kind("POST a cancel", "cancel, get_job", "POST", "/api/jobs/{id}/cancel", {}),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    add_stores(parser)
    parser.add_argument("--jobs", type=int, nargs="+", help="how many jobs are listed, instead of 1,000 and 1,000,000")
    parser.add_argument("--streams", type=int, help="how many streams are open, instead of 1,000")
    parser.add_argument("--part", choices=("requests", "streams", "lists"), action="append", help="a part of it")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether targets are met."""
    sizes = QUICK if arguments.quick else Sizes()
    sizes = replace(sizes, jobs=tuple(arguments.jobs or sizes.jobs), streams=arguments.streams or sizes.streams)
    parts = {"requests": measure_requests, "streams": measure_streams, "lists": measure_lists}
    with both(is_quick=arguments.quick) as places:
        for key, store in (("sqlite", "SQLite"), ("postgres", "PostgreSQL")):
            for name, measure in parts.items():
                if arguments.only in (None, key) and name in (arguments.part or parts):
                    print(measure(places, store, sizes), end="\n\n", flush=True)
    return 0


def migrate(url: str) -> None:
    """Make an empty database one of ours."""
    hf = Holdfast(url)
    hf.sync.migrate()
    hf.sync.close()


# requests


class Taken(NamedTuple):
    """What one entrant took in one round: the cost of a call, and the milliseconds of each."""

    cost: Cost
    milliseconds: Sequence[float]


def measure_requests(places: Places, store: str, sizes: Sizes) -> str:
    """Set each kind of request beside the same call in Python and a bare route; answer two tables."""
    with ExitStack() as stack:
        url = stack.enter_context(places.address(store, DATABASE))
        migrate(url)
        server = stack.enter_context(http_server(url))
        runner = stack.enter_context(asyncio.Runner())
        rivals = [Rivals(store, each, server, runner, places.meter(store), sizes.requests) for each in KINDS]
        entrants = {name: run for each in rivals for name, run in each.entrants.items()}
        taken: dict[str, list[Taken]] = {name: [] for name in entrants}
        for number in range(sizes.rounds + 1):  # the first warms up
            for name, run in entrants.items():
                found = run()
                if number > 0:
                    taken[name].append(found)
    costs = {name: [each.cost for each in rounds] for name, rounds in taken.items()}
    for each in rivals:
        costs[each.together] = [added(*pair) for pair in zip(costs[each.python], costs[each.bare], strict=True)]
    milliseconds = {name: [one for each in rounds for one in each.milliseconds] for name, rounds in taken.items()}
    lines = [each.latency_line(milliseconds) for each in rivals]
    compared = table([one for each in rivals for one in each.comparisons()], costs)
    return f"{compared}\n\n{grid(LATENCY, lines, LATENCY[1:])}"


def added(one: Cost, other: Cost) -> Cost:
    """Add two costs."""
    server = None if one.server is None or other.server is None else one.server + other.server
    return Cost(one.seconds + other.seconds, one.client + other.client, server)


class Rivals:
    """One kind of request, the same call in Python, and a bare route that answers as many bytes."""

    def __init__(
        self, store: str, key: str, server: HttpServer, runner: asyncio.Runner, meter: Meter, count: int
    ) -> None:
        self._key, self._kind = key, KINDS[key]
        self._server, self._runner, self._meter, self._count = server, runner, meter, count
        self._http = Http(server.port, server.token)
        self.ours, self.python = f"{store}: {self._kind.name}", f"{store}: {self._kind.in_python}"
        self.bare, self.together = f"bare {self._kind.name}", f"{self._kind.in_python} and bare"
        self.bytes = 0

    @property
    def entrants(self) -> dict[str, Callable[[], Taken]]:
        """Who takes turns."""
        return {self.ours: self._ask, self.python: self._call, self.bare: self._ask_bare}

    def comparisons(self) -> list[Comparison]:
        """Name what is compared; a read has a target."""
        target = 0.5 if self._key == "read" else None
        return [
            Comparison(self.ours, self.python),
            Comparison(self.ours, self.bare),
            Comparison(self.ours, self.together, target),
        ]

    def latency_line(self, milliseconds: Mapping[str, Sequence[float]]) -> tuple[str, ...]:
        """Write how long each request took."""
        cells = [each for name in self.entrants for each in percentiles(milliseconds[name])[:2]]
        return (self.ours, *cells, f"{self.bytes:,}")

    def _ask(self) -> Taken:
        requests = [self._request(job) for job in self._server.make(self._count)]
        if not self.bytes:
            self.bytes = len(self._runner.run(ask_once(self._http, self._request(self._server.make(1)[0]))))
        return self._asked(requests)

    def _ask_bare(self) -> Taken:
        path = f"/bare/{self._kind.status}/{self.bytes}"
        return self._asked([self._http.request(self._kind.method, path, self._kind.body)] * self._count)

    def _request(self, job: str) -> bytes:
        return self._http.request(self._kind.method, self._kind.path.replace("{id}", job), self._kind.body)

    def _asked(self, requests: Sequence[bytes]) -> Taken:
        used, _ = self._server.usage()
        self._meter.reset()
        asked = self._runner.run(ask_all(self._http, requests, AT_ONCE))
        served = self._meter.read().server
        cost = Cost(asked.seconds, self._server.usage()[0] - used, served)
        return Taken(cost.of_each(self._count), asked.milliseconds)

    def _call(self) -> Taken:
        ids = self._server.make(self._count)
        self._meter.reset()
        called = self._server.call(self._key, ids, AT_ONCE)
        cost = Cost(called.seconds, called.cpu, self._meter.read().server)
        return Taken(cost.of_each(self._count), called.milliseconds)


def percentiles(milliseconds: Sequence[float]) -> tuple[str, str, str]:
    """Write the median, the 99th percentile and the longest."""
    high = quantiles(milliseconds, n=100, method="inclusive")[98] if len(milliseconds) > 1 else milliseconds[0]
    return f"{median(milliseconds):.1f}", f"{high:.1f}", f"{max(milliseconds):.1f}"


# streams


class Looked(NamedTuple):
    """What the server does in so many seconds."""

    cpu: float
    served: float | None
    statements: float | None
    megabytes: float | None


def measure_streams(places: Places, store: str, sizes: Sizes) -> str:
    """Hold many streams open, and watch their server; answer a table."""
    allow_files(2 * sizes.streams + 100)
    with ExitStack() as stack:
        url = stack.enter_context(places.address(store, DATABASE))
        migrate(url)
        if store == "PostgreSQL":
            log_statements(places.server.url, urlsplit(url).path.lstrip("/"))
        server = stack.enter_context(http_server(url, counts=True))
        runner = stack.enter_context(asyncio.Runner())
        return runner.run(Streaming(places, store, url, sizes, server).measure())


def allow_files(number: int) -> None:
    """Let this process and the server have so many sockets, as far as that is ours to say."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < number:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(number, hard), hard))


class Streaming:
    """Opens streams of *server*, and makes events in the database at *url*."""

    def __init__(self, places: Places, store: str, url: str, sizes: Sizes, server: HttpServer) -> None:
        self._places, self._store, self._url, self._sizes, self._server = places, store, url, sizes, server
        self._meter = places.meter(store)
        self._http = Http(server.port, server.token)
        self._clients: list[Client] = []

    async def measure(self) -> str:
        """Watch none, all of them idle, and all of them busy; answer a table."""
        sizes = self._sizes
        name = f"{self._store}: {sizes.streams:,} open"
        async with Holdfast(silent(self._url), tasks=[TASKS]) as hf:
            lines = [self._line(f"{self._store}: none", await self._watched(asyncio.sleep(sizes.watch)))]
            began = time.perf_counter()
            request = self._http.request("GET", STREAM)
            for _ in range(sizes.streams):
                self._clients.append(await Client.connect(self._http.port, request))
            opening = time.perf_counter() - began
            lines.append(self._line(name, await self._watched(asyncio.sleep(sizes.watch))))
            delays = [each for _ in range(sizes.singles) for each in await self._delays(hf, 1)]
            lines.append(self._line(f"{name}, {sizes.singles} single events", None, delays))
            for each_second in sizes.starts_per_second:
                behind: list[float] = []
                found = await self._watched(self._load(hf, each_second, behind))
                lines.append(self._line(f"{name}, {each_second} events/s", found, behind=max(behind)))
            for each in self._clients:
                each.close()
        return f"{grid(STREAMING, lines, STREAMING[1:])}\nopened in {opening:.1f} s, one after the other"

    async def _watched(self, work: Any) -> Looked:
        """Leave the server alone for a while; then watch it while *work* is done."""
        await asyncio.sleep(self._sizes.settle)
        used, statements = self._counted()
        self._meter.reset()
        began = time.perf_counter()
        await work
        seconds = time.perf_counter() - began
        served = self._meter.read().server
        later, more = self._counted()
        return Looked(
            (later - used) / seconds * 100,
            None if served is None else served / seconds * 100,
            None if statements is None or more is None else (more - statements) / seconds,
            megabytes_of(self._server.pid),
        )

    def _counted(self) -> tuple[float, int | None]:
        used, statements = self._server.usage()
        return used, logged(self._places) if self._store == "PostgreSQL" else statements

    async def _delays(self, hf: Holdfast, count: int) -> list[float]:
        """Start *count* jobs at once; give how many milliseconds later each stream had the event of all of them."""
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            reading = [group.create_task(read_until(each, count)) for each in self._clients]
            began = time.perf_counter()
            await start_some(hf, count)
        return [(each.result() - began) * 1000 for each in reading]

    async def _load(self, hf: Holdfast, each_second: int, behind: list[float]) -> None:
        """Start so many jobs a second; note how long after the last start each stream had the events of all."""
        burst = each_second // BURSTS_PER_SECOND
        bursts = round(self._sizes.watch * BURSTS_PER_SECOND)
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            reading = [group.create_task(read_until(each, burst * bursts)) for each in self._clients]
            began = ended = time.perf_counter()
            for number in range(1, bursts + 1):
                await start_some(hf, burst)
                ended = time.perf_counter()
                await asyncio.sleep(began + number / BURSTS_PER_SECOND - ended)
        behind += [(each.result() - ended) * 1000 for each in reading]

    def _line(
        self, name: str, looked: Looked | None, delays: Sequence[float] = (), behind: float | None = None
    ) -> tuple[str, ...]:
        found = looked or (None, None, None, None)
        digits = (1, 1, 2, 0)
        numbers = ["-" if each is None else f"{each:.{size}f}" for each, size in zip(found, digits, strict=True)]
        shown = percentiles(delays) if delays else ("", "", "")
        return (name, *numbers, *shown, "" if behind is None else f"{behind:.0f}")


def silent(url: str) -> str:
    """Have the server not log what is done by this address."""
    return f"{url}?options=-c%20log_statement%3Dnone" if "://" in url else url


async def start_some(hf: Holdfast, count: int) -> None:
    """Start jobs that nobody runs."""
    await hf.start_many([answer(text=TEXT).options(delay=FAR)] * count)


async def read_until(client: Client, number: int) -> float:
    """Read so many messages; tell when the last came."""
    await client.read(number)
    return time.perf_counter()


# lists


def questions(rows: int) -> dict[str, str]:
    """Name the lists that are asked for, with their queries."""
    return {
        "newest": "",
        "status=failed": "status=failed",
        "tag=vip, 1 of 100": "tag=vip",
        "tag=rare, 1 of all": "tag=rare",
        "tag=nobody": "tag=nobody",
        "q=status:failed,paused": "q=status:failed,paused",
        "q=input.order, in the middle": f"q=input.order:{rows // 2}",
        "q=input.order, that none has": "q=input.order:-1",
    }


def measure_lists(places: Places, store: str, sizes: Sizes) -> str:
    """Ask for lists of crowds of all sizes; answer a table."""
    with asyncio.Runner() as runner:
        lines = [line for rows in sizes.jobs for line in lists_of(places, store, rows, sizes.pages, runner)]
    return grid(LISTS, sorted(lines, key=lambda line: list(questions(0)).index(line[0].partition(": ")[2])), LISTS[1:])


def lists_of(places: Places, store: str, rows: int, pages: int, runner: asyncio.Runner) -> Iterable[tuple[str, ...]]:
    """Ask for every list of *rows* jobs; write a line for each."""
    with places.address(store, f"crowd_{rows}") as url:
        migrate(url)
        write_crowd(store, url, rows)
        with connected(store, url) as execute:
            execute(f"""UPDATE holdfast_job SET tags = '["rare"]' WHERE id = '{job_of("completed", rows)}'""")
        with http_server(url) as server:
            http = Http(server.port, server.token)
            for name, query in questions(rows).items():
                yield f"{store}: {name}", f"{rows:,}", *runner.run(list_cells(http, query, pages))


async def list_cells(http: Http, query: str, pages: int) -> tuple[str, ...]:
    """Ask for the first page some times; write what came, how many jobs were looked at, and how long it took."""
    request = http.request("GET", f"/api/jobs?limit={PAGE}&{query}".removesuffix("&"))
    page = json.loads(await ask_once(http, request))
    items = page["items"]
    asked: Asked = await ask_all(http, [request] * pages, 1)
    searched = page["searched"]
    looked_at = abs(searched["from"] - searched["to"]) + 1
    middle, _, longest = percentiles(asked.milliseconds)
    began, number = time.perf_counter(), 1
    while not page["items"] and page["next_cursor"] is not None:
        next_one = f"/api/jobs?limit={PAGE}&{query}&cursor={page['next_cursor']}"
        page, number = json.loads(await ask_once(http, http.request("GET", next_one))), number + 1
    rest = (time.perf_counter() - began) * 1000
    return str(len(items)), f"{looked_at:,}", middle, longest, str(number), f"{median(asked.milliseconds) + rest:.0f}"
