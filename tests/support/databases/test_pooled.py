"""PgBouncer in transaction mode: the contract holds through it, and what it cannot carry is noticed."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import psycopg
import pytest

from holdfast import Context, Holdfast, Tasks
from holdfast.database.dialect import channel
from holdfast.database.postgres import listener
from holdfast.database.postgres.block import has_spoken
from holdfast.errors import TransactionBroken, TransactionTimeout, Unavailable
from holdfast.testing.postgres import URL_VARIABLE
from tests.conftest import SCHEMA
from tests.support.conditions import until
from tests.support.databases.pgbouncer import PgBouncer, running_pgbouncer
from tests.support.databases.pooled import APART
from tests.support.factories import TASKS, greet
from tests.support.log_lines import lines, name_of
from tests.support.processes.debian import Program
from tests.worker.test_hints import Ear

ROOT = Path(__file__).parents[3]
WHOLE = ["tests/store", "tests/worker", "--ignore=tests/store/rules", "--every-way"]
PART = [
    *(f"tests/store/test_{name}.py" for name in ("claim", "open_tx", "settle", "start")),
    *("-k", "postgres and not sqlalchemy and not django", "--turns", "0,1"),
]

SLEEPING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND state = 'active' AND query LIKE 'SELECT pg_sleep(60)%'"""

Behind: TypeAlias = Callable[..., Holdfast]


def run_pooled(directory: Path, server_url: str, *arguments: str) -> str:
    """Run tests through PgBouncer, in a process of their own, on the server of this run; give their summary."""
    command = [sys.executable, "-m", "pytest", "--pooled", "-q", "-o", f"cache_dir={directory}", *arguments]
    environment = {**os.environ, URL_VARIABLE: server_url}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-20_000:]
    return ran.stdout


def passed(summary: str) -> int:
    """Read how many tests passed."""
    found = re.search(r"(\d+) passed", summary)
    return int(found[1]) if found else 0


@pytest.mark.long
def test_a_part_of_the_contract_holds_through_pgbouncer(
    pgbouncer_program: Program, postgres_server: str, tmp_path: Path
) -> None:
    """P-31; the whole of it takes many minutes, and is below."""
    assert passed(run_pooled(tmp_path, postgres_server, "-n", "0", *PART)) > 100


@pytest.mark.long
@pytest.mark.by_hand
@pytest.mark.timeout(1500)
def test_the_whole_contract_holds_through_pgbouncer(
    pgbouncer_program: Program, postgres_server: str, tmp_path: Path
) -> None:
    """P-31; what is left out is named, with its reason, in tests/support/databases/pooled.py."""
    assert passed(run_pooled(tmp_path, postgres_server, "-n", "2", *WHOLE)) > 1500


@pytest.mark.parametrize("name", APART)
def test_what_is_left_out_is_there(name: str) -> None:
    path, _, test = name.partition("::")
    sources = [ROOT / path] if (ROOT / path).is_file() else (ROOT / "tests" / "store").rglob("*.py")
    function = (test or path).partition("[")[0]

    assert (ROOT / name).is_file() or any(f"def {function}" in each.read_text() for each in sources)


@pytest.fixture
def behind(pgbouncer_program: Program, empty_url: str, direct_url: str) -> Iterator[Behind]:
    """Make faces on the database of this test that reach it through a PgBouncer of their own."""
    with ExitStack() as at_end:

        def make(pgbouncer: dict[str, str], **options: Any) -> Holdfast:
            bouncer = at_end.enter_context(running_pgbouncer(direct_url, **pgbouncer))
            hf = Holdfast(bouncer.url_of(direct_url), schema_name=SCHEMA, **options)
            at_end.callback(hf.sync.close)
            return hf

        yield make


async def test_each_transaction_may_be_on_another_connection_to_the_server(
    pgbouncer: PgBouncer, direct_url: str
) -> None:
    """Or the tests above would not show what is left on one."""
    seen = set()
    with psycopg.connect(pgbouncer.url_of(direct_url), autocommit=True, prepare_threshold=None) as connection:

        def has_seen_several() -> bool:
            seen.add(connection.execute("SELECT pg_backend_pid()").fetchone())
            return len(seen) >= 3

        await until(has_seen_several, "PgBouncer gives out several")


@pytest.mark.long
async def test_connections_that_are_recycled_for_ever_lose_and_double_nothing(
    behind: Behind, caplog: pytest.LogCaptureFixture
) -> None:
    """F-54, I-51: I-22, I-25."""
    tasks = Tasks()
    backends: list[int] = []

    @tasks.task(name="note")
    async def note(ctx: Context) -> None:
        async with ctx.complete() as tx:
            ((backend,),) = await tx.fetch_all("SELECT pg_backend_pid()")
            backends.append(backend)
            return tx.finish(None)

    hf = behind(
        {"server_lifetime": "1", "default_pool_size": "2", "min_pool_size": "0"}, tasks=[tasks], transaction_pooler=True
    )
    started = []
    async with hf, hf.worker(poll=0.05):

        async def has_seen_many() -> bool:
            started.append(await hf.start(note()))
            return len(set(backends)) >= 6

        await until(has_seen_many, "the server's connections are replaced again and again", 30)
        for each in started:
            await each.result(timeout=20)

    assert len(backends) == len(started)
    assert {name_of(each) for each in caplog.records} == {"hints_lost"}


