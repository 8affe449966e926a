"""What a backlog costs: a claim of 50 and a drain with 1,000 rows of a kind in the way, beside 100,000 of them.

    pending   may be claimed at once: there is that much to do
    future    are due in an hour
    finished  are done
    blocked   wait for other chains
    halted    wait in lanes, a hundred in each, whose first job has failed
    unknown   are ready, older and of a task that this worker does not know, in the same queue

The rows are written by hand and analysed. A claim is the transaction that a worker makes when it has nothing to settle:
admit, claim, log, commit.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import count
from statistics import median

import psycopg

from bench.drain import TASK, drain, fill, opened
from bench.limits import postgres, sqlite
from bench.machine import Unsuited
from bench.places import Places, both
from bench.report import grid
from bench.rounds import spread
from holdfast import Holdfast
from holdfast.store import jobs
from holdfast.store.jobs import Want

HOUR_MS = 3_600_000
BATCH = 50
IN_A_LANE = 100
HEADER = ("rows", "few: ms", "many: ms", "ratio", "middle half", "target", "", "drain", "at least", "")
NUMBERS = ("few: ms", "many: ms", "ratio", "target", "drain", "at least")

# what differs from a job that may be claimed: task, lane, status, gate, wake_at, place, head, closed_as; `n` counts
KINDS = {
    "pending": ("'{task}'", "NULL", "'pending'", "'ready'", "NULL", "NULL", "0", "NULL"),
    "future": ("'{task}'", "NULL", "'pending'", "'arrival'", "{now} + {hour}", "NULL", "0", "NULL"),
    "finished": ("'{task}'", "NULL", "'completed'", "NULL", "NULL", "NULL", "0", "'completed'"),
    "blocked": ("'{task}'", "NULL", "'blocked'", "NULL", "NULL", "NULL", "0", "NULL"),
    "halted": (
        "'{task}'",
        "'lane-' || (n / {lane})",
        "CASE n % {lane} WHEN 0 THEN 'failed' ELSE 'pending' END",
        "CASE n % {lane} WHEN 0 THEN NULL ELSE 'lane' END",
        "NULL",
        "n % {lane}",
        "CASE n % {lane} WHEN 0 THEN 1 ELSE 0 END",
        "CASE n % {lane} WHEN 0 THEN 'failed' END",
    ),
    "unknown": ("'elsewhere'", "NULL", "'pending'", "'ready'", "NULL", "NULL", "0", "NULL"),
}
NUMBERED = {
    "SQLite": "WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c WHERE n + 1 < {rows}) {insert} FROM c",
    "PostgreSQL": "{insert} FROM generate_series(0, {rows} - 1) AS c(n)",
}
IDS = {
    "SQLite": "'00000000-0000-4000-8000-' || printf('%012x', n)",
    "PostgreSQL": "'00000000-0000-4000-8000-' || lpad(to_hex(n), 12, '0')",
}
NOW = {"SQLite": sqlite.NOW, "PostgreSQL": postgres.NOW}
INSERT = """
    INSERT INTO holdfast_job (id, chain_id, task, queue, lane, status, gate, wake_at, place, head, closed_as, closed_at,
        finished_at, run_at, sort_key, input, created_at)
    SELECT {id}, {id}, {task}, 'default', {lane}, {status}, {gate}, {wake}, {place}, {head}, {closed},
        CASE WHEN {closed} IS NULL THEN NULL ELSE {now} END, CASE WHEN {closed} IS NULL THEN NULL ELSE {now} END,
        {now} - {hour}, {now} - {hour}, '{text}', {now}"""
LANES = """
    INSERT INTO holdfast_lane (key, places)
    SELECT lane, max(place) FROM holdfast_job WHERE lane IS NOT NULL GROUP BY lane"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many rows there are, how many claims and drained jobs a round has, and how many rounds there are."""

    rounds: int = 5
    few: int = 1_000
    many: int = 100_000
    claims: int = 10
    jobs: int = 1_000


QUICK = Sizes(rounds=1, few=100, many=300, claims=2, jobs=20)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one of the stores")


