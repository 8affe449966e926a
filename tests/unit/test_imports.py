"""What `import holdfast` loads: no optional library, no worker, no pydantic, and little else that can wait."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from types import ModuleType

import pytest

import holdfast
import holdfast.sync

OPTIONAL = {
    "psycopg",
    "starlette",
    "uvicorn",
    "httpx2",
    "httpcore2",
    "opentelemetry",
    "cronsim",
    "django",
    "sqlalchemy",
}
LOADED_LATER = {
    "rich",
    "click",
    "pydantic",
    "pydantic_core",
    "holdfast.worker",
    "holdfast.settings",
    "holdfast.wire.job_json",
    "sqlite3",
    "holdfast.client.outside_completion",
    "holdfast.database.borrowed.known",
    "holdfast.database.borrowed.orm_transaction",
    "holdfast.database.statements",
    "holdfast.retention",
    "holdfast.webhooks",
}
MOST_DATACLASSES = 30
DATACLASSES = """
import sys
from dataclasses import is_dataclass
from holdfast import Holdfast
ours = [module for name, module in sys.modules.items() if name.startswith("holdfast")]
made = {each for module in ours for each in vars(module).values() if isinstance(each, type) and is_dataclass(each)}
print(*sorted(f"{each.__module__}.{each.__qualname__}" for each in made))"""
HELP = """
import sys
sys.argv = ["holdfast", "--help"]
from holdfast.cli import commands
commands.main(standalone_mode=False)"""


def loaded_by(statements: str) -> set[str]:
    """Name the modules that a new Python has loaded after *statements*."""
    asking = f"{statements}\nimport json, sys\nprint('\\n' + json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", asking], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("statements", ["import holdfast", "from holdfast import Holdfast, JobNotFound, Retry, Tasks"])
def test_importing_holdfast_loads_no_optional_library_no_worker_and_no_pydantic(statements: str) -> None:
    loaded = loaded_by(statements)

    assert "holdfast.app" in loaded
    assert not loaded & (OPTIONAL | LOADED_LATER)


def test_importing_holdfast_creates_few_dataclasses() -> None:
    """Each one takes half a millisecond; a NamedTuple takes a fifth of that, and does for what no user sees."""
    done = subprocess.run([sys.executable, "-c", DATACLASSES], capture_output=True, text=True, check=True)

    assert len(done.stdout.split()) <= MOST_DATACLASSES


def test_a_holdfast_with_a_task_on_sqlite_loads_no_optional_library() -> None:
    statements = (
        "from holdfast import Holdfast\n@Holdfast('jobs.db').task\ndef add(a: int, b: int) -> int: return a + b"
    )

    assert not loaded_by(statements) & (OPTIONAL | {"rich", "click", "holdfast.worker"})


def test_help_on_the_command_line_loads_neither_pydantic_nor_rich() -> None:
    assert not loaded_by(HELP) & (OPTIONAL | LOADED_LATER - {"click"})


@pytest.mark.parametrize("module", [holdfast, holdfast.sync])
def test_names_that_are_imported_later_are_there_and_known_to_type_checkers(module: ModuleType) -> None:
    for_types = next(
        node
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    known = {
        each.asname or each.name for node in for_types.body if isinstance(node, ast.ImportFrom) for each in node.names
    }

    assert module.LATER.keys() == known & set(module.__all__)
    assert all(getattr(module, name) is not None for name in module.__all__)


def test_a_name_that_holdfast_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Celery'"):
        holdfast.Celery  # noqa: B018