async def test_a_statement_whose_block_is_broken_off_does_not_run_on(behind: Behind, direct_url: str) -> None:
    """A request to cancel does not get through once its connection is cut."""
    hf = behind({}, transaction_pooler=True)
    with psycopg.connect(direct_url, autocommit=True) as stranger:

        def sleeping() -> int:
            return int(stranger.execute(SLEEPING).fetchall()[0][0])

        async with hf:
            block = await hf.store.begin(30)
            statement = asyncio.ensure_future(block.query("SELECT pg_sleep(60)", {}))
            await until(lambda: sleeping() == 1, "it runs")

            await block.roll_back()

            with pytest.raises(TransactionBroken):
                await statement
            await until(lambda: sleeping() == 0, "the server does not go on with it")


async def test_a_block_that_stood_still_is_told_so_when_it_commits(behind: Behind) -> None:
    """The server's farewell and the pooler's are two answers to one COMMIT."""
    hf = behind({}, transaction_pooler=True)
    async with hf:
        block = await hf.store.begin(2.0)
        await block.query("SELECT 1", {})
        await until(lambda: has_spoken(block._lent.pgconn), "the server has ended it")  # type: ignore[attr-defined]

        with pytest.raises(TransactionTimeout):
            await block.commit()


async def test_a_wrong_password_is_told_at_once(behind: Behind) -> None:
    """F-25."""
    url = behind({}).settings.database
    wrong = re.sub(r":[^:@]+@", ":so-secret@", url)
    hf = Holdfast(wrong, schema_name=SCHEMA, transaction_pooler=True, deadline_seconds=100)

    began = time.monotonic()
    with pytest.raises(Unavailable, match="refuses the connection"):
        await hf.open()

    assert time.monotonic() - began < 50
    await hf.close()


@pytest.fixture
def quick_ears(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a line find out soon that it is deaf."""
    monkeypatch.setattr(listener, "DEAF_SECONDS", 0.5)
    monkeypatch.setattr(listener, "BEAT_SECONDS", 0.5)
    monkeypatch.setattr(listener, "DEAF_PAUSE", 0.1)


@pytest.mark.usefixtures("quick_ears")
async def test_who_was_not_told_of_the_pooler_finds_out_that_nothing_is_heard(
    behind: Behind, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """F-22, F-27: what a server's connection tells itself does come through, and proves nothing."""
    hf = behind(
        {"ignore_startup_parameters": "options", "server_round_robin": "0", "min_pool_size": "0"}, tasks=[TASKS]
    )
    tried = []
    send = listener.ListenSocket._send

    def noted(line: listener.ListenSocket, *statements: str) -> None:
        tried.append(statements)
        send(line, *statements)

    monkeypatch.setattr(listener.ListenSocket, "_send", noted)
    with Ear(hf) as ear:
        await until(lambda: len(tried) >= 3, "it is tried again")

        assert (ear.is_listening, ear.heard) == (False, 0)
    await hf.close()
    assert lines(caplog) == ["hints_lost"]


@pytest.mark.usefixtures("quick_ears")
async def test_through_a_pooler_of_sessions_hints_are_heard(
    behind: Behind, direct_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    hf = behind({"ignore_startup_parameters": "options", "pool_mode": "session"}, tasks=[TASKS])
    with Ear(hf) as ear, psycopg.connect(direct_url, autocommit=True) as stranger:
        await ear.settle_down()

        stranger.execute(f'NOTIFY "{channel(SCHEMA)}"')

        await until(lambda: ear.heard > 0, "the hint comes")
    await hf.close()
    assert not caplog.records


async def test_a_worker_behind_a_pooler_polls_and_says_so_once(
    behind: Behind, caplog: pytest.LogCaptureFixture
) -> None:
    """F-27."""
    hf = behind({}, tasks=[TASKS], transaction_pooler=True)
    for _ in range(2):
        async with hf, hf.worker(poll=0.1) as worker:
            chain = await hf.start(greet(name="Ada"))

            assert await chain.result(timeout=10) == "Hello, Ada"
            assert worker.health().hints == "polling"
    assert lines(caplog) == ["hints_lost"]


async def test_jobs_are_started_on_the_connections_of_callers(behind: Behind) -> None:
    """P-31: parameters that hold JSON, and the encoding, which a pooler tells in the client's words."""
    hf = behind({}, tasks=[TASKS], transaction_pooler=True)
    url = hf.settings.database
    async with hf:
        async with await psycopg.AsyncConnection.connect(url, client_encoding="utf-8") as caller, caller.transaction():
            chains = [await hf.start(greet(name="Zoë"), connection=caller)]
        plain = await asyncpg.connect(url, statement_cache_size=0)
        async with plain.transaction():
            chains.append(await hf.start(greet(name="Zoë"), connection=plain))
        await plain.close()

        jobs = [await hf.get_job(each) for each in chains]
    assert [each.input.name for each in jobs] == ["Zoë", "Zoë"]
