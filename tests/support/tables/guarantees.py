"""The table of what is guaranteed: each invariant, the layers that test it, and the mutants that would break it.

`python -m tests.support.tables.guarantees` prints it, as Markdown; docs/guarantees.md has it between its marks.
A test belongs to an invariant if its docstring, or that of its class or module, says the invariant's number; a layer
without tests of its own for each rule, such as the simulation, belongs to those that its checks name.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.mutants import table as mutant_table
from tests.mutants.table import Line
from tests.support.tables.invariants import INVARIANTS, Invariant
from tests.support.tables.numbered import ROOT, find_by_number

INVARIANT = re.compile(r"\bI-\d\d\b")
LAYERS = (
    ("R", "tests/store/rules/", "rule machine: random operations against a model, on both databases"),
    ("D", "tests/simulation/", "deterministic simulation of whole workers, with faults and virtual time"),
    ("X", "tests/torture/", "torture: real processes, every fault at random, a checker over the recorded history"),
    ("C", "tests/acceptance/test_crash_points.py", "crash points: a process ends at every statement and every commit"),
    ("C", "tests/acceptance/test_completion_by_orm.py", ""),
    ("C", "tests/acceptance/test_media_pipeline.py", ""),
    ("C", "tests/disk/", ""),
    ("P", "tests/acceptance/", "chaos: signals, restarts, cut and silent networks, full disks, wrong clocks"),
    ("U", "tests/", "unit and contract tests, on both databases and in both colours"),
)  # fmt: skip
"""The letter of each layer, where its tests lie, the first that fits, and what it is."""


def layer_of(path: str) -> str:
    """Give the letter of the layer that the file at *path* belongs to."""
    return next(letter for letter, beginning, _ in LAYERS if path.startswith(beginning))


@cache
def found() -> dict[str, list[str]]:
    """Give for each invariant the files whose tests or checks name it."""
    by_number: dict[str, list[str]] = defaultdict(list)
    for number, tests in find_by_number().items():
        if INVARIANT.fullmatch(number):
            by_number[number] += dict.fromkeys(test.partition("::")[0] for test in tests)
    for folder in CHECKING:
        for file in sorted((ROOT / folder).rglob("*.py")):
            if not OWN.fullmatch(file.stem):
                path = str(file.relative_to(ROOT))
                for number in sorted(set(named_by_checks(file))):
                    by_number[number].append(path)
    for file in sorted((ROOT / LAW).glob("*.py")):
        for number in sorted(set(named_by_checks(file))):
            by_number[number] += [path for path in APPLY_THE_LAW if path not in by_number[number]]
    return by_number


CHECKING = ("tests/simulation", "tests/store/rules", "tests/torture")
"""Where no test but a checker decides, over all rules at once."""
LAW = "tests/law"
"""What holds of every write is said there, once."""
APPLY_THE_LAW = ("tests/simulation/checker.py", "tests/torture/rules_of_the_law.py")
OWN = re.compile(r"test_\w+|\w*mutants")
"""What is found otherwise."""


def named_by_checks(file: Path) -> Iterator[str]:
    """Give the invariants that a checker's texts name: docstrings, and what it says when a rule is broken."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from INVARIANT.findall(node.value)


def mutants() -> dict[str, list[Line]]:
    """Give the mutants by the invariant that each would break."""
    by_number: dict[str, list[Line]] = defaultdict(list)
    for line in mutant_table.lines():
        for number in INVARIANT.findall(line.breaks):
            by_number[number].append(line)
    return by_number


def claims() -> Iterator[Invariant]:
    """Go through all invariants."""
    for group in INVARIANTS:
        yield from group.claims


def layers() -> list[tuple[str, str]]:
    """Give each layer and what it is, those of many small tests first."""
    told = {letter: words for letter, _, words in LAYERS if words}
    return [(letter, told[letter]) for letter in ORDER]


ORDER = "URDCPX"


def show() -> str:
    """Write the tables: for each group its claims, then every mutant with the test that turns red."""
    wrong = mutants()
    letters = "\n".join(f"- **{letter}**: {words}." for letter, words in layers())
    parts = [f"The layers:\n\n{letters}"]
    for group in INVARIANTS:
        rows = [_row(claim, wrong[claim.number]) for claim in group.claims]
        head = ["| | what is kept true | tested by | mutants |", "| --- | --- | --- | --- |"]
        parts.append("\n".join([f"### {group.title}", "", *head, *rows]))
    parts.append(f"### The mutants\n\n{mutant_table.show()}")
    return "\n\n".join(parts)


def _row(claim: Invariant, wrong: list[Line]) -> str:
    if claim.comes_with is not None:
        return f"| {claim.number} | {claim.words} | comes with {claim.comes_with} | |"
    return f"| {claim.number} | {claim.words} | {_tests(claim, wrong)} | {len(wrong) or ''} |"


def _tests(claim: Invariant, wrong: list[Line]) -> str:
    """Name the layers with the files of their tests, as links; who catches a mutant of a claim tests it, too."""
    by_layer: dict[str, dict[str, None]] = defaultdict(dict)
    for path in [*found()[claim.number], *(line.red.partition("::")[0] for line in wrong)]:
        by_layer[layer_of(path)][path] = None
    return " ".join(_layer(letter, [*by_layer[letter]]) for letter in ORDER if letter in by_layer)


def _layer(letter: str, files: list[str]) -> str:
    links = ", ".join(f"[{Path(path).stem.removeprefix('test_')}](../{path})" for path in files[:MOST_LINKED])
    more = f" and {len(files) - MOST_LINKED} more" if len(files) > MOST_LINKED else ""
    return f"**{letter}** {links}{more}"


MOST_LINKED = 3


if __name__ == "__main__":
    print(show())
