"""A media pipeline on a SQLite file: download, encode, upload, each a phase whose result is kept.

The encoder breaks off in its first attempt. The second one goes on there: nothing is downloaded twice. Meanwhile
somebody watches how far it is. Run it as a program of its own, and kill it wherever you like: the next run goes on.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast import Context, Holdfast, Job, Retry, Tasks

tasks = Tasks()


@dataclass
class Source:
    """What was downloaded."""

    name: str
    frames: int


def note(ctx: Context, phase: str) -> None:
    """Write down that a phase has done its work, for whoever wants to count."""
    place = os.environ.get("MEDIA_LEDGER")
    if place:
        with Path(place).open("a") as ledger:
            ledger.write(json.dumps({"job": str(ctx.job.id), "attempt": ctx.job.attempt, "phase": phase}) + "\n")


async def download(ctx: Context, url: str) -> Source:
    """Fetch the film."""
    ctx.progress(50, "half of it is here")
    note(ctx, "download")
    return Source(url.rpartition("/")[2], frames=4)


async def encode(ctx: Context, source: Source) -> list[str]:
    """Encode frame by frame; the first attempt breaks off in the middle, unless somebody else does."""
    files = []
    for number in range(source.frames):
        if number == 2 and ctx.job.used == 1 and "MEDIA_LEDGER" not in os.environ:
            raise OSError("the encoder has crashed")
        files.append(f"{source.name}.{number}")
        await ctx.progress(number + 1, total=source.frames, message=f"frame {number + 1}", flush=True)
    note(ctx, "encode")
    return files


def upload(ctx: Context, files: list[str]) -> str:
    """Upload the files; a plain function, so it runs in a thread."""
    source = ctx.phase_result("download")  # what any earlier phase gave can be read
    note(ctx, "upload")
    return f"{source.name}: {len(files)} of {source.frames} frames"


transcode = tasks.pipeline(
    "transcode", download, encode, upload, retry=Retry(attempts=5, first=0.05, jitter=0), lease=2
)


def shown(job: Job) -> str:
    """Say in a line how a job stands."""
    bars = " ".join(f"{phase.name} {phase.status} {phase.progress:>3} %" for phase in job.phases)
    return f"{job.state:<9} {job.progress or 0:>3} %   {bars}"


async def main() -> None:
    """Transcode a film, and watch."""
    with tempfile.TemporaryDirectory() as directory:
        hf = Holdfast(str(Path(directory) / "media.db"), tasks=[tasks])
        async with hf, hf.worker():
            film = await hf.start(transcode(url="https://example.com/film.mov"))
            last = ""
            while (job := await hf.get_job(film)).outcome is None:
                if (line := shown(job)) != last:
                    print(line)
                last = line
                await asyncio.sleep(0.01)
            print(shown(job))
            print(f"{await film.result()}, in attempt {job.attempt}")


if __name__ == "__main__":
    asyncio.run(main())
else:
    # for `holdfast worker examples.media_pipeline:hf`
    hf = Holdfast(os.environ.get("HOLDFAST_DATABASE", "media.db"), tasks=[tasks])
