"""The command line: `.venv/bin/python -m tests.torture --database sqlite --seconds 120 --seed 7`.

`.venv/bin/python -m tests.torture check DIRECTORY` judges a history that was kept once more.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.torture import history
from tests.torture.report import Report, report
from tests.torture.run import Plan, Run

MOST_SHOWN = 20


def main(words: Sequence[str]) -> int:
    """Run or check; answer 1 if something is wrong."""
    if words[:1] == ["check"]:
        return tell(report(history.load(Path(words[1]))), Path(words[1]))
    arguments = parse(words)
    place = Path(arguments.keep or tempfile.mkdtemp(prefix="holdfast-torture-")).resolve()
    place.mkdir(parents=True, exist_ok=True)
    plan = Plan(arguments.database, arguments.seed, arguments.seconds, arguments.workers)
    made = report(Run(plan, place).lead())
    code = tell(made, place)
    if not code and not arguments.keep:
        shutil.rmtree(place)
    return code


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--seconds", type=float, default=120, help="how long faults are injected")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=4, help="how many worker processes there are")
    parser.add_argument("--keep", metavar="DIR", help="where the history is kept, also if all is well")
    return parser.parse_args(words)


def tell(made: Report, place: Path) -> int:
    """Print the numbers and the verdict."""
    print(made.table())
    print(verdict(made, place))
    return 1 if made.violations else 0


def verdict(made: Report, place: Path) -> str:
    """Say what is wrong, how to repeat it, and where the history is; or that nothing is."""
    if not made.violations:
        return f"nothing is wrong{'; too tame: ' + ', '.join(made.missing) if made.missing else ''}"
    shown = made.violations[:MOST_SHOWN]
    left = len(made.violations) - len(shown)
    lines = [*shown, *([f"and {left} more"] if left else [])]
    facts = made.history.facts
    lines += [f"seed {facts['seed']}; again: {facts['command']}"]
    lines += [f"the history is in {place}; check it again: .venv/bin/python -m tests.torture check {place}"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
