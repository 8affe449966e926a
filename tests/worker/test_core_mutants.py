"""Wrong workers: each turns the test red that it names, on SQLite."""

from __future__ import annotations

import gc
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.worker.claiming.claim_ahead import ClaimAhead
from tests.mutants import CORE, Race, load
from tests.support.conditions import until
from tests.support.factories import TASKS
from tests.support.ways import Way

PATIENCE_SECONDS = 2
"""How long a test waits for what a wrong worker does not do."""


@pytest.fixture
async def hf(new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    made = new_holdfast("sqlite", tasks=[TASKS])
    await made.open()
    yield made
    await made.close()


@pytest.fixture(autouse=True)
def swept() -> Iterator[None]:
    """Have what a wrong worker leaves behind collected here, and not in the middle of another test."""
    yield
    gc.collect()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Name the mutants late: they name tests of files that import others."""
    load()
    metafunc.parametrize("race", CORE, ids=lambda race: race.name)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of what a wrong worker leaves
async def test_a_wrong_worker_turns_its_test_red(race: Race, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    module = inspect.getmodule(race.test)
    if "ahead" in race.test.__module__:
        monkeypatch.setattr(ClaimAhead, "most", 100)
        monkeypatch.setattr(ClaimAhead, "longest_wait", 60.0)
    if hasattr(module, "until"):
        monkeypatch.setattr(module, "until", partial(until, timeout=PATIENCE_SECONDS))
    given: dict[str, object] = {"hf": hf, "way": Way(hf, is_async=True), "monkeypatch": monkeypatch}
    given |= race.given
    race.apply(monkeypatch)

    with pytest.raises((Exception, pytest.fail.Exception), match=race.says):
        await outcome_of(race.test, given)


async def outcome_of(test: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Run *test* with those of *given* that it asks for."""
    answer = test(**{name: given[name] for name in inspect.signature(test).parameters})
    if inspect.isawaitable(answer):
        await answer