def run(arguments: argparse.Namespace) -> int:
    """Measure and print; the exit code says whether it could be measured, not whether targets are met."""
    sizes = QUICK if arguments.quick else Sizes()
    stores = {"sqlite": ["SQLite"], "postgres": ["PostgreSQL"], None: ["SQLite", "PostgreSQL"]}[arguments.only]
    with both(is_quick=arguments.quick) as places:
        print(f"a claim of {BATCH} with few ({sizes.few:,}) and many ({sizes.many:,}) rows; ratios are many / few\n")
        lines = [measure(places, store, kind, sizes) for store in stores for kind in KINDS]
        print(grid(HEADER, lines, NUMBERS))
    return 0


def measure(places: Places, store: str, kind: str, sizes: Sizes) -> tuple[str, ...]:
    """Measure few and many rows of one kind, in turns; write the cells."""
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        sides: list[Holdfast] = []
        for name, rows in (("few", sizes.few), ("many", sizes.many)):
            url = stack.enter_context(places.address(store, f"{kind}_{name}"))
            sides.append(stack.enter_context(opened(url, runner)))
            write_backlog(store, url, kind, rows)
        claims: list[list[float]] = [[], []]
        drains: list[list[float]] = [[], []]
        for number in range(sizes.rounds + 1):
            for side, hf in enumerate(sides):
                claimed = runner.run(claim(hf, sizes.claims))
                seconds = runner.run(fill_and_drain(hf, sizes.jobs))
                if number > 0:
                    claims[side].append(claimed * 1000)
                    drains[side].append(sizes.jobs / seconds)
    return line(f"{store}: {kind}", claims, drains, least=0.9 if kind == "halted" else None)


def line(
    name: str, claims: Sequence[Sequence[float]], drains: Sequence[Sequence[float]], least: float | None
) -> tuple[str, ...]:
    """Write the cells of one kind of rows."""
    slower = spread([many / few for few, many in zip(*claims, strict=True)])
    faster = median(many / few for few, many in zip(*drains, strict=True))
    return (
        name,
        f"{median(claims[0]):.2f}",
        f"{median(claims[1]):.2f}",
        f"{slower.middle:.2f}",
        f"{slower.low:.2f} to {slower.high:.2f}",
        "≤ 1.2",
        "✓" if slower.middle <= 1.2 else "✗",
        f"{faster:.2f}",
        "" if least is None else f"{least:g}",
        "" if least is None else "✓" if faster >= least else "✗",
    )


def write_backlog(store: str, url: str, kind: str, rows: int) -> None:
    """Write *rows* jobs of one kind."""
    shared = {"now": NOW[store], "hour": HOUR_MS, "task": TASK, "lane": IN_A_LANE}
    names = ("task", "lane", "status", "gate", "wake", "place", "head", "closed")
    cells = {name: text.format(**shared) for name, text in zip(names, KINDS[kind], strict=True)}
    insert = INSERT.format(id=IDS[store], text='{"text":"x"}', now=NOW[store], hour=HOUR_MS, **cells)
    statements = [NUMBERED[store].format(insert=insert, rows=rows), LANES, "ANALYZE"]
    if store == "SQLite":
        with closing(sqlite3.connect(url)) as file:
            for each in statements[:2]:  # SQLite is not analysed by us, nor does it analyse by itself
                file.execute(each)
            file.commit()
        return
    with psycopg.connect(url, autocommit=True) as connection:
        for each in statements:
            connection.execute(each.encode())


nonces = count()


async def claim(hf: Holdfast, claims: int) -> float:
    """Start jobs and claim them, 50 at a time; give the median seconds of a claim."""
    await fill(hf, claims * BATCH)
    wants = [Want("default", TASK, HOUR_MS)]
    seconds = []
    for _ in range(claims):
        started = time.perf_counter()
        claimed = await hf.store.run(jobs.admit_and_claim, wants, BATCH, "bench", f"nonce-{next(nonces)}")
        seconds.append(time.perf_counter() - started)
        if len(claimed.jobs) != BATCH:
            raise Unsuited(f"the work was not done: {len(claimed.jobs)} jobs were claimed instead of {BATCH}")
    return median(seconds)


async def fill_and_drain(hf: Holdfast, jobs_: int) -> float:
    """Start jobs and have one worker run as many; give its seconds."""
    await fill(hf, jobs_)
    return await drain(hf, jobs_)
