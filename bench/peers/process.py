"""Our side of the pipe to a peer: its environment, made on first use, and its process, which takes turns with ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "bench"


class PeerUnavailable(Exception):
    """The peer cannot be had here; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer: what to install for it, and the module that runs there."""

    name: str
    requirement: str
    module: str


HUEY = Peer("huey", "huey", "bench.peers.huey_start")
HUEY_DRAIN = Peer("huey", "huey", "bench.peers.huey_drain")
PGQUEUER = Peer("pgqueuer", "pgqueuer[asyncpg]", "bench.peers.pgqueuer_start")
PGQUEUER_DRAIN = Peer("pgqueuer", "pgqueuer[asyncpg]", "bench.peers.pgqueuer_drain")
PROCRASTINATE_DRAIN = Peer("procrastinate", "procrastinate", "bench.peers.procrastinate_drain")


class PeerProcess:
    """A peer at work."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.version = self._read()

    def work(self, name: str, count: int) -> float:
        """Have it do the work called *name*; tell how many seconds it took there."""
        return float(self._ask(name, count))

    def numbers(self, name: str, count: int) -> list[float]:
        """Have it do the work called *name*; give the numbers that it answers."""
        return [float(each) for each in self._ask(name, count).split()]

    def rows(self) -> int:
        """Count what it has stored."""
        return int(self._ask("rows", 0))

    def _ask(self, name: str, count: int) -> str:
        if self._process.stdin is None:
            raise PeerUnavailable("it has no standard input")
        self._process.stdin.write(f"{name} {count}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> str:
        answer = self._process.stdout.readline() if self._process.stdout else ""
        if not answer:
            raise PeerUnavailable(f"it ended with code {self._process.wait()}")
        return answer.strip()


@contextmanager
def running(peer: Peer, *arguments: str) -> Iterator[PeerProcess]:
    """Run *peer* in its environment; raise `PeerUnavailable` if that cannot be made."""
    python = prepare(peer)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [str(python), "-m", peer.module, *arguments]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield PeerProcess(process)


def prepare(peer: Peer) -> Path:
    """Make the environment of *peer*, unless it is there, and answer its Python."""
    environment = CACHE / peer.name
    python, done = environment / "bin" / "python", environment / "installed"
    if not done.exists():
        shutil.rmtree(environment, ignore_errors=True)
        environment.parent.mkdir(parents=True, exist_ok=True)
        install(environment, python, peer.requirement)
        done.touch()
    return python


def install(environment: Path, python: Path, requirement: str) -> None:
    """Make an environment and install *requirement*, by uv if that can be found, else by pip."""
    uv = shutil.which("uv") or next((str(each) for each in (ROOT / ".cache").glob("uv-*/bin/uv")), None)
    if uv is not None:
        call([uv, "venv", "--quiet", "--python", sys.executable, str(environment)])
        call([uv, "pip", "install", "--quiet", "--python", str(python), requirement])
    else:
        call([sys.executable, "-m", "venv", str(environment)])
        call([str(python), "-m", "pip", "install", "--quiet", requirement])


def call(command: Sequence[str]) -> None:
    """Run *command*, and raise with the end of what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerUnavailable((done.stderr or done.stdout).strip().splitlines()[-1])
