"""Phases and pipelines: a phase takes and gives what its function does, and a pipeline what its first and last do."""

from collections.abc import Awaitable
from typing import Any, assert_type

from holdfast import Context, Holdfast
from holdfast.sync import Context as BlockingContext
from holdfast.tasks.calls import Call

hf = Holdfast("jobs.db")


async def download(ctx: Context, url: str) -> int:
    return len(url)


def encode(ctx: Context, size: int, *, quality: int = 1) -> list[int]:
    return [size * quality]


async def upload(ctx: Context, files: list[int]) -> str:
    return str(files)


def plain_download(ctx: BlockingContext, url: str) -> int:
    return len(url)


def plain_upload(ctx: BlockingContext, size: int) -> bytes:
    return bytes(size)


@hf.task(phases=("download", "encode"))
async def transcode(ctx: Context, url: str) -> list[int]:
    size = await ctx.phase("download", download, ctx, url)
    assert_type(size, int)
    assert_type(await ctx.phase("encode", encode, ctx, size, quality=2), list[int])
    assert_type(ctx.phase_result("download"), Any)
    assert_type(ctx.phase_results(), dict[str, Any])
    await ctx.phase("download", download, ctx)  # refused
    await ctx.phase("download", download, ctx, 1)  # refused
    await ctx.phase("encode", encode, ctx, size, quality="high")  # refused
    await ctx.phase("encode")  # refused
    assert_type(ctx.progress(50, "half", flush=True), Awaitable[None])
    await ctx.progress(3, total=4, flush=True)
    ctx.progress(50)
    ctx.progress("half")  # refused
    await ctx.progress(50)  # refused
    return await ctx.phase("encode", encode, ctx, size)


@hf.task(phases=("download",))
def plain(ctx: BlockingContext, url: str) -> int:
    ctx.progress(1, total=2, flush=True)
    ctx.phase("download", plain_download, ctx)  # refused
    return ctx.phase("download", plain_download, ctx, url)


one = hf.pipeline("one", download)
assert_type(one(url="http://a"), Call[int])
two = hf.pipeline("two", download, encode)
assert_type(two("http://a"), Call[list[int]])
three = hf.pipeline("three", download, encode, upload, queue="media")
assert_type(three(url="http://a"), Call[str])
blocking = hf.pipeline("blocking", plain_download, plain_upload)
assert_type(blocking(url="http://a"), Call[bytes])
six = hf.pipeline("six", download, encode, upload, upload, upload, upload)
assert_type(six(url="http://a"), Call[Any])

three(url=1)  # refused
three()  # refused
hf.pipeline("wrong", download, upload)  # refused
hf.pipeline("mixed", download, plain_upload)  # refused
hf.pipeline("coloured", download, colour="red")  # refused
