"""Finds the tests that carry a number such as I-05, F-21, P-09 or Q-04 in their docstrings, or their module's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
NUMBER = re.compile(r"\b[IFPQ]-\d\d\b")


@cache
def find_by_number() -> dict[str, tuple[str, ...]]:
    """Give for each number its tests as pytest names them, or the file of which all tests show it."""
    found: dict[str, list[str]] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        text = file.read_text(encoding="utf-8")
        if NUMBER.search(text):  # to parse the others would take a second
            for number, test in _named(ast.parse(text), str(file.relative_to(ROOT))):
                found.setdefault(number, []).append(test)
    return {number: tuple(tests) for number, tests in found.items()}


def _named(tree: ast.Module, path: str) -> Iterator[tuple[str, str]]:
    for number in _numbers(tree):
        yield number, path
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            for number in _numbers(node):
                yield number, f"{path}::{node.name}"


def _numbers(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return sorted(set(NUMBER.findall(ast.get_docstring(node) or "")))
