"""Everything that the benchmarks page shows, one command after the other.

Each command is run as it would be alone, below a line that names it, so that its tables can be taken over as they are.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from bench.machine import Unsuited
from bench.rounds import Dropout


class Command(Protocol):
    """A module that measures something; the first line of its docstring is its help."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare its options."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Measure and print; answer the exit code."""


class Everything:
    """The command that runs all of *commands*."""

    __doc__ = __doc__

    def __init__(self, commands: Mapping[str, Command]) -> None:
        self._commands = commands

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the options of the command."""
        parser.add_argument("--peers", action="store_true", help="also the other engines, installed on first use")
        parser.add_argument("--quick", action="store_true", help="tiny counts: shows that it works, and nothing else")

    def run(self, arguments: argparse.Namespace) -> int:
        """Run them in turn; the exit code is the worst of theirs."""
        given = [f"--{name}" for name in ("peers", "quick") if getattr(arguments, name)]
        return max(self._run_one(name, command, given) for name, command in self._commands.items())

    def _run_one(self, name: str, command: Command, given: Sequence[str]) -> int:
        parser = argparse.ArgumentParser()
        command.add_arguments(parser)
        arguments, unknown = parser.parse_known_args(given)
        known = [each for each in given if each not in unknown]
        print(f"\n## python3 dev.py bench {' '.join([name, *known])}\n", flush=True)
        started = time.monotonic()
        code = run_one(command, arguments)
        print(f"\ntook {time.monotonic() - started:.0f} s", flush=True)
        return code


def run_one(command: Command, arguments: argparse.Namespace) -> int:
    """Run *command*; say why, if it cannot be measured here."""
    try:
        return command.run(arguments)
    except (Unsuited, Dropout) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
