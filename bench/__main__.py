"""The command line: `python3 dev.py bench start`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from bench import (
    backlog,
    cpu,
    events,
    figures,
    http,
    idle,
    imports,
    lanes,
    latency,
    schedules,
    soak,
    start,
    tenants,
    throughput,
    transactions,
)
from bench.everything import Command, Everything, run_one

MEASURES: dict[str, Command] = {
    "start": start,
    "throughput": throughput,
    "latency": latency,
    "transactions": transactions,
    "lanes": lanes,
    "events": events,
    "http": http,
    "cpu": cpu,
    "idle": idle,
    "schedules": schedules,
    "tenants": tenants,
    "import": imports,
    "backlog": backlog,
}
COMMANDS: dict[str, Command] = MEASURES | {"figures": figures, "soak": soak, "all": Everything(MEASURES)}


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
    return run_one(COMMANDS[arguments.command], arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
