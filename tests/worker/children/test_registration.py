"""What a child process could not import is refused where it is registered, or where a worker is made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput, InvalidSettings, Misuse, Tasks
from holdfast.sync import Context as BlockingContext
from tests.worker.children import application

AT_THE_TOP = "at module level"


def given(ctx: BlockingContext, value: int) -> int:
    """Be a phase."""
    return value


def test_a_function_inside_another_is_refused() -> None:
    tasks = Tasks()

    with pytest.raises(Misuse, match=AT_THE_TOP):

        @tasks.task(run_in="process")
        def inside() -> None: ...


def test_a_lambda_is_refused() -> None:
    with pytest.raises(Misuse, match="a lambda has no name and no annotations"):
        Tasks().task(name="short", run_in="process")(TOP_LAMBDA)


TOP_LAMBDA: Callable[[], None] = lambda: None  # noqa: E731 - that is what is refused


def test_a_pipeline_that_is_made_inside_a_function_is_refused() -> None:
    with pytest.raises(Misuse, match=AT_THE_TOP):
        Tasks().pipeline("steps", given, run_in="process")


AT_TOP = Tasks()
AT_TOP.pipeline("steps", given, run_in="process")


def test_a_pipeline_at_the_top_of_a_module_is_not() -> None:
    assert AT_TOP.get("steps").policy.is_in_child


@pytest.mark.parametrize("where", ["-c", pytest.param("-", marks=pytest.mark.long)])
def test_what_is_in_no_file_is_refused(where: str) -> None:
    text = "from holdfast import Tasks\n@Tasks().task(name='typed', run_in='process')\ndef typed() -> None: ...\n"
    command = [sys.executable, *(["-c", text] if where == "-c" else ["-"])]

    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    assert "Misuse" in done.stderr
    assert "put the task into a module" in done.stderr


def test_there_is_one_word_for_where_a_task_runs() -> None:
    with pytest.raises(InvalidInput, match=r"run_in must be 'process'"):
        Tasks().task(run_in="thread")(given)  # type: ignore[call-overload]


@pytest.mark.parametrize("megabytes", [0, -1, "64", True])
def test_a_limit_of_memory_is_a_number_above_0(megabytes: Any) -> None:
    with pytest.raises(InvalidInput, match="memory_megabytes must be a number above 0"):
        Tasks().task(run_in="process", memory_megabytes=megabytes)(given)


def test_a_limit_of_memory_needs_a_child() -> None:
    with pytest.raises(InvalidInput, match='add run_in="process"'):
        Tasks().task(memory_megabytes=64)(given)


def test_a_declared_task_runs_where_its_owner_says() -> None:
    with pytest.raises(Misuse, match=r"hf\.declare\(\) has no option 'run_in'"):
        Tasks().declare("billing.charge", dict, str, run_in="process")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "options",
    [
        {"children": 0},
        {"children": 1.5},
        {"child_jobs": 0},
        {"child_jobs": None},
        {"child_megabytes": 0},
        {"child_megabytes": "1"},
        {"app": "nowhere"},
        {"app": ":hf"},
    ],
)
def test_options_of_children_that_cannot_be_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        Holdfast(str(tmp_path / "jobs.db")).worker(**options)


def test_a_holdfast_that_no_module_has_is_refused_with_what_to_write(tmp_path: Path) -> None:
    nowhere = Holdfast(str(tmp_path / "jobs.db"), tasks=[application.tasks])

    with pytest.raises(Misuse, match=r'write hf\.worker\(app="module:name"\)'):
        nowhere.worker()


async def by_module(ctx: Any, inner: Callable[[], Awaitable[Any]]) -> Any:
    """Wrap nothing."""
    return await inner()


async def test_middleware_of_a_worker_must_be_importable_if_a_task_runs_in_a_child(hf: Holdfast) -> None:
    async def by_closure(ctx: Any, inner: Callable[[], Awaitable[Any]]) -> Any:
        return await inner()

    hf.worker(middleware=[by_module])
    with pytest.raises(Misuse, match=r"a child process cannot import middleware .*by_closure"):
        hf.worker(middleware=[by_closure])


def test_a_worker_without_such_tasks_is_asked_for_nothing(tmp_path: Path) -> None:
    plain = Holdfast(str(tmp_path / "jobs.db"))

    assert plain.worker(middleware=[lambda ctx, inner: inner()]).health().children is None
