"""The stage of the contract: four runners on both databases, one worker for all tests of each, with one warm child.

The contract of blocks runs over the transactions of every library too: in the loop or in a thread, by one worker for
all tests of each.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest
import pytest_asyncio

from holdfast import Holdfast
from tests.support.turns import is_long, leave_out, place_of, wanted_turns
from tests.worker.providers import Often, Stack, provided
from tests.worker.runners.behaviours import FACES, LONGEST_SECONDS, RUNNERS, TASKS
from tests.worker.runners.notes import PLACE
from tests.worker.runners.stage import Runner, make_table, until_ready

NUMBERS = count(1)
DATABASES = ("sqlite", "postgres")
OVER_PROVIDERS = "over_providers"
"""A contract file that has this name runs over the stacks as well."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test in every runner on both databases, and one of the contract of blocks over every stack as well."""
    chosen = {name for mark in metafunc.definition.iter_markers("parametrize") for name in names_in(mark.args[0])}
    if "hf" in metafunc.fixturenames and "hf" not in chosen:
        stacks = provided(None, Often.EVERYWHERE) if hasattr(metafunc.module, OVER_PROVIDERS) else []
        metafunc.parametrize("hf", [*DATABASES, *stacks], indirect=True, scope="package")
    if "runner" in metafunc.fixturenames and "runner" not in chosen:
        metafunc.parametrize("runner", RUNNERS, indirect=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the runners that a stack does not have: its transactions are of one colour, and not for children.

    Every runner has each of its tests on one database at its first turn, and on the other at the next.
    """
    items[:] = [each for each in items if not isinstance(each, pytest.Function) or fits(each)]
    wanted = {turn % len(DATABASES) for turn in wanted_turns(config.getoption("turns"))}
    if not config.getoption("every_way"):
        functions = [each for each in items if isinstance(each, pytest.Function)]
        leave_out(config, [each for each in functions if not is_long(each) and not turns_of(each) & wanted])


def turns_of(item: pytest.Function) -> set[int]:
    """Tell at which turns a test is run: at one if it has both databases, else at each."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    database, runner = params.get("hf"), params.get("runner")
    if database not in DATABASES or runner not in RUNNERS or pinned(item):
        return {0, 1}
    return {(DATABASES.index(database) + RUNNERS.index(runner) + place_of(item)) % 2}


def pinned(item: pytest.Function) -> bool:
    """Tell whether a test says itself which database it wants."""
    return any("hf" in names_in(mark.args[0]) for mark in item.iter_markers("parametrize"))


def fits(item: pytest.Function) -> bool:
    """Tell whether a test is for the runner of its stack, if it has one."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    stack = params.get("hf")
    return not isinstance(stack, Stack) or params.get("runner") == ("loop" if stack.is_async else "thread")


def names_in(given: str | Sequence[str]) -> Sequence[str]:
    """Give the parameters of a mark, which may be one text."""
    return [each.strip() for each in given.split(",")] if isinstance(given, str) else given


@pytest.fixture(scope="session")
def runners_place(tmp_path_factory: pytest.TempPathFactory, migrated_file: Path) -> Iterator[Path]:
    """The directory that the application knows by its environment, with a SQLite file that is up to date."""
    place = tmp_path_factory.mktemp("runners")
    shutil.copy(migrated_file, place / "jobs.db")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(PLACE, str(place))
        yield place


@pytest.fixture(scope="session")
def runners_url(postgres_server: str, runners_place: Path) -> Iterator[str]:
    """A PostgreSQL database of its own, in which nobody else sweeps, up to date and known by the environment."""
    from tests.worker.runners.application import POSTGRES

    name = f"holdfast_runners_{secrets.token_hex(6)}"
    url = urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    face = Holdfast(url).sync
    face.migrate()
    face.close()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(POSTGRES, url)
        yield url
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def hf(request: pytest.FixtureRequest, runners_place: Path) -> AsyncIterator[Holdfast]:
    """The application on each database, or over a stack; open, and a worker that runs whatever a test starts."""
    if isinstance(request.param, Stack):
        async with over_stack(request, request.param) as made:
            yield made
        return
    if request.param == "postgres":
        request.getfixturevalue("runners_url")
    made: Holdfast = import_module(f"tests.worker.runners.on_{request.param}").hf
    from tests.worker.runners.application import MIDDLEWARE

    await made.open()
    await made.store.run(make_table)
    # who misses a hint is not to be saved by the poll: that would hide it
    async with made.worker(middleware=MIDDLEWARE, grace=0.5, poll=LONGEST_SECONDS, children=1) as worker:
        await until_ready(worker)
        yield made
    await made.close()
    made.sync.close()


@asynccontextmanager
async def over_stack(request: pytest.FixtureRequest, stack: Stack) -> AsyncIterator[Holdfast]:
    """The application over the transactions of a library, with a worker that has no children."""
    from tests.worker.runners.application import MIDDLEWARE

    if stack.database == "postgres":
        url = str(request.getfixturevalue("runners_url"))
    else:
        url = str(request.getfixturevalue("tmp_path_factory").mktemp("stack") / "jobs.db")
        shutil.copy(request.getfixturevalue("migrated_file"), url)
    async with AsyncExitStack() as at_end:
        provider = await at_end.enter_async_context(stack.open(url))
        made = Holdfast(url, tasks=[TASKS], transactions=provider)
        patched = at_end.enter_context(pytest.MonkeyPatch.context())
        patched.setitem(FACES, stack.database, made)
        await made.open()
        at_end.push_async_callback(made.close)
        await made.store.run(make_table)
        await at_end.enter_async_context(made.worker(middleware=MIDDLEWARE, grace=0.5, poll=LONGEST_SECONDS))
        yield made
    made.sync.close()


@pytest.fixture
def runner(request: pytest.FixtureRequest, hf: Holdfast) -> Runner:
    """One of the runners, on one database."""
    return Runner(hf, request.param)


@pytest.fixture
def number() -> int:
    """A number that no other test of this process has."""
    return next(NUMBERS)
