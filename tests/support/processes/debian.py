"""A pytest plugin: programs that tests need and Debian has, the one of this machine, else the package's, fetched.

It is unpacked into `.cache`, once, and not installed, so that an ordinary user can do it too. Where it cannot be had,
the reason is kept for an hour, so that a run without a network does not wait for one each time. The summary of a run
names the programs that were asked for, or says loudly which of them there were not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

CACHE = Path(__file__).parents[3] / ".cache"
FETCH_SECONDS = 60.0
RETRY_SECONDS = 3600.0

asked_for: set[Package] = set()
"""What was looked for in this process."""


class ProgramUnavailable(RuntimeError):
    """There is no such program to be had here; the message says how to get one."""


@dataclass(frozen=True, slots=True)
class Package:
    """What is looked for: the *program* in the package of Debian of the same name, which people call *title*."""

    program: str
    title: str
    file: str
    """Where the program lies in its package."""
    flag: str
    """What makes it tell its version."""
    version: str
    """An expression that finds the version in what it tells."""

    @property
    def fetched(self) -> Path:
        """Where the program is kept once it was fetched."""
        return CACHE / self.program

    @property
    def why_not(self) -> Path:
        """Where the reason is kept if it could not be."""
        return CACHE / f"{self.program}-missing"

    @property
    def how_to_get_it(self) -> str:
        """What a person can do."""
        note = self.why_not.relative_to(CACHE.parent)
        return f"`apt install {self.program}`, or remove {note} and run again with a network"


@dataclass(frozen=True, slots=True)
class Program:
    """A program that can be run, and in words where it is from."""

    path: Path
    libraries: Path | None
    version: str
    origin: str

    def copied_to(self, directory: Path) -> Program:
        """Copy what was fetched to where everybody may run it: `.cache` may lie in a private home."""
        if self.libraries is None:
            return self
        path, libraries = directory / self.path.name, directory / "libraries"
        shutil.copy(self.path, path)
        shutil.copytree(self.libraries, libraries)
        for each in (path, libraries, *libraries.iterdir()):
            each.chmod(0o755)
        return Program(path, libraries, self.version, self.origin)

    @property
    def environment(self) -> dict[str, str]:
        """The variables that it needs."""
        libraries = {} if self.libraries is None else {"LD_LIBRARY_PATH": str(self.libraries)}
        return {"PATH": os.defpath, "LC_ALL": "C", **libraries}


def find(package: Package) -> Program:
    """Find the program of *package*, or fetch it; raise `ProgramUnavailable`."""
    asked_for.add(package)
    return _find(package)


def describe(package: Package) -> str:
    """Say which program there is, or why there is none."""
    try:
        program = find(package)
    except ProgramUnavailable as error:
        return f"{package.title} left out: {error}"
    return f"{package.title} {program.version} ({program.origin})"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the programs that tests ran with, or say loudly that there were none."""
    for package in sorted(asked_for, key=lambda each: each.title):
        terminalreporter.write_line(describe(package))


@cache
def _find(package: Package) -> Program:
    if found := _on_machine(package) or _fetched(package):
        return found
    if _is_fresh(package.why_not):
        raise ProgramUnavailable(package.why_not.read_text())
    try:
        _fetch(package)
    except (OSError, subprocess.SubprocessError) as error:
        reason = f"no {package.title} was found or could be fetched ({_first_line(error)})"
        raise _unavailable(package, reason) from error
    if found := _fetched(package):
        return found
    raise _unavailable(package, f"the {package.title} in {package.fetched} does not run here")


def _unavailable(package: Package, reason: str) -> ProgramUnavailable:
    """Say why there is none, and keep that for the next runs."""
    text = f"{reason}: {package.how_to_get_it}"
    with suppress(OSError):  # it is no cache of ours to write to
        package.why_not.write_text(text)
    return ProgramUnavailable(text)


def _on_machine(package: Package) -> Program | None:
    path = shutil.which(package.program, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    return _runs(package, Path(path), None, "of the machine") if path else None


def _fetched(package: Package) -> Program | None:
    return _runs(package, package.fetched / package.program, package.fetched / "libraries", "Debian's package")


def _runs(package: Package, path: Path, libraries: Path | None, origin: str) -> Program | None:
    """Ask a program for its version; `None` unless it can be run."""
    program = Program(path, libraries, "", origin)
    try:
        asked = subprocess.run(
            [path, package.flag], capture_output=True, text=True, check=False, env=program.environment
        )
    except OSError:
        return None
    version = re.search(package.version, asked.stdout)
    return Program(path, libraries, version[1], origin) if version else None


def _fetch(package: Package) -> None:
    """Fetch the package, and the libraries that are not installed, and keep of them what is needed to run it."""
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{package.program}-", dir=CACHE) as name:
        place = Path(name)
        deadline = time.monotonic() + FETCH_SECONDS
        _download(place, package.program, deadline)
        (archive,) = place.glob(f"{package.program}_*.deb")
        for library in _missing_libraries(archive):
            _download(place, library, deadline)
        for each in place.glob("*.deb"):
            _run(["dpkg", "-x", str(each), "unpacked"], place, deadline)
        kept = place / "kept"
        (kept / "libraries").mkdir(parents=True)
        shutil.copy(place / "unpacked" / package.file, kept / package.program)
        for each in place.glob("unpacked/**/lib*.so.*"):
            shutil.copy(each, kept / "libraries" / each.name)
        shutil.rmtree(package.fetched, ignore_errors=True)
        with suppress(OSError):  # another run was quicker
            kept.rename(package.fetched)


def _download(place: Path, package: str, deadline: float) -> None:
    """Fetch a package; if the lists of this machine do not have it, by lists of our own."""
    try:
        _run(["apt-get", "download", package], place, deadline)
    except subprocess.CalledProcessError:
        state, own = place / "state", ["-o", f"Dir::State={place / 'state'}", "-o", f"Dir::Cache={place / 'packages'}"]
        if not state.exists():
            (state / "lists" / "partial").mkdir(parents=True)
            (place / "packages" / "archives" / "partial").mkdir(parents=True)
            _run(["apt-get", *own, "-o", "Dir::State::status=/var/lib/dpkg/status", "update"], place, deadline)
        _run(["apt-get", *own, "download", package], place, deadline)


def _missing_libraries(archive: Path) -> list[str]:
    """Name the libraries that the package *archive* needs and this machine has not."""
    asked = subprocess.run(["dpkg", "-f", archive, "Depends"], capture_output=True, text=True, check=True)
    names = re.findall(r"(?:^|, )(lib[\w.+-]*)", asked.stdout)
    return [name for name in names if subprocess.run(["dpkg", "-s", name], capture_output=True, check=False).returncode]


def _run(command: list[str], place: Path, deadline: float) -> None:
    seconds = max(1.0, deadline - time.monotonic())
    subprocess.run(command, cwd=place, capture_output=True, text=True, check=True, timeout=seconds)


def _is_fresh(note: Path) -> bool:
    return note.exists() and time.time() - note.stat().st_mtime < RETRY_SECONDS


def _first_line(error: Exception) -> str:
    said = (error.stderr or "") if isinstance(error, subprocess.CalledProcessError) else ""
    return (said.strip() or str(error)).partition("\n")[0]
