"""The house rules that a machine can hold: arrows, one home for SQL, guards, clocks from outside, equal faces."""

from __future__ import annotations

import ast
import inspect
import logging
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import get_overloads

import pytest

import holdfast
from holdfast.app import Holdfast
from holdfast.client.access import BlockingLinksHandle, BlockingTokensHandle, LinksHandle, TokensHandle
from holdfast.client.handles import (
    BlockingLaneHandle,
    BlockingQueueHandle,
    BlockingWebhooksHandle,
    LaneHandle,
    QueueHandle,
    WebhooksHandle,
)
from holdfast.client.schedules import BlockingSchedulesHandle, SchedulesHandle
from holdfast.client.tenants import BlockingTenantsHandle, TenantsHandle
from holdfast.log_events import EVENTS
from holdfast.settings import Settings, SettingsOptions
from holdfast.sync import BlockingHoldfast

SOURCE = Path(holdfast.__file__).parent

# from the ground up: a module imports from its own room or a lower one, never from a higher
ROOMS: dict[str, tuple[str, ...]] = {
    "ground": (
        *("errors", "models", "states", "outcomes", "settings", "codec", "ids", "retention", "times", "questions"),
        *("access", "signing_keys", "texts", "version", "log_events", "logging", "keywords", "filters", "explanations"),
        *("journals", "inventory", "bulks", "attempts", "figures", "metrics", "schedules", "schedule_rules", "tenancy"),
        *("signals", "threads", "runtime", "fault_points", "current_block", "unreadable"),
    ),
    "wire": ("wire",),
    "webhooks": ("webhooks",),
    "database": ("database",),
    "store": ("store",),
    "tasks": ("tasks",),
    "events": ("events",),
    "client": ("client",),
    "worker": ("worker",),
    "front door": ("app", "sync", "parts", "__init__"),
    "supervisor": ("supervisor",),
    "integrations": ("integrations",),
    "http": ("http",),
    "cli": ("cli", "__main__"),
    "testing": ("testing",),
}
PURE = ROOMS["ground"][:-6] + ROOMS["wire"]
"""What knows neither clock nor thread, file, socket or database: the ground without what it is given from outside."""

# the same inside the rooms that have an order of their own; in every other one there are only no circles
INSIDE: dict[str, tuple[tuple[str, ...], ...]] = {
    "database": (
        ("dialect", "hints", "records", "statements"),
        ("tx",),
        ("single_statement", "migrations"),
        ("sqlite", "postgres"),
        ("borrowed",),
    ),
    "store": (
        ("phase_rows", "task_rows", "unique", "workers"),
        ("rows",),
        ("reads",),
        ("access", "search", "stuck"),
        ("lists",),
        ("log",),
        ("audit", "delivery_backlog", "journal", "lanes", "outbox", "target_lists", "tenants", "webhooks"),
        ("chains",),
        ("admission", "retention", "schedules"),
        ("jobs",),
        ("glance", "phases", "polls"),
        ("insight",),
    ),
    "tasks": (
        ("schemas",),
        ("calls", "phases", "schema_making", "signatures"),
        ("task",),
        ("bulk_task", "pipelines", "scheduled_calls"),
        ("registry",),
        ("decoder", "patches", "redactions"),
    ),
    "events": (("filters", "follower", "page_cache", "poller"), ("feed",), ("job_watch", "listeners", "sse_stream")),
    "client": (
        ("chain_handle", "list_options", "providers", "waiter", "wrong_calls"),
        ("starter",),
        ("engine_parts", "transactions"),
        ("completion", "insight"),
        ("outside_completion",),
        ("verbs",),
        ("bulk", "handles"),
        ("access", "schedules"),
        ("acting",),
        ("tenant_store",),
        ("tenant_faces",),
        ("tenants",),
    ),
    "worker": (
        ("attempts", "health", "leases", "shutdown", "tally", "upkeep"),
        ("builtin", "options"),
        ("children",),
        ("claiming",),
        ("worker",),
        ("hosts",),
    ),
}

SAME_NAME = {
    **dict.fromkeys(("Job", "Event", "Task"), "Django names its pages after its models"),
    "Migration": "Django looks for this name",
}
"""Class names that stand in more than one module, each with the reason."""


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts)


