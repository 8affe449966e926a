"""The house rules that a machine can hold: arrows, one home for SQL, guards, clocks from outside, equal faces."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import get_overloads

import pytest

import holdfast
from holdfast.app import Holdfast
from holdfast.client.lane_handles import BlockingLaneHandle, BlockingQueueHandle, LaneHandle, QueueHandle
from holdfast.client.webhook_handles import BlockingWebhooksHandle, WebhooksHandle
from holdfast.settings import Settings, SettingsOptions
from holdfast.sync import BlockingHoldfast

SOURCE = Path(holdfast.__file__).parent

# from the ground up: a module imports from its own line or a lower one, never from a higher
STOREYS = (
    (
        "errors",
        "states",
        "models",
        "ids",
        "settings",
        "surroundings",
        "codec",
        "schemas",
        "outcomes",
        "crashpoints",
        "open_blocks",
        "cursors",
        "retention",
        "sse",
        "wire",
        "webhooks",
        "webhook_body",
    ),
    ("store",),
    ("calls", "signatures", "phases", "pipelines", "tasks", "lists"),
    ("typed",),
    ("lookout", "following", "log_pages"),
    ("starting", "results", "waiting", "feed", "watching", "streams"),
    ("transactions", "providers"),
    ("completion",),
    ("worker",),
    ("delivery",),
    ("completing",),
    ("verbs", "lane_handles", "webhook_handles", "event_filters", "listeners"),
    ("app", "sync"),
    ("cli", "integrations", "http"),
    ("__main__",),
    ("testing", "parts"),
)
STORE_STOREYS = (
    ("dialect", "hints", "statements"),
    ("tx",),
    ("views", "migrations"),
    ("sqlite", "postgres"),
    ("borrowed", "stores"),
    ("facts", "phase_rows", "rows"),
    ("webhooks",),
    ("statistics", "arrivals", "events", "unique", "task_rows", "workers", "proofs", "trimming"),
    ("chain_ends", "dependents", "lanes", "reads"),
    ("blockers", "subscriptions", "deliveries", "log", "current"),
    ("chains", "continuations", "deletes"),
    ("admission",),
    ("jobs", "glances", "clock"),
    ("phases", "settling", "steering", "warnings"),
    ("reaping", "holds", "block_ends", "completing", "retention"),
)


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


@cache
def tree_of(path: Path) -> ast.Module:
    """Parse a module, once for all rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Name the modules of ours that are imported at run time, without the leading `holdfast.`."""
    tree = tree_of(path)
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and id(node) not in for_types
            and (node.module or "").startswith("holdfast.")
        ):
            module = (node.module or "").removeprefix("holdfast.")
            yield from ([f"store.{each.name}" for each in node.names] if module == "store" else [module])


def storey(name: str, storeys: tuple[tuple[str, ...], ...]) -> int:
    for number, names in enumerate(storeys):
        if name in names:
            return number
    raise AssertionError(f"{name} has no storey yet: put it where it belongs in tests/test_house.py")


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_point_down(path: Path) -> None:
    name = name_of(path)
    if name in ("__init__", "store.__init__"):
        return
    own = name.split(".")

    for imported in imports(path):
        parts = imported.split(".")
        if parts[0] == own[0] == "store" and len(parts) > 1:
            assert storey(parts[1], STORE_STOREYS) <= storey(own[1], STORE_STOREYS), f"{name} imports {imported}"
        else:
            assert storey(parts[0], STOREYS) <= storey(own[0], STOREYS), f"{name} imports {imported}"


def test_every_file_says_what_it_is_for() -> None:
    silent = [path for path in modules() if path.read_text(encoding="utf-8") and not docstring_of(path)]

    assert not [name_of(path) for path in silent]


def docstring_of(path: Path) -> str:
    return (ast.get_docstring(tree_of(path)) or "").strip()


SQL = re.compile(r"^\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|ALTER|DROP)\s", re.IGNORECASE)


def test_sql_lives_in_the_store_only() -> None:
    elsewhere = [path for path in modules() if not name_of(path).startswith(("store.", "testing."))]

    assert not {name_of(path): found for path in elsewhere if (found := sql_in(path))}


def sql_in(path: Path) -> list[str]:
    texts = [node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and SQL.match(text)]


def statements() -> Iterator[tuple[str, str]]:
    """Give every SQL constant of the store with its name, f-strings filled in."""
    import importlib

    for path in sorted((SOURCE / "store").glob("*.py")):
        module = importlib.import_module(f"holdfast.store.{path.stem}")
        for name, value in vars(module).items():
            for key, text in (value if isinstance(value, dict) else {"": value}).items():
                if name.isupper() and isinstance(text, str) and SQL.match(text):
                    yield f"{path.stem}.{name}{key and f'[{key}]'}", text


STATEMENTS = dict(statements())


def test_casts_go_to_text_and_bigint_only() -> None:
    casts = {name: set(re.findall(r"CAST\([^)]*\bAS (\w+)", sql)) for name, sql in STATEMENTS.items()}

    assert any(casts.values())
    assert not {name: kinds for name, kinds in casts.items() if not kinds <= {"text", "bigint"}}


# of jobs: phases have a status of their own, and no law
SETS_STATUS = re.compile(r"UPDATE holdfast_job\s+(?:(?!\bWHERE\b).)*?(?:SET|,)\s+status = ", re.DOTALL)


def test_every_update_of_a_status_carries_a_guard() -> None:
    updates = {name: sql for name, sql in STATEMENTS.items() if SETS_STATUS.search(sql)}

    assert updates
    assert not [name for name, sql in updates.items() if "coalesce(holdfast_job.status, '') IN (" not in sql]


def test_clocks_chance_and_threads_come_from_outside() -> None:
    called = {name_of(path): calls_in(path) & FORBIDDEN for path in modules()}

    assert called.pop("surroundings")
    assert not {name: found for name, found in called.items() if found and not name.startswith("testing")}


def calls_in(path: Path) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)}


FORBIDDEN = {
    "time.time", "time.time_ns", "time.monotonic", "time.perf_counter", "time.sleep", "asyncio.sleep",
    "random.random", "random.uniform", "random.Random", "random.SystemRandom", "uuid.uuid4", "uuid4", "uuid.uuid1",
    "secrets.token_hex", "threading.Thread", "threading.Timer", "datetime.now", "datetime.utcnow",
}  # fmt: skip


def public(face: type) -> dict[str, object]:
    return {name: value for name, value in vars(face).items() if not name.startswith("_") and callable(value)}


FACES = (
    (Holdfast, BlockingHoldfast),
    (LaneHandle, BlockingLaneHandle),
    (QueueHandle, BlockingQueueHandle),
    (WebhooksHandle, BlockingWebhooksHandle),
)
# a worker runs handlers of both colours in one event loop, which a blocking program does not have
ASYNC_ONLY = {"worker"}


def test_both_faces_have_the_same_methods() -> None:
    missing = {face.__name__: (public(face).keys() - ASYNC_ONLY) ^ public(twin).keys() for face, twin in FACES}

    assert not {name: methods for name, methods in missing.items() if methods}


def test_a_method_of_both_faces_has_the_same_parameters_and_docstring() -> None:
    different = [
        f"{face.__name__}.{name}"
        for face, twin in FACES
        for name in sorted(public(face).keys() & public(twin).keys())
        if shape_of(getattr(face, name)) != shape_of(getattr(twin, name))
    ]

    assert not different


def shape_of(method: Callable[..., object]) -> tuple[object, ...]:
    """Give what two faces must have in common: parameters, docstring, overloads."""
    overloads = [inspect.signature(each).parameters for each in get_overloads(method)]
    return inspect.signature(method).parameters, inspect.getdoc(method), overloads


def test_every_setting_is_also_a_keyword() -> None:
    assert {"database", *SettingsOptions.__annotations__} == Settings.model_fields.keys()


def test_every_public_name_has_a_docstring() -> None:
    assert not [name for name in holdfast.__all__ if not inspect.getdoc(getattr(holdfast, name))]
