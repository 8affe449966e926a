"""More than one process on one SQLite file: fairness, kill -9, forks, full and failing disks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.database.sqlite.store import SqliteStore
from holdfast.errors import Busy
from holdfast.settings import Settings
from tests.acceptance.processes import until
from tests.disk.running import MOUNTING, may_mount
from tests.store.notes import add, count, held, is_sound, new_store, numbers, signatures
from tests.support.faults.strace import Strace
from tests.support.processes import forked

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 60
"""How long a writer of these tests waits where order decides, and not time."""

PREAMBLE = '''
import asyncio, os, sys, threading, warnings
from pathlib import Path
from holdfast.errors import *
from holdfast.database.sqlite.store import SqliteStore
from tests.store.notes import *
path = Path(sys.argv[1])
def say(*words): print(*words, flush=True)
def hear(): return sys.stdin.readline().strip()
def busy_store():
    """A store with its thread started and its connections open; 3.12 dislikes a fork then, which is the point."""
    warnings.simplefilter("ignore", DeprecationWarning)
    store = new_store(path)
    asyncio.run(store.run(add, 1))
    store.read_sync(count)
    return store
'''


class Program:
    """A Python program in a process of its own, with which one speaks in lines."""

    def __init__(self, text: str, *words: object, wrapper: tuple[str, ...] = ()) -> None:
        code = PREAMBLE + textwrap.dedent(text)
        self.process = forked.Popen(
            [*wrapper, sys.executable, "-c", code, *map(str, words)],
            cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(20)


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start programs on this test's database; what is still running at its end is killed."""
    programs: list[Program] = []

    def run(text: str, *words: object, wrapper: tuple[str, ...] = ()) -> Program:
        programs.append(Program(text, tmp_path / "jobs.db", *words, wrapper=wrapper))
        return programs[-1]

    yield run
    for program in programs:
        program.process.kill()
        program.process.wait()
        for pipe in (program.process.stdin, program.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = new_store(tmp_path / "jobs.db")
    yield store
    store.close_sync()


HOLDER = """
    store = SqliteStore(path)
    async def hold(tx):
        await add(tx, 99)
        say("holding")
        threading.Event().wait(60)
    store.run_sync(hold)
"""


@pytest.mark.source("DF-22")
def test_a_light_writer_gets_its_turn_beside_two_hot_ones(start: Start, store: SqliteStore, tmp_path: Path) -> None:
    """Who waits sleeps in the kernel's queue, and nobody who came later writes before: no poll decides it, no luck."""
    writer = f"""
        store = new_store(path, {PATIENCE_SECONDS})
        say("ready")
        hear()
        for _ in range(int(sys.argv[3])): store.run_sync(sign, sys.argv[2])
        say("done")
        store.close_sync()
    """
    times = {"light": 1, "hot": 20, "hotter": 20}
    programs = {name: start(writer, name, number) for name, number in times.items()}
    for program in programs.values():
        assert program.hear() == "ready"

    with held(store):
        for name, program in programs.items():
            program.say("write")
            until_waiting(program, name, tmp_path)
    for program in programs.values():
        assert program.hear() == "done"

    signed = store.read_sync(signatures)
    assert Counter(signed) == times
    assert list(dict.fromkeys(signed)) == ["light", "hot", "hotter"]
    assert store.read_sync(is_sound)


def until_waiting(program: Program, name: str, directory: Path) -> None:
    """Wait until *program* sleeps for the right to write; Linux says `2: -> FLOCK ADVISORY WRITE 4711 00:1a:99 …`."""
    number = (directory / "jobs.db-holdfast-lock").stat().st_ino

    def is_waiting() -> bool:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        waiting = {(words[5], words[6].rpartition(":")[2]) for words in lines if words[1] == "->"}
        return (str(program.process.pid), str(number)) in waiting

    until(is_waiting, f"the {name} one waits for the right to write")


def test_kill_9_of_the_holder_frees_the_right_at_once(start: Start, store: SqliteStore) -> None:
    """F-04."""
    holder = start(HOLDER)
    assert holder.hear() == "holding"

    holder.process.send_signal(signal.SIGKILL)

    assert store.run_sync(add, 1) == 1
    assert store.read_sync(numbers) == [1]


def test_busy_names_the_process_that_sits_on_the_right(start: Start, store: SqliteStore, tmp_path: Path) -> None:
    """F-31."""
    holder = start(HOLDER)
    assert holder.hear() == "holding"
    hasty = SqliteStore(tmp_path / "jobs.db", settings=Settings(deadline_seconds=0.2))

    with pytest.raises(Busy, match=f"process {holder.process.pid} had it last"):
        hasty.run_sync(add, 1)

    assert hasty.last_writer() == holder.process.pid
    begun = time.monotonic()
    hasty.close_sync()
    assert time.monotonic() - begun < 5, "closing does not wait for a process that may be stopped"
    holder.process.kill()
    until(lambda: not hasty._state.writer._is_left_open, "the thread that waited for the lock comes through")
    until(lambda: not hasty._state.is_connected, "it closes what it has opened")


def test_two_processes_that_create_one_file_both_succeed(start: Start, tmp_path: Path) -> None:
    text = """
        hear()
        store = SqliteStore(path)
        store.run_sync(create)
        say(store.run_sync(add, int(sys.argv[2])))
        store.close_sync()
    """
    programs = [start(text, number) for number in range(4)]

    for program in programs:
        program.say("go")

    assert [program.hear() for program in programs] == ["0", "1", "2", "3"]


def test_a_forgotten_close_does_not_hang_the_interpreter(start: Start) -> None:
    program = start("""
        store = new_store(path)
        asyncio.run(store.run(add, 1))
        asyncio.run(store.read(count))
        say("done")
    """)

    assert program.hear() == "done"
    assert program.end() == 0


def test_parent_and_child_both_write_after_a_fork(start: Start, store: SqliteStore) -> None:
    """F-11."""
    program = start("""
        store = busy_store()
        child = os.fork()
        for number in range(100):
            store.run_sync(add, (2000 if child else 1000) + number)
            asyncio.run(store.run(add, (4000 if child else 3000) + number))
        store.close_sync()
        if child:
            say(os.waitpid(child, 0)[1])
    """)

    assert program.hear() == "0"
    assert program.end() == 0
    assert store.read_sync(count) == 401
    assert store.read_sync(is_sound)


def test_what_a_child_commits_after_its_parent_has_closed_is_kept(start: Start, tmp_path: Path) -> None:
    """F-11."""
    program = start("""
        store = busy_store()
        to_child, to_parent = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            store.run_sync(add, 2)
            os.write(to_parent[1], b"x")
            os.read(to_child[0], 1)
            store.run_sync(add, 3)
            os._exit(0)         # as if killed: nothing is closed, nothing is checkpointed
        os.read(to_parent[0], 1)
        store.close_sync()      # alone, it would take the log along
        os.write(to_child[1], b"x")
        say(os.waitpid(child, 0)[1])
    """)

    assert program.hear() == "0"
    store = SqliteStore(tmp_path / "jobs.db")
    assert store.read_sync(numbers) == [1, 2, 3]
    store.close_sync()


def test_a_child_forked_while_other_threads_write_can_write_too(start: Start, store: SqliteStore) -> None:
    """F-11."""
    program = start("""
        store = busy_store()
        stop = threading.Event()
        def write(first):
            number = first
            while not stop.is_set():
                store.run_sync(add, number)
                store.read_sync(count)
                number += 1
        threads = [threading.Thread(target=write, args=(100_000 * each,)) for each in range(1, 5)]
        for thread in threads: thread.start()
        for number in range(10):
            child = os.fork()
            if child == 0:
                store.run_sync(add, 10 + number)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads: thread.join()
        store.close_sync()
        say("done")
    """)

    assert program.hear() == "done"
    assert set(range(10, 20)) < set(store.read_sync(numbers))
    assert store.read_sync(is_sound)


def test_a_child_does_not_hold_the_right_after_its_parents_death(start: Start, store: SqliteStore) -> None:
    """F-11."""
    program = start("""
        store = busy_store()
        holding = threading.Event()
        async def hold(tx):
            holding.set()
            threading.Event().wait(60)
        import holdfast.database.sqlite.store as module
        module.FORK_SECONDS = 0.1        # the holder does not come out
        threading.Thread(target=store.run_sync, args=(hold,), daemon=True).start()
        holding.wait()
        child = os.fork()
        if child == 0:
            try:
                store.run_sync(add, 2)
            except Misuse:
                say("refused", os.getpid())
            threading.Event().wait(60)
        threading.Event().wait(60)
    """)
    answer, child = program.hear().split()
    assert answer == "refused", "the database was in use at the fork, so the child must not touch it"

    program.process.send_signal(signal.SIGKILL)

    assert store.run_sync(add, 3) == 3
    os.kill(int(child), signal.SIGKILL)


def test_on_a_full_disk_each_caller_hears_the_truth_and_the_store_recovers(start: Start, tmp_path: Path) -> None:
    """F-33, I-64."""
    if not may_mount(tmp_path):
        pytest.skip("nobody may mount a small disk here")
    program = start(
        """
        disk = Path(sys.argv[2])
        say(os.system(f"mount -t tmpfs -o size=3m none {disk}"))
        store = new_store(disk / "jobs.db")
        filler = disk / "filler"
        filler.write_bytes(b"x" * 1_000_000)

        async def main():
            works = [store.run(add, number, "x" * (3_000_000 if number % 16 == 7 else 10)) for number in range(64)]
            results = await asyncio.gather(*works, return_exceptions=True)
            told = [each for each in results if isinstance(each, int)]
            say(sum(isinstance(each, Unavailable) for each in results), told == store.read_sync(numbers))

        with held(store):
            thread = threading.Thread(target=asyncio.run, args=(main(),))
            thread.start()
            while waiting(store) < 64: pass
        thread.join()

        try:
            filler.write_bytes(b"x" * 4_000_000)
        except OSError:
            pass
        try:
            for number in range(1000, 3000): store.run_sync(add, number, "x" * 1000)
        except Unavailable as error:
            say("full")
        filler.unlink()
        say(store.run_sync(add, 5000), store.read_sync(is_sound))
        store.close_sync()
        """,
        tmp_path,
        wrapper=MOUNTING,
    )

    assert program.hear() == "0"
    assert program.hear() == "4 True"
    assert program.hear() == "full"
    assert program.hear() == "5000 True"


def test_an_error_at_commit_is_never_a_success_and_the_store_recovers(
    start: Start, store: SqliteStore, strace: Strace
) -> None:
    """F-34."""
    program = start("""
        store = SqliteStore(path)
        store.run_sync(add, 1)
        say("ready")
        hear()
        try:
            say(store.run_sync(add, 2))
        except UnknownOutcome:
            say("unknown")
        hear()
        say(store.run_sync(add, 3))
        store.close_sync()
    """)
    assert program.hear() == "ready"
    with strace.injecting(program.process.pid, "fdatasync,fsync:error=EIO"):
        program.say("write")
        assert program.hear() == "unknown"
    program.say("again")

    assert program.hear() == "3"
    assert program.end() == 0
    assert set(store.read_sync(numbers)) >= {1, 3}
    assert store.read_sync(is_sound)