@cache
def tree_of(path: Path) -> ast.Module:
    """Parse a module, once for all rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(path: Path) -> frozenset[tuple[str, bool]]:
    """Name the modules of ours that are imported, without the leading `holdfast.`, and whether for types alone."""
    tree = tree_of(path)
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "holdfast":
            module = (node.module or "").removeprefix("holdfast").removeprefix(".")
            for each in node.names:
                below = f"{module}.{each.name}".removeprefix(".")
                found.add((below if below in NAMES else module or "__init__", id(node) in for_types))
        elif isinstance(node, ast.Import):
            assert not [each for each in node.names if each.name.split(".")[0] == "holdfast"], f"{path}: import from it"
    return frozenset(found)


NAMES = {name_of(path).removesuffix(".__init__"): path for path in modules()}


def room_of(name: str) -> int:
    head = name.split(".", maxsplit=1)[0]
    for number, heads in enumerate(ROOMS.values()):
        if head in heads:
            return number
    raise AssertionError(f"{name} is in no room yet: put it where it belongs in tests/test_house.py")


def line_of(room: str, name: str) -> int:
    unit = name.split(".")[1]
    for number, units in enumerate(INSIDE[room]):
        if unit in units:
            return number
    raise AssertionError(f"{name} has no line yet: put it where it belongs in tests/test_house.py")


def test_imports_between_rooms_point_down() -> None:
    arrows = [(name, imported) for name, path in NAMES.items() for imported, _ in imports(path)]

    assert not [f"{name} imports {imported}" for name, imported in arrows if room_of(imported) > room_of(name)]


@pytest.mark.parametrize("room", INSIDE)
def test_imports_inside_a_room_point_down(room: str) -> None:
    inner = {name: path for name, path in NAMES.items() if name.startswith(f"{room}.")}
    arrows = [(name, each) for name, path in inner.items() for each, _ in imports(path) if each in inner]

    assert not [f"{name} imports {each}" for name, each in arrows if line_of(room, each) > line_of(room, name)]
    assert {unit for units in INSIDE[room] for unit in units} == {name.split(".")[1] for name in inner}


def test_no_module_imports_itself_in_a_circle_not_even_for_types() -> None:
    graph = {name: {imported for imported, _ in imports(path) if imported != name} for name, path in NAMES.items()}

    assert not list(circles(graph))


def circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Find the modules from which a walk along the imports comes back; what has no way out is taken away first."""
    left = dict(graph)
    while leaves := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in leaves:
            del left[name]
    for name in left:
        reached, ahead = set[str](), [name]
        while ahead:
            for each in left.get(ahead.pop(), set()) & left.keys() - reached:
                reached.add(each)
                ahead.append(each)
        if name in reached:
            yield sorted(each for each in reached if each in left)


def test_a_class_name_stands_in_one_module() -> None:
    homes: dict[str, list[str]] = {}
    for name, path in NAMES.items():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)

    assert not {name: where for name, where in homes.items() if len(where) > 1 and name not in SAME_NAME}


IMPURE = {
    "asyncio", "concurrent", "multiprocessing", "os", "random", "signal", "socket", "sqlite3", "ssl", "subprocess",
    "tempfile", "threading", "time", "psycopg", "httpx2", "httpcore2", "starlette", "click",
}  # fmt: skip


