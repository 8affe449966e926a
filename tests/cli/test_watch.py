"""`holdfast watch` as a person runs it: bars, lines or JSON until the chain has ended, and an exit code that tells."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from click.testing import CliRunner, Result

from holdfast import Context, Holdfast, InvalidId, Tasks, Unavailable
from holdfast.cli import commands
from holdfast.cli.watch import LEAVE_SECONDS, _show
from tests.support.conditions import until
from tests.support.processes import forked
from tests.support.processes.thread_signals import send_to_thread

tasks = Tasks()


class Release:
    """What handlers wait for; a new one for each test."""

    event: asyncio.Event


@tasks.task(name="film", phases=("download", "encode"))
async def film(ctx: Context, title: str) -> str:
    """Get half-way through its second phase, and wait there until the test goes on."""
    await ctx.phase("download", str, title)
    await ctx.phase("encode", encode, ctx)
    return ctx.continue_with(publish(title=title))


async def encode(ctx: Context) -> None:
    await ctx.progress(50, "half \x1b[31mof[/] it", flush=True)
    await Release.event.wait()


@tasks.task(name="publish")
async def publish(title: str) -> str:
    """End a chain."""
    return f"published: {title}"


@tasks.task(name="silent", history=False)
async def silent() -> None:
    """Leave nothing in the log."""
    await Release.event.wait()


@pytest.fixture
async def hf(new_holdfast: Callable[..., Holdfast]) -> AsyncIterator[Holdfast]:
    """A face on a SQLite file, open."""
    Release.event = asyncio.Event()
    async with new_holdfast("sqlite", tasks=[tasks]) as face:
        yield face


def run(hf: Holdfast, *arguments: str) -> Result:
    """Run the command in this process; nothing may change any more."""
    return CliRunner().invoke(commands, ["watch", *arguments, "--database", hf.settings.database])


@pytest.fixture
def forked_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have asyncio start programs of ours without importing Holdfast anew; not where an interpreter's end matters."""
    monkeypatch.setattr(subprocess, "Popen", forked.Popen)


