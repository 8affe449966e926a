"""A PostgreSQL whose clock can be put forward and back while it runs, by libfaketime from Debian's package."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.testing.host import hand_over
from holdfast.testing.postgres import (
    MEMORY,
    _find_binaries,
    _find_identity,
    _kept_directory,
    _options,
    _TemporaryPostgres,
)
from tests.support.processes.debian import Package, ProgramUnavailable, find

FAKETIME = Package("faketime", "faketime", "usr/bin/faketime", "--version", r"Version (\d[\w.]*)")
LIBRARY = "libfaketime.so.1"


def find_library() -> Path:
    """Find the library, or fetch it; raise `ProgramUnavailable`."""
    libraries = find(FAKETIME).libraries
    found = sorted(Path("/usr/lib").glob(f"**/{LIBRARY}")) if libraries is None else [libraries / LIBRARY]
    if not found:
        raise ProgramUnavailable(f"there is a faketime, but no {LIBRARY}")
    return found[0]


@contextmanager
def server_with_a_clock() -> Iterator[ClockedServer]:
    """Provide such a server for the length of a `with` block, gone after it as `temporary_postgres` is."""
    library, identity = find_library(), _find_identity()
    with _kept_directory(identity, MEMORY) as (directory, keeper):
        binaries = _find_binaries(identity, None, directory)
        clock = directory / "clock"
        clock.touch()
        hand_over(clock, identity)
        copied = Path(shutil.copy(library, directory))  # the original may lie in a private home
        copied.chmod(0o755)
        server = ClockedServer(directory, keeper, binaries, _options(False, 100, {}))
        server.set_clock("+0")
        server.initialise(identity)
        yield server


class ClockedServer(_TemporaryPostgres):
    """A server that reads what time it is from a file; the monotonic clock is left alone."""

    def set_clock(self, offset: str) -> None:
        """Put the clock forward or back from the true time: "+1d", "-2h", "+0"."""
        self._file.write_text(f"{offset}\n")

    @property
    def _file(self) -> Path:
        return self.log.with_name("clock")

    def _command(self, program: str, *words: str) -> list[str]:
        command = super()._command(program, *words)
        if program != "postgres":
            return command
        library = self.log.with_name(LIBRARY)
        settings = {
            "LD_PRELOAD": library,
            "FAKETIME_TIMESTAMP_FILE": self._file,
            "FAKETIME_NO_CACHE": 1,
            "FAKETIME_DONT_FAKE_MONOTONIC": 1,
            "FAKETIME_DISABLE_SHM": 1,
        }
        return ["env", *(f"{name}={value}" for name, value in settings.items()), *command]
