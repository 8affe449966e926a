"""Our side of the pipe to a peer: its environment, made on first use, and its process, which takes turns with ours."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import glob
from pathlib import Path
from threading import Timer

from bench.peers.serving import end_with_parent
from bench.rounds import Dropout

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "bench"


PATIENCE = 120.0
"""Seconds after which a peer that does not answer is given up."""


class PeerUnavailable(Dropout):
    """The peer cannot be had here, or is gone; the message says why."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer: what to install for it, the module that runs there, and the oldest Python that it works with."""

    name: str
    requirements: tuple[str, ...]
    module: str
    python: tuple[int, int] = (3, 11)


def drains(name: str, *requirements: str, python: tuple[int, int] = (3, 11)) -> Peer:
    """Name the peer whose worker is measured."""
    return Peer(name, requirements, f"bench.peers.{name}_drain", python)


HUEY_DRAIN = drains("huey", "huey==3.5.4")
PGQUEUER_DRAIN = drains("pgqueuer", "pgqueuer[asyncpg]==1.6.0")
PROCRASTINATE_DRAIN = drains("procrastinate", "procrastinate==3.10.0")
OBAN_DRAIN = drains("oban", "oban==0.7.0", python=(3, 12))
CHANCY_DRAIN = drains("chancy", "chancy==0.26.0", "psycopg[binary]==3.3.8")
DBOS_DRAIN = drains("dbos", "dbos==3.3.0")
SAQ_DRAIN = drains("saq", "saq[postgres]==0.26.4", "psycopg[binary]==3.3.8")
DRAMATIQ_DRAIN = drains("dramatiq", "dramatiq[redis]==2.2.1", "hiredis==3.5.0")
CELERY_DRAIN = drains("celery", "celery[redis]==5.7.0", "hiredis==3.5.0")

HUEY = replace(HUEY_DRAIN, module="bench.peers.huey_start")
PGQUEUER = replace(PGQUEUER_DRAIN, module="bench.peers.pgqueuer_start")


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
        giving_up = Timer(PATIENCE, self._process.kill)
        giving_up.start()
        answer = self._process.stdout.readline() if self._process.stdout else ""
        giving_up.cancel()
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
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - it takes no lock
    ) as process:
        yield PeerProcess(process)


def prepare(peer: Peer) -> Path:
    """Make the environment of *peer*, unless it is there as it should be, and answer its Python."""
    environment = CACHE / peer.name
    python, done = environment / "bin" / "python", environment / "installed"
    wanted = "\n".join(peer.requirements)
    if not done.exists() or done.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(environment, ignore_errors=True)
        environment.parent.mkdir(parents=True, exist_ok=True)
        install(environment, peer)
        done.write_text(wanted, encoding="utf-8")
    return python


def install(environment: Path, peer: Peer) -> None:
    """Make an environment and install what *peer* needs, by uv if that can be found, else by pip."""
    base, python = find_python(peer.python), str(environment / "bin" / "python")
    uv = shutil.which("uv") or next((str(each) for each in (ROOT / ".cache").glob("uv-*/bin/uv")), None)
    if uv is not None:
        call([uv, "venv", "--quiet", "--python", base, str(environment)])
        call([uv, "pip", "install", "--quiet", "--python", python, *peer.requirements])
    else:
        call([base, "-m", "venv", str(environment)])
        call([python, "-m", "pip", "install", "--quiet", *peer.requirements])


def find_python(oldest: tuple[int, int]) -> str:
    """Find a Python that is new enough: this one, one on PATH, or one that pyenv keeps."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    names = [f"python3.{minor}" for minor in range(oldest[1], oldest[1] + 4)]
    kept = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    on_path = [found for name in names if (found := shutil.which(name))]
    in_pyenv = [found for name in names for found in glob(f"{kept}/*/bin/{name}")]  # noqa: PTH207 - pathlib's raises
    for each in [*on_path, *in_pyenv]:
        # a pyenv shim is on PATH even when its Python cannot be started
        if subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0:
            return each
    raise PeerUnavailable("it needs Python {}.{} or newer".format(*oldest))


def call(command: Sequence[str]) -> None:
    """Run *command*, and raise with the end of what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerUnavailable((done.stderr or done.stdout).strip().splitlines()[-1])