@asynccontextmanager
async def watching(hf: Holdfast, *arguments: str, **options: Any) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the command as a process."""
    command = [str(Path(sys.executable).with_name("holdfast")), "watch", *arguments]
    environment = {**os.environ, "HOLDFAST_DATABASE": hf.settings.database, "COLUMNS": "120"}
    pipes = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE, **options}
    process = await asyncio.create_subprocess_exec(*command, **{"env": environment, **pipes})
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def line_with(process: asyncio.subprocess.Process, words: str) -> str:
    """Read on to a line with *words*."""
    assert process.stdout is not None
    async with asyncio.timeout(20):
        while line := (await process.stdout.readline()).decode():
            if words in line:
                return line
    raise AssertionError(f"it ended without {words!r}")


@pytest.mark.usefixtures("forked_programs")
async def test_a_job_that_waits_is_shown_with_the_reasons_why(hf: Holdfast) -> None:
    chain = await hf.start(publish(title="Metropolis"), delay=3600)
    async with watching(hf, str(chain.id)) as process:
        scheduled = await line_with(process, "scheduled")
        await hf.trigger(chain)
        pending = await line_with(process, "pending")
        await hf.cancel(chain)
        assert await asyncio.wait_for(process.wait(), 20) == 7

    assert f"publish {chain.id}, scheduled 0 %, the job is due at " in scheduled
    assert "; no worker serves queue 'default'; start a worker" in scheduled
    assert pending.startswith(f"publish {chain.id}, pending 0 %, no worker serves queue 'default'; start a worker")


async def test_a_database_that_cannot_say_why_for_a_moment_does_not_end_the_watching(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = await hf.start(publish(title="Metropolis"))
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()

    def explain(_: object) -> None:
        loop.call_soon_threadsafe(asked.set)
        raise Unavailable("the server has gone")

    monkeypatch.setattr(hf.sync, "explain", explain)
    ended = asyncio.create_task(asyncio.to_thread(_show, hf.sync, str(chain.id)))
    await asyncio.wait_for(asked.wait(), 20)
    await hf.cancel(chain)

    assert await asyncio.wait_for(ended, 20) == "cancelled"


@pytest.mark.usefixtures("forked_programs")
async def test_a_job_is_followed_by_lines_to_the_end_of_its_chain(hf: Holdfast) -> None:
    async with hf.worker():
        chain = await hf.start(film(title="Metropolis"))
        async with watching(hf, str(chain.id)) as process:
            half = await line_with(process, "half")  # before it may come the phase's own beginning
            Release.event.set()
            last = await line_with(process, "publish")
            assert await asyncio.wait_for(process.wait(), 20) == 0

    assert half == f"film {chain.id}, running 75 %, encode, half  [31mof[/] it\n"
    assert "\x1b" not in half
    assert last.startswith("publish ")


@pytest.mark.usefixtures("forked_programs")
async def test_json_is_an_event_a_line(hf: Holdfast) -> None:
    async with hf.worker():
        chain = await hf.start(film(title="Metropolis"))
        async with watching(hf, str(chain.id), "--json") as process:
            first = json.loads(await line_with(process, "snapshot"))
            Release.event.set()
            assert process.stdout is not None
            rest = [json.loads(line) async for line in process.stdout]
            assert await asyncio.wait_for(process.wait(), 20) == 0

    assert first["jobs"][-1]["id"] == str(chain.id)
    names = [each["event"] for each in rest]
    assert {"job:phase:completed", "job:enqueued", "job:completed"} <= set(names)
    assert rest[names.index("job:completed", -2)]["job"]["task"] == "publish"
    assert {each["job"]["task"] for each in rest} == {"film", "publish"}
    told = rest[names.index("job:phase:completed")]  # before it may come what tells of progress
    phases = [(phase["name"], phase["status"]) for phase in told["job"]["phases"]]
    assert [name for name, _ in phases] == ["download", "encode"]
    assert phases[0][1] == "completed"


@pytest.mark.usefixtures("forked_programs")
async def test_in_a_terminal_there_is_a_bar_for_the_job_and_for_each_phase(hf: Holdfast) -> None:
    terminal, inside = pty.openpty()
    shown = bytearray()
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            shown.extend(os.read(terminal, 65_536))
        except OSError:  # nobody writes any more
            loop.remove_reader(terminal)

    loop.add_reader(terminal, read)
    async with hf.worker():
        chain = await hf.start(film(title="Metropolis"))
        async with watching(hf, str(chain.id), stdout=inside, stderr=inside) as process:
            os.close(inside)
            await until(lambda: "75%" in shown.decode(errors="replace"), "the bars are shown", 20)
            Release.event.set()
            assert await asyncio.wait_for(process.wait(), 20) == 0
        await until(lambda: b"publish" in shown, "the last picture has come")
    loop.remove_reader(terminal)
    os.close(terminal)

    text = shown.decode(errors="replace")
    for word in ("film", "download", "encode", "completed", "continued", "100%", "50%"):
        assert word in text, word
    assert "[31m" in text
    assert "\x1b[31mof" not in text


async def test_ctrl_c_ends_the_watching_and_nothing_else(hf: Holdfast) -> None:
    async with hf.worker():
        chain = await hf.start(film(title="Metropolis"))
        async with watching(hf, str(chain.id)) as process:
            await line_with(process, "encode")
            process.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(process.wait(), 20) == 130
            assert process.stderr is not None
            assert (await process.stderr.read()).splitlines() == [f"database: {hf.settings.database}".encode()]
        assert (await hf.get_job(chain)).status == "running"
        Release.event.set()


SLOW_APP = """
import time
from holdfast import Holdfast

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep({seconds})

slow = Slow()
jobs = Holdfast({database!r})
"""


async def test_ctrl_c_has_its_exit_code_even_if_the_interpreter_ends_slowly(hf: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "slow_shop.py").write_text(SLOW_APP.format(seconds=LEAVE_SECONDS + 0.5, database=hf.settings.database))
    chain = await hf.start(publish(title="Metropolis"), paused=True)
    # a module with an `__del__` goes when all signals have been given back to the system
    environment = {key: each for key, each in os.environ.items() if key != "HOLDFAST_DATABASE"}
    async with watching(hf, str(chain.id), "slow_shop:jobs", cwd=tmp_path, env=environment) as process:
        await line_with(process, "paused")
        process.send_signal(signal.SIGINT)

        assert await asyncio.wait_for(process.wait(), 20) == 130


async def test_ctrl_c_is_heard_whichever_thread_the_kernel_hands_it_to(hf: Holdfast, tmp_path: Path) -> None:
    (tmp_path / "threaded_shop.py").write_text(THREADED_APP.format(database=hf.settings.database))
    chain = await hf.start(publish(title="Metropolis"), paused=True)
    async with watching(hf, str(chain.id), "threaded_shop:jobs", cwd=tmp_path) as process:
        await line_with(process, "paused")
        send_to_thread(process.pid, int((tmp_path / "thread").read_text()), signal.SIGINT)

        assert await asyncio.wait_for(process.wait(), 20) == 130


THREADED_APP = """
import threading
from pathlib import Path
from holdfast import Holdfast