def test_the_ground_is_pure() -> None:
    wrong = []
    for name in (name for name in NAMES if name.split(".")[0] in PURE):
        for node in ast.walk(tree_of(NAMES[name])):
            modules_ = (
                [each.name for each in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
            wrong += [f"{name} imports {each}" for each in modules_ if each.split(".")[0] in IMPURE]

    assert not [each for each in wrong if each not in NOT_SO_PURE]


NOT_SO_PURE = {
    "settings imports os": "the one place that reads the environment",
    "ids imports random": "for the type of what it is given",
    "outcomes imports random": "for the type of what it is given",
}


def test_every_file_says_what_it_is_for() -> None:
    silent = [path for path in modules() if path.read_text(encoding="utf-8") and not docstring_of(path)]

    assert not [name_of(path) for path in silent]


def docstring_of(path: Path) -> str:
    return (ast.get_docstring(tree_of(path)) or "").strip()


SQL = re.compile(r"^\s*(SELECT|INSERT INTO|UPDATE|DELETE FROM|CREATE|ALTER|DROP)\s", re.IGNORECASE)


def test_sql_lives_in_store_and_database_only() -> None:
    elsewhere = [path for path in modules() if not name_of(path).startswith(("store.", "database.", "testing."))]

    assert not {name_of(path): found for path in elsewhere if (found := sql_in(path))}


def sql_in(path: Path) -> list[str]:
    texts = [node.value for node in ast.walk(tree_of(path)) if isinstance(node, ast.Constant)]
    return [text for text in texts if isinstance(text, str) and SQL.match(text)]


def statements() -> Iterator[tuple[str, str]]:
    """Give every SQL constant of the store with its name, f-strings filled in."""
    import importlib

    for path in sorted((SOURCE / "store").rglob("*.py")):
        module = importlib.import_module(f"holdfast.{name_of(path)}")
        for name, value in vars(module).items():
            for key, text in (value if isinstance(value, dict) else {"": value}).items():
                if name.isupper() and isinstance(text, str) and SQL.match(text):
                    yield f"{name_of(path)}.{name}{key and f'[{key}]'}", text


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

    assert called.pop("runtime")
    assert called.pop("threads")
    assert not {name: found for name, found in called.items() if found and not name.startswith("testing")}


def calls_in(path: Path) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)}


FORBIDDEN = {
    "time.time", "time.time_ns", "time.monotonic", "time.perf_counter", "time.sleep", "asyncio.sleep",
    "random.random", "random.uniform", "random.Random", "random.SystemRandom", "uuid.uuid4", "uuid4", "uuid.uuid1",
    "secrets.token_hex", "threading.Thread", "threading.Timer", "datetime.now", "datetime.utcnow",
}  # fmt: skip


LOG_CALLS = {f"{name}.{level}" for name in ("logger", "log", "logging") for level in
             ("debug", "info", "warning", "error", "exception", "critical", "log")}  # fmt: skip


def test_every_line_of_the_log_is_said_by_its_name() -> None:
    past_it = {name_of(path): calls_in(path) & LOG_CALLS for path in modules() if name_of(path) != "logging"}
    said = {name for call in log_lines() for name in [getattr(call.args[1], "value", None)]}

    assert not {name: found for name, found in past_it.items() if found}
    assert said == EVENTS.keys()


def test_a_line_of_the_log_is_given_its_facts_and_no_name_that_logging_has_taken() -> None:
    taken = vars(logging.makeLogRecord({})).keys() | {"message", "asctime", "event_name"}
    for call, function in log_lines().items():
        name = ast.literal_eval(call.args[1])
        given = {each.arg for each in call.keywords if each.arg}
        if len(given) < len(call.keywords):  # **facts, which are written above it
            given |= set(re.findall(r'"(\w+)": ', ast.unparse(function).replace("'", '"')))
        wanted = set(re.findall(r"%\((\w+)\)s", EVENTS[name].sentence))
        is_elsewhere = "**_handler_in(frame)" in ast.unparse(call)
        assert is_elsewhere or wanted <= given, f"{name} lacks {wanted - given}"
        assert not given & taken, name


def log_lines() -> dict[ast.Call, ast.AST]:
    """Find the calls of `say`, each in the function that it stands in."""
    functions = [
        node
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return {
        node: function
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "say"
    }


def public(face: type) -> dict[str, object]:
    return {name: value for name, value in vars(face).items() if not name.startswith("_") and callable(value)}


FACES = (
    (Holdfast, BlockingHoldfast),
    (LaneHandle, BlockingLaneHandle),
    (QueueHandle, BlockingQueueHandle),
    (WebhooksHandle, BlockingWebhooksHandle),
    (SchedulesHandle, BlockingSchedulesHandle),
    (TokensHandle, BlockingTokensHandle),
    (LinksHandle, BlockingLinksHandle),
    (TenantsHandle, BlockingTenantsHandle),
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
