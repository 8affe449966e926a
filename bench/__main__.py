"""The command line: `python3 dev.py bench start`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Protocol

from bench import backlog, idle, lanes, latency, start, throughput
from bench.machine import Unsuited


class Command(Protocol):
    """A module that measures something; the first line of its docstring is its help."""

    __doc__: str | None

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare its options."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Measure and print; answer the exit code."""


COMMANDS: dict[str, Command] = {
    "start": start,
    "throughput": throughput,
    "latency": latency,
    "lanes": lanes,
    "idle": idle,
    "backlog": backlog,
}


def main(argv: Sequence[str]) -> int:
    """Run the command that *argv* names, and answer its exit code."""
    parser = argparse.ArgumentParser(
        prog="python3 dev.py bench", description="Measure Holdfast beside the bare drivers."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary = (module.__doc__ or "").splitlines()[0]
        module.add_arguments(commands.add_parser(name, help=summary, description=summary))
    arguments = parser.parse_args(argv)
    command: Command = COMMANDS[arguments.command]
    try:
        return command.run(arguments)
    except Unsuited as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