def sit():
    Path("thread").write_text(str(threading.get_native_id()))
    ready.set()
    threading.Event().wait()

ready = threading.Event()
threading.Thread(target=sit, daemon=True).start()
ready.wait()
jobs = Holdfast({database!r})
"""


@pytest.mark.usefixtures("forked_programs")
async def test_a_job_without_history_is_watched_too(hf: Holdfast) -> None:
    async with hf.worker():
        chain = await hf.start(silent())
        async with watching(hf, str(chain.id), "--json") as process:
            await line_with(process, "snapshot")
            Release.event.set()
            assert await asyncio.wait_for(process.wait(), 20) == 0


@pytest.mark.usefixtures("forked_programs")
async def test_a_job_that_is_deleted_meanwhile_is_one_line_and_3(hf: Holdfast) -> None:
    chain = await hf.start(publish(title="Metropolis"), paused=True)
    async with watching(hf, str(chain.id)) as process:
        await line_with(process, "paused")
        await hf.delete(chain)
        assert await asyncio.wait_for(process.wait(), 20) == 3
        assert process.stderr is not None
        assert b"there is no job" in await process.stderr.read()


async def test_the_exit_code_tells_how_it_has_ended(hf: Holdfast) -> None:
    completed, cancelled = await hf.start(publish(title="A")), await hf.start(publish(title="B"))
    await hf.complete(publish, completed, "by hand")
    await hf.cancel(cancelled, why="not needed")

    for as_json in ((), ("--json",)):
        told = [run(hf, str(each.id), *as_json) for each in (completed, cancelled)]
        assert [each.exit_code for each in told] == [0, 7], as_json
    assert "cancelled 0 %, not needed" in run(hf, str(cancelled.id)).output


async def test_a_failed_job_is_6_and_shows_its_error(hf: Holdfast) -> None:
    failing = Tasks()

    @failing.task(name="fail")
    async def fail(ctx: Context) -> None:
        ctx.fail("the film is torn")

    hf.tasks.merge(failing)
    async with hf.worker():
        chain = await hf.start(fail())
        await hf.wait([chain], timeout=10)

    told = run(hf, str(chain.id))

    assert told.exit_code == 6
    assert "the film is torn" in told.output


@pytest.mark.usefixtures("forked_programs")
async def test_what_cannot_be_watched_is_one_line(hf: Holdfast) -> None:
    async with watching(hf, str(uuid4())) as process:
        said, told = await asyncio.wait_for(process.communicate(), 20)

    assert (process.returncode, said) == (3, b"")
    assert b"there is no job" in told
    assert b"Traceback" not in told
    assert isinstance(run(hf, "film-7").exception, InvalidId)


async def test_an_application_may_be_named_instead_of_a_database(
    hf: Holdfast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = f"from holdfast import Holdfast\njobs = Holdfast({hf.settings.database!r})\n"
    (tmp_path / "watched_shop.py").write_text(application)
    monkeypatch.syspath_prepend(tmp_path)
    chain = await hf.start(publish(title="A"))
    await hf.cancel(chain)

    told = CliRunner().invoke(commands, ["watch", str(chain.id), "watched_shop:jobs"])
    assert told.exit_code == 7

    told = run(hf, str(chain.id), "watched_shop:jobs")
    assert told.exit_code == 2
    assert "not both" in told.output


async def test_what_is_secret_is_shown_neither_in_json_nor_in_lines(hf: Holdfast) -> None:
    hidden = Tasks()

    @hidden.task(name="pay", redact=["iban"])
    async def pay(password: str, iban: str) -> None: ...

    hf.tasks.merge(hidden)
    chain = await hf.start(pay(password="hunter2", iban="DE02"))
    await hf.cancel(chain, why="password=hunter2 was wrong")

    for as_json in ((), ("--json",)):
        output = run(hf, str(chain.id), *as_json).output
        assert "•••" in output
        assert not [each for each in ("hunter2", "DE02") if each in output]
