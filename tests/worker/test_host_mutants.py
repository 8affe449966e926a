"""Wrong hosts of tenants: each turns the test red that it names, on PostgreSQL."""

from __future__ import annotations

import gc
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial

import pytest

from holdfast import Holdfast
from tests.mutants import HOSTS, Race, load
from tests.support.conditions import until
from tests.unit import test_slot_share
from tests.worker.tenants import Scene
from tests.worker.test_core_mutants import outcome_of
from tests.worker.test_hosts import make_scene

pytestmark = pytest.mark.long

PATIENCE_SECONDS = 6
"""How long a test waits for what a wrong host does not do: longer than a right one needs."""


@pytest.fixture
async def on_postgres(request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Scene]:
    async with make_scene("postgres", request, new_holdfast) as scene:
        yield scene


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """Have what a wrong host leaves behind collected here, and not in the middle of another test."""
    yield
    gc.collect()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Name the mutants late: they name tests of files that import others."""
    load()
    metafunc.parametrize("race", HOSTS, ids=lambda race: race.name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what a wrong host leaves
async def test_a_wrong_host_turns_its_test_red(
    race: Race,
    on_postgres: Scene,
    empty_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    module = inspect.getmodule(race.test)
    if hasattr(module, "until"):
        monkeypatch.setattr(module, "until", partial(until, timeout=PATIENCE_SECONDS))
    given: dict[str, object] = {"scene": on_postgres, "on_postgres": on_postgres, "empty_url": empty_url}
    given |= {"monkeypatch": monkeypatch, "caplog": caplog, "clock": test_slot_share.Clock(), **race.given}
    race.apply(monkeypatch)

    with pytest.raises((Exception, pytest.fail.Exception), match=race.says):
        await outcome_of(race.test, given)
