"""Pipelines: what they make of functions, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Tasks
from holdfast.errors import DuplicateTask, InvalidInput, Misuse
from holdfast.sync import Context as BlockingContext


async def download(ctx: Context, url: str, tries: int = 3) -> int:
    return len(url) * tries


def encode(ctx: Context, size: int) -> list[int]:
    return [size]


async def upload(ctx, files):  # type: ignore[no-untyped-def]
    return str(files)


def plain_download(ctx: BlockingContext, url: str) -> int:
    return len(url)


def plain_encode(ctx: BlockingContext, size: int) -> list[int]:
    return [size]


def test_a_pipeline_has_the_defaults_of_its_registry() -> None:
    tasks = Tasks(lease=90)

    assert tasks.pipeline("transcode", download, encode).policy.lease == 90
    assert tasks.pipeline("again", download, encode, lease=60).policy.lease == 60


def test_a_pipeline_is_a_task_with_a_phase_for_each_function() -> None:
    tasks = Tasks()

    task = tasks.pipeline("transcode", download, encode, upload, queue="media", aliases=["old"])

    assert tasks.get("old") is task
    assert (task.name, task.policy.queue) == ("transcode", "media")
    assert task.policy.phases == ("download", "encode", "upload")
    assert task(url="http://a").consume().arguments == '{"url":"http://a","tries":3}'
    assert (task.signature.is_async, task.signature.takes_context) == (True, True)
    assert task.place.startswith(__file__)
    assert task.__doc__ == "Run download, encode, upload, one after the other."


def test_its_output_is_that_of_the_last_function() -> None:
    task = Tasks().pipeline("transcode", download, encode)

    assert task.encode_output([7]) == "[7]"
    assert task.decode_output("[7]") == [7]


def test_plain_functions_with_the_blocking_context_make_a_plain_handler() -> None:
    task = Tasks().pipeline("transcode", plain_download, plain_encode)

    assert task.signature.is_async is False


def test_plain_functions_with_the_async_context_make_an_async_one() -> None:
    def first(ctx: Context, url: str) -> int:
        return len(url)

    assert Tasks().pipeline("transcode", first, encode).signature.is_async is True


def no_context(url: str) -> int:
    return len(url)


async def too_many(ctx: Context, a: int, b: int) -> int:
    return a + b


REFUSED: list[tuple[list[Any], str]] = [
    ([], "has no function"),
    ([no_context], "the first parameter of no_context is not annotated as a context"),
    ([upload], "the first parameter of upload is not annotated as a context"),
    ([download, too_many], "too_many must take two arguments"),
    (
        [download, plain_encode],
        "plain_encode takes the blocking context, but other functions of the pipeline are async",
    ),
    ([lambda ctx, url: 1], "cannot be a phase of a pipeline"),
    ([download, "encode"], "encode cannot be a phase of a pipeline"),
]


@pytest.mark.parametrize(("functions", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_what_cannot_be_a_pipeline_is_refused(functions: list[Callable[..., Any]], says: str) -> None:
    with pytest.raises(Misuse, match=says):
        Tasks().pipeline("transcode", *functions)


def test_two_functions_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInput, match="phases names 'encode' twice"):
        Tasks().pipeline("transcode", download, encode, encode)  # type: ignore[misc,arg-type]


@pytest.mark.parametrize("option", ["name", "phases", "colour"])
def test_options_that_a_pipeline_does_not_have_are_refused(option: str) -> None:
    with pytest.raises(Exception, match=option):
        Tasks().pipeline("transcode", download, **{option: "x"})  # type: ignore[call-overload]


def test_a_name_that_is_taken_is_refused() -> None:
    tasks = Tasks()
    tasks.pipeline("transcode", download)

    with pytest.raises(DuplicateTask, match=r"test_pipelines\.py"):
        tasks.pipeline("transcode", download)
