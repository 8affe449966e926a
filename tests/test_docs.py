"""What the docs show runs, and what exists is documented.

Each page's Python blocks are one program: it is run in a directory of its own, and must print exactly what the page's
`output` blocks say (`…` stands for anything). A block that is not to be run says why: `python no-run: reason`; one
that says `python no-run: from src/…` is an excerpt, and must stand there.

The reference tables are generated from the code, between `<!-- generated: name -->` and `<!-- end -->`. After a change
write them anew with `.venv/bin/python -m tests.test_docs`; until then the tests below fail.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import doctest
import enum
import importlib
import inspect
import json
import logging
import os
import pkgutil
import re
import secrets
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import click
import psycopg
import pytest

import holdfast
import holdfast.errors
import holdfast.parts
from holdfast import Holdfast
from holdfast.cli import commands
from holdfast.client.access import LinksHandle, TokensHandle
from holdfast.client.handles import WebhooksHandle
from holdfast.client.list_options import ChainListOptions, JobListOptions, PageOptions
from holdfast.client.schedules import SchedulesHandle
from holdfast.client.tenants import TenantsHandle
from holdfast.errors import HoldfastError
from holdfast.events.listeners import Listeners
from holdfast.explanations import CODES, Reason
from holdfast.log_events import EVENTS
from holdfast.models import EventFacts, EventName
from holdfast.settings import Settings
from holdfast.states import MOVES, State, Status
from holdfast.tasks.calls import CHECKS, StartOptions
from holdfast.tasks.pipelines import Pipeliner
from holdfast.tasks.task import TaskOptions
from holdfast.wire.webhook_body import webhook_schema
from tests.support import walk
from tests.support.databases import django_project
from tests.support.processes import forked
from tests.support.tables import faults as fault_table
from tests.support.tables import guarantees as guarantee_table
from tests.support.tables import http_table, openapi_file
from tests.support.tables import rooms as room_table
from tests.support.tables import sources as source_table
from tests.support.tables.event_facts import FACTS
from tests.test_house import SOURCE, room_of

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = [each for each in sorted(ROOT.glob("examples/*.py")) if each.name != "__init__.py"]

FOLDERS = sorted(each.name for each in SOURCE.iterdir() if (each / "__init__.py").exists())

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[tuple[str, str, int]]:
    """Give the info string, the text and the first line of every block of *language* on *page*."""
    text = page.read_text(encoding="utf-8")
    found = [
        (each["info"].strip(), each["body"], text.count("\n", 0, each.start()) + 1) for each in FENCE.finditer(text)
    ]
    return [(info, body, line) for info, body, line in found if info.split(" ")[0] == language]


def prose(page: Path) -> str:
    """Give the text of *page* without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


# what is shown runs


def program(page: Path, until: int | None = None) -> str:
    """Make one program of the blocks of *page* above line *until*, each on the lines that it has there."""
    lines = [""] * page.read_text(encoding="utf-8").count("\n")
    for info, body, start in blocks(page, "python"):
        if info == "python" and (until is None or start < until):
            lines[start : start + body.count("\n")] = body.splitlines()
    return "\n".join(lines)


SHOWN = [page for page in PAGES if program(page).strip()]


@pytest.fixture
def database_url(postgres_server: str) -> Iterator[str]:
    """An empty PostgreSQL database for one program."""
    name = f"holdfast_docs_{secrets.token_hex(6)}"
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    yield urlsplit(postgres_server)._replace(path=f"/{name}").geturl()
    with psycopg.connect(postgres_server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Run a program in a directory of its own and give what it printed; one that asks for it gets a PostgreSQL."""

    def run(program: Path | str, *arguments: str, **variables: str) -> str:
        if isinstance(program, Path) and "HOLDFAST_DATABASE" in program.read_text(encoding="utf-8"):
            variables["HOLDFAST_DATABASE"] = request.getfixturevalue("database_url")
        named = [program] if isinstance(program, Path) else ["-m", program]
        if isinstance(program, str):
            variables["PYTHONPATH"] = str(ROOT)
        # what a warning is to our own tests, it is to what we show
        done = forked.run(
            [sys.executable, "-W", "error", *named, *arguments],
            check=False,
            cwd=tmp_path,
            env={**os.environ, "TMPDIR": str(tmp_path), **variables},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert not (said := unexpected(done.stderr)), said
        return done.stdout

    return run


FAILURE = re.compile(r"(Attempt \d+ of job \S+ \(task .*\) failed: |Job \S+ \(task .*\) (failed for good|is paused)).*")
UNSERVED = re.compile(r"Jobs of task \S+ wait in queue \S+, and no worker runs them: .*")
"""Said of jobs that a page leaves waiting on purpose, if the machine is so slow that they have waited for 3 s."""
OF_A_TRACEBACK = re.compile(r"\s.*|Traceback .*:|[\w.]+(: .*)?|The above exception .*|During handling .*|")


def unexpected(said: str) -> str:
    """Leave out of what a program has *said* on stderr that jobs failed, with their tracebacks."""
    left, is_trace = [], False
    for line in said.splitlines():
        is_failure = FAILURE.fullmatch(line) is not None
        is_trace = is_failure or (is_trace and OF_A_TRACEBACK.fullmatch(line) is not None)
        if not is_trace and UNSERVED.fullmatch(line) is None:
            left.append(line)
    return "\n".join(left)


@pytest.mark.source("PQ-63")
@pytest.mark.parametrize("page", SHOWN, ids=name_of)
def test_what_a_page_shows_runs_and_prints_what_it_says(page: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    file = tmp_path / "shop.py"
    file.write_text(program(page), encoding="utf-8")

    check_output(run(file), page)


def check_output(printed: str, page: Path, until: int | None = None) -> None:
    """Compare what was *printed* with the outputs that *page* shows above line *until*."""
    shown = [body for _, body, start in blocks(page, "output") if until is None or start < until]
    promised = "".join(shown).splitlines()
    assert len(printed.splitlines()) == len(promised), printed
    for line, promise in zip(printed.splitlines(), promised, strict=True):
        assert re.fullmatch(re.escape(promise).replace("…", ".*"), line), f"printed {line!r}, promised {promise!r}"


README = ROOT / "README.md"
TUTORIAL = ROOT / "docs" / "tutorial.md"


@pytest.mark.parametrize("page", [README, TUTORIAL], ids=name_of)
def test_a_second_run_in_the_same_folder_prints_the_same(page: Path, tmp_path: Path, run: Callable[..., str]) -> None:
    file = tmp_path / "shop.py"
    file.write_text(program(page), encoding="utf-8")

    for _ in range(2):
        check_output(run(file), page)


def test_the_tutorial_runs_after_each_of_its_blocks(tmp_path: Path, run: Callable[..., str]) -> None:
    file = tmp_path / "shop.py"
    ends = [start + 1 for _, _, start in blocks(TUTORIAL, "output")]
    assert len(ends) > 5

    for until in ends:  # all in one folder, as a reader does it
        file.write_text(program(TUTORIAL, until), encoding="utf-8")
        check_output(run(file), TUTORIAL, until)


def test_the_worker_process_of_the_tutorial_runs_the_job(tmp_path: Path) -> None:
    [jobs] = [body for info, body, _ in blocks(TUTORIAL, "python") if info == "python no-run: this is jobs.py"]
    (tmp_path / "jobs.py").write_text(jobs, encoding="utf-8")
    lines = [shlex.split(line) for _, body, _ in blocks(TUTORIAL, "sh") for line in body.splitlines()]
    [work] = [line[1:] for line in lines if line[0] == ".venv/bin/holdfast"]
    [start] = [line[1:] for line in lines if line[:2] == [".venv/bin/python", "-c"]]
    [(_, promised, _)] = blocks(TUTORIAL, "text")

    with subprocess.Popen([sys.executable, "-m", "holdfast", *work], cwd=tmp_path, stderr=subprocess.DEVNULL) as worker:
        try:
            printed = subprocess.run(
                [sys.executable, *start], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
            ).stdout
            worker.send_signal(signal.SIGINT)
            assert worker.wait(30) == 0
        finally:
            worker.kill()

    assert printed == promised


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_that_is_not_run_says_why(page: Path) -> None:
    infos = {info for info, _, _ in blocks(page, "python") if info != "python"}

    assert not [info for info in infos if not re.fullmatch(r"python no-run: \S.*", info)]


EXCERPTS = [
    (page, info.removeprefix("python no-run: from "), body)
    for page in PAGES
    for info, body, _ in blocks(page, "python")
    if info.startswith("python no-run: from ")
]


@pytest.mark.parametrize(("page", "source", "body"), EXCERPTS, ids=[source for _, source, _ in EXCERPTS])
def test_an_excerpt_stands_in_its_file(page: Path, source: str, body: str) -> None:
    assert body in (ROOT / source).read_text(encoding="utf-8"), name_of(page)


SAID = {
    "agent.py": (
        "killed:   3 messages",
        "3, in attempt 1: tool",
        "4, in attempt 2: assistant",
        "Rome has 19 degrees: go to",
    ),
    "approval.py": ("approved by ada", "bob is too late: it is completed", "(review continued, publish completed)"),
    "child_processes.py": (
        "hang: failed for attempts used up",
        "crash: failed for poison: the child process died of SIGABRT",
    ),
    "charge.py": ("charge, continued in attempt 2", "7 shipped", "asked 2 times, charged [995]"),
    "media_pipeline.py": ("encode failed", "film.mov: 4 of 4 frames, in attempt 2"),
    "fan_in.py": ("count_book continued, add_up completed", "6000 words on 1000 pages"),
    "webhooks.py": (
        "job:completed: cat.png, small (in 2 tries)",
        "owl.png, small (by the new one)",
        "webhook_sent is True",
    ),
    "phase_queue.py": (
        "webhooks: job:retrying job:completed",
        "webhooks: job:failed job:completed",
        "runs:     download 2 encode 3 upload 3",
        "retained: 2 marked stale, 2 deleted",
    ),
    "live_progress.py": ("page:   200, text/html", "job:phase:completed, 67 %", "output: Film 1.webm"),
    "nightly.py": (
        "close_books: At 03:00 every day (Europe/Rome); next at ",
        "books closed by hand",
        "no time has two jobs: True",
        "the first: crm at ",
        "paused because the CRM is down",
    ),
    "tenants.py": ("globex/1.webp", "400 jobs of acme", "globex' was suspended by ada (unpaid)", "0 tenants are left"),
    "outbox_sqlite.py": ("orders:   ['kettle']", "jobs:     [1]", "receipts: [(1, 2)]"),
}


def test_what_is_said_belongs_to_an_example() -> None:
    assert SAID.keys() <= {example.name for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_runs_and_says_what_came_of_it(example: Path, run: Callable[..., str]) -> None:
    printed = run(example, **({"NO_COLOR": "1"} if example.name == "demo.py" else {}))

    assert printed
    assert "\x1b" not in printed  # plain without a terminal, and without colours
    assert [words for words in SAID.get(example.name, ()) if words not in printed] == [], printed


@pytest.mark.parametrize("name", ["tenants"])
def test_an_example_for_both_databases_runs_on_a_server(name: str, run: Callable[..., str], database_url: str) -> None:
    printed = run(f"examples.{name}", database_url)

    assert [words for words in SAID[f"{name}.py"] if words not in printed] == [], printed


APPLICATIONS = ("orders_django", "orders_fastapi", "orders_flask")
ORDERED = ("kettle:   ordered as number 1", "jobs:     [1]", "kettle is paid, job completed in attempt 2")


@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_runs_on_a_file(name: str, run: Callable[..., str]) -> None:
    printed = run(f"examples.{name}")

    assert [words for words in ORDERED if words not in printed] == [], printed


@pytest.mark.parametrize("name", APPLICATIONS)
def test_an_application_runs_on_a_server(name: str, run: Callable[..., str], database_url: str) -> None:
    printed = run(f"examples.{name}", database_url)

    assert [words for words in ORDERED if words not in printed] == [], printed


def modules() -> list[str]:
    django_project.configure()  # the models of our app can be imported in a project only
    found = pkgutil.walk_packages(holdfast.__path__, "holdfast.")
    return ["holdfast", *(each.name for each in found if not each.name.endswith("__main__"))]


@pytest.mark.parametrize("name", modules())
def test_the_examples_in_docstrings_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)

    assert result.failed == 0


# what is named exists


LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{name_of(page)} links to {target}"
        assert not anchor or anchor in anchors(file), f"{name_of(page)} links to {target}"


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent != ROOT], ids=name_of)
def test_every_page_can_be_reached_from_the_map(page: Path) -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(prose(index))}

    assert page == index or page in linked


def command_lines(word: str) -> list[tuple[str, list[str]]]:
    found = []
    for page in PAGES:
        lines = [line for _, body, _ in blocks(page, "sh") for line in body.splitlines()]
        lines += re.findall(r"`([^`\n]+)`", prose(page))
        found += [
            (name_of(page), shlex.split(line.split(" | ")[0])[1:]) for line in lines if line.startswith(f"{word} ")
        ]
    return found


@pytest.mark.parametrize(("page", "words"), command_lines("holdfast"))
def test_a_command_line_that_is_shown_exists(page: str, words: list[str]) -> None:
    if words[0] in ("--help", "--version"):
        return
    command = commands.commands.get(words[0])
    if isinstance(command, click.Group) and len(words) > 1 and words[1][0] not in "-[":
        command = command.commands.get(words[1])

    assert command is not None, f"{page} shows holdfast {' '.join(words[:2])}"
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }
    assert {word.partition("=")[0] for word in words[1:] if word.startswith("-")} <= options, page


# each once: it is a process that reads its help
DEV_COMMANDS = {words[1]: page for page, words in command_lines("python3") if words[0] == "dev.py"}


@pytest.mark.parametrize("command", DEV_COMMANDS)
def test_a_command_of_dev_py_that_is_shown_exists(command: str) -> None:
    told = subprocess.run(
        [sys.executable, ROOT / "dev.py", command, "--help"],
        check=False,
        capture_output=True,
        text=True,
        timeout=20,
    )

    assert told.returncode == 0, f"{DEV_COMMANDS[command]} shows dev.py {command}"


@pytest.mark.source("PQ-4")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_methods_events_and_settings_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    face = Holdfast("never-opened.db")

    for name in re.findall(r"\bhf\.sync\.(\w+)", text):
        assert hasattr(face.sync, name), f"hf.sync.{name}"
    for name in re.findall(r"\bhf\.(?!sync\b)(\w+)", text):
        assert hasattr(face, name), f"hf.{name}"
    for name in re.findall(r"\bHOLDFAST_([A-Z_]+[A-Z])\b", text):
        assert name.lower() in Settings.model_fields or name in OTHER_VARIABLES, f"HOLDFAST_{name}"
    for name in re.findall(r"`((?:job|chain|lane|queue):[a-z:]+)`", text):
        assert name in get_args(EventName), name


OTHER_VARIABLES = ("TEST_DATABASE_URL", "TEST_CHROMIUM", "REQUIRE_POSTGRES", "CRASH")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_classes_that_are_named_exist(page: Path) -> None:
    known = {name for module in modules() for name in vars(importlib.import_module(module))}
    text = prose(page)
    if page.name.startswith("coming-from-"):
        text = re.sub(r"^\|[^|]*", "", text, flags=re.MULTILINE)  # there the first column is another library's
    named = re.findall(r"`(?:holdfast\.)?([A-Z][a-z]+[A-Z]\w+)\b[^`]*`", text)

    assert set(named) <= known | vars(builtins).keys() | OTHER_CLASSES


OTHER_CLASSES = {"AsyncConnection", "AsyncSession", "EventSource", "QueueHandler", "TestCase", "TransactionTestCase"}


# what exists is documented: the tables are made from the code


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def settings_table() -> str:
    rows = []
    for name, setting in Settings.model_fields.items():
        default = "" if setting.default is None else f"`{setting.default!r}`"
        rows.append((f"`{name}`", default, f"`HOLDFAST_{name.upper()}`", setting.description or ""))
    return table(("setting", "default", "in the environment", "meaning"), rows)


def error_classes() -> list[type[HoldfastError]]:
    found = [each for each in vars(holdfast.errors).values() if inspect.isclass(each)]
    return [each for each in found if issubclass(each, HoldfastError)]


def errors_table() -> str:
    rows = []
    for each in error_classes():
        indent = "&nbsp;&nbsp;" * (len(each.__mro__) - len(HoldfastError.__mro__))
        status, exit_code = str(each.http_status), str(each.exit_code)
        rows.append((f"{indent}`{each.__name__}`", f"`{each.code}`", status, exit_code, summary(each)))
    return table(("class", "code", "HTTP", "exit code", "meaning"), rows)


def events_table() -> str:
    rows = [(f"`{name}`", APPENDED_BY[name], FACTS[name]) for name in get_args(EventName)]
    return table(("event", "appended by", "its facts"), rows)


def log_table() -> str:
    rows = [
        (
            f"`{name}`",
            ", ".join(map(level_of, [line.level, *line.otherwise])),
            re.sub(r"%\((\w+)\)s", r"*\1*", line.sentence),
        )
        for name, line in EVENTS.items()
    ]
    return table(("event_name", "level", "sentence"), rows)


def level_of(number: int) -> str:
    return logging.getLevelName(number).lower()


def event_values_text() -> str:
    return fields_text(holdfast.Event)


def listener_methods_text() -> str:
    return methods_of(Listeners, "hf", ["on", "off"])


APPENDED_BY = {
    "job:enqueued": (
        "`start`, `start_many`, `start_again`, `continue_with` and schedules, once for each job that was inserted"
    ),
    "job:started": "a claim",
    "job:progress": "a handler that says how far it is; the beginning of a phase, which its facts name",
    "job:phase:completed": "the end of a phase, with its result; its facts name the phase",
    "job:completed": "an attempt that returned, the commit of `ctx.complete()`, `hf.complete`; names what continues it",
    "job:failed": "an attempt that raised for the last time or for good, a third crash, a blocker that ended otherwise",
    "job:retrying": "an attempt that raised and will be tried again",
    "job:rescheduled": (
        "a handler's `Reschedule`, a worker that gives a job back at shutdown or before it began, `reschedule`, "
        "`trigger`"
    ),
    "job:pausing": "`pause` of a running job",
    "job:paused": "`pause`, or an attempt that ended in a pause",
    "job:resumed": "`resume` and `retry`; also when the blocker that failed it is tried again",
    "job:cancelling": "`cancel` of a running job",
    "job:cancelled": "`cancel`, or the end of a running job that was to be cancelled",
    "job:blocked": "admission, once it has counted blockers that are still open",
    "job:unblocked": "the last open blocker",
    "job:reaped": "the loss of the worker that ran the job, if the job will run again",
    "job:stale": "retention, when a job that has ended is marked as stale",
    "job:deleted": "`delete`, `delete_many` and retention, once for each job that is gone",
    "job:webhook:delivered": "the delivery of a webhook about the job, when the receiver has taken it",
    "job:webhook:failed": "the delivery of a webhook about the job, when it was refused, given up or tried in vain",
    "job:warning": "a handler that raised after its block had completed the job",
    "job:journal": "a handler that appended to the [journal](../guides/journals.md) of its job; at most four a second",
    "chain:completed": "the completion that closes a chain",
    "lane:halted": "a head that failed or was paused, so that its lane waits",
    "lane:paused": "`hf.lane(key).pause()`",
    "lane:resumed": "`hf.lane(key).resume()`; the end, retry, resume, deletion or skip of the job that halted the lane",
    "queue:paused": "`hf.queue(name).pause()`",
    "queue:resumed": "`hf.queue(name).resume()`",
}


def test_every_fact_of_an_event_is_typed_and_documented() -> None:
    told = {word for text in FACTS.values() for word in re.findall(r"`(\w+)`", text)} - {"start_again"}

    assert told == set(EventFacts.__annotations__)


def moves_table() -> str:
    rows = []
    for change, move in MOVES.items():
        also = ", ".join(f"`{each}`" for each in move.also)
        targets = "(the same)" if move.sources == move.targets else ", ".join(move.targets) or "(gone)"
        rows.append((change, ", ".join(move.sources), targets, also))
    return table(("change", "from", "to", "only where"), rows)


def states_diagram() -> str:
    arrows: dict[tuple[Status, Status], list[str]] = {}
    leading = {change: move for change, move in MOVES.items() if move.sources != move.targets}
    for change, move in leading.items():
        for source in move.sources:
            for target in move.targets:
                arrows.setdefault((source, target), []).append(change)
    lines = [f"    {source} --> {target}: {', '.join(changes)}" for (source, target), changes in arrows.items()]
    starts = [f"    [*] --> {status}: start" for status in (Status.PENDING, Status.BLOCKED, Status.PAUSED)]
    return "\n".join(["```mermaid", "stateDiagram-v2", *starts, *lines, "```"])


def derived_table() -> str:
    derived = [each for each in State if each.name not in Status.__members__]
    return table(("shown", "when"), [(f"`{each}`", DERIVED[each]) for each in derived])


DERIVED = {
    State.SCHEDULED: "pending, and `run_at` is still to come",
    State.WAITING: "pending and due, but behind others in its lane, or its lane or queue is paused",
    State.CANCELLING: "running, and a cancel was requested",
    State.PAUSING: "running, and a pause was requested",
    State.CONTINUED: "completed, and another job continues the chain",
    State.STALE: "ended, and marked by retention",
}


def commands_text() -> str:
    shown: dict[str, click.Command] = {}
    for name, each in sorted(commands.commands.items()):
        shown[name] = each
        if isinstance(each, click.Group):
            shown |= {f"{name} {inner}": command for inner, command in sorted(each.commands.items())}
    return "\n\n".join(command_text(name, each) for name, each in shown.items())


def command_text(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"holdfast {name}")
    options = [each for each in command.params if isinstance(each, click.Option)]
    rows = [record for each in options if (record := each.get_help_record(context)) is not None]
    rows.append(("-h, --help", "Show this message and exit."))
    usage = " ".join(command.collect_usage_pieces(context))
    text = inspect.cleandoc(command.help or "").replace("\b\n", "") + "\n"
    body = re.sub(r"^Examples:\n((?:  .*\n?)+)", r"```sh\n\1```", text, flags=re.MULTILINE)
    body = re.sub(r"^  (holdfast .*)$", r"\1", body, flags=re.MULTILINE)
    meanings = table(("option", "meaning"), [(f"`{option}`", meaning) for option, meaning in rows])
    return f"## holdfast {name}\n\n`holdfast {name} {usage}`\n\n{body.strip()}\n\n{meanings}"


def names_table() -> str:
    rows = []
    for name in holdfast.__all__:
        value = getattr(holdfast, name)
        if not (inspect.isclass(value) and issubclass(value, HoldfastError)):
            rows.append((f"`{name}`", summary(value)))
    return table(("name", "what it is"), rows)


def parts_table() -> str:
    named = [each for each in holdfast.parts.__all__ if each != "sse"]
    return table(("name", "what it is"), [(f"`{each}`", summary(getattr(holdfast.parts, each))) for each in named])


def methods_text() -> str:
    return methods_of(
        Holdfast, "hf", [name for name, each in vars(Holdfast).items() if name[0] != "_" and callable(each)]
    )


def task_methods_text() -> str:
    tasks = methods_of(holdfast.Tasks, "tasks", ["declare", "merge", "call", "get"])
    pipeline = f"### tasks.pipeline(name, *functions, **options)\n\n{inspect.getdoc(Pipeliner)}"
    task = methods_of(holdfast.Task, "greet", ["run", "call_with", "record"])
    return f"{pipeline}\n\n{tasks}\n\n{task}\n\n{methods_of(holdfast.Call, 'call', ['options'])}"


def handler_methods_text() -> str:
    context = [
        "prepare", "complete", "atomic", "phase", "phase_result", "phase_results", "progress", "continue_with",
        "blocker", "fail", "raise_if_aborted",
    ]  # fmt: skip
    transaction = ["execute", "fetch_one", "fetch_all", "start", "start_many", "savepoint", "finish", "continue_with"]
    shown = methods_of(holdfast.CompletingTransaction, "tx", transaction)
    return f"{methods_of(holdfast.Context, 'ctx', context)}\n\n{shown}"


def completing_methods_text() -> str:
    return methods_of(holdfast.Completing, "job", ["finish", "continue_with"])


def methods_of(owner: type, short: str, names: list[str]) -> str:
    parts = []
    for name in names:
        method = inspect.unwrap(getattr(owner, name))
        given = [str(each.replace(annotation=each.empty)) for each in parameters(method)]
        star = ["*"] if any(each.kind is each.KEYWORD_ONLY for each in parameters(method)) else []
        at = next((n for n, each in enumerate(parameters(method)) if each.kind is each.KEYWORD_ONLY), len(given))
        signature = ", ".join([*given[:at], *star, *given[at:]])
        parts.append(f"### {short}.{name}({signature})\n\n{inspect.getdoc(method)}")
    return "\n\n".join(parts)


def parameters(method: Callable[..., object]) -> list[inspect.Parameter]:
    # what is Never takes nothing: it is there to be refused with a better text
    given = inspect.signature(method).parameters.values()
    return [each for each in given if each.name != "self" and each.annotation != "Never"]


def fields_text(kind: Any) -> str:
    shown = [each for each in dataclasses.fields(kind) if not each.name.startswith("_")]
    rows = [(f"`{each.name}`", f"`{each.type}`") for each in shown]
    properties = [name for name, value in vars(kind).items() if isinstance(value, property)]
    rows += [(f"`{name}`", summary(getattr(kind, name))) for name in properties]
    return f"### {kind.__name__}\n\n{paragraph(kind)}\n\n{table(('field', 'type'), rows)}"


def values_text() -> str:
    kinds: tuple[Any, ...] = (
        *(holdfast.Chain, holdfast.Job, holdfast.Phase, holdfast.Blocker, holdfast.Page, holdfast.Unique),
        *(holdfast.LaneInfo, holdfast.TaskInfo, holdfast.QueueInfo, holdfast.WorkerInfo, holdfast.TenantInfo),
    )
    return "\n\n".join(fields_text(each) for each in kinds)


def keywords_text() -> str:
    kinds: dict[str, Any] = {
        "of `start()` and `Call.options()`": StartOptions,
        "of `@hf.task(…)`": TaskOptions,
        "of `hf.list_jobs()`": JobListOptions,
        "of `hf.list_chains()`": ChainListOptions,
        "of `hf.list_chain_jobs()`": PageOptions,
    }
    rows = []
    for title, kind in kinds.items():
        rows.append((title, ", ".join(f"`{name}`" for name in sorted(kind.__optional_keys__))))
    return table(("keywords", "names"), rows)


def webhook_schema_text() -> str:
    return f"```json\n{folded(webhook_schema())}\n```"


def folded(value: object, depth: int = 0) -> str:
    """Write a JSON value with all on one line that fits there."""
    text = json.dumps(value)
    if len(text) + depth < 110 or not isinstance(value, dict):
        return text
    inner = [f"{' ' * (depth + 1)}{json.dumps(key)}: {folded(each, depth + 1)}" for key, each in value.items()]
    return "{\n" + ",\n".join(inner) + "\n" + " " * depth + "}"


def webhook_methods_text() -> str:
    return methods_of(WebhooksHandle, "hf.webhooks", [name for name in vars(WebhooksHandle) if name[0] != "_"])


def tenant_methods_text() -> str:
    return methods_of(TenantsHandle, "hf.tenants", [name for name in vars(TenantsHandle) if name[0] != "_"])


def access_methods_text() -> str:
    kinds = {"hf.tokens": TokensHandle, "hf.links": LinksHandle}
    return "\n\n".join(
        methods_of(kind, word, [name for name in vars(kind) if name[0] != "_"]) for word, kind in kinds.items()
    )


def access_values_text() -> str:
    kinds = (holdfast.NewToken, holdfast.TokenInfo, holdfast.NewLink, holdfast.Link, holdfast.AuditEntry)
    return "\n\n".join(fields_text(each) for each in kinds)


def schedule_methods_text() -> str:
    named = [name for name in vars(SchedulesHandle) if name[0] != "_"]
    declared = methods_of(holdfast.Tasks, "hf", ["schedule"])
    return f"{declared}\n\n{methods_of(SchedulesHandle, 'hf.schedules', named)}"


def schedule_values_text() -> str:
    return "\n\n".join(fields_text(each) for each in (holdfast.ScheduleInfo, holdfast.ScheduleRule, holdfast.Tick))


def webhook_values_text() -> str:
    return "\n\n".join(fields_text(each) for each in (holdfast.Subscription, holdfast.Delivery))


def words_text() -> str:
    kinds: tuple[type[enum.StrEnum], ...] = (Status, State)
    rows = [(f"`{kind.__name__}`", ", ".join(f"`{each}`" for each in kind)) for kind in kinds]
    return table(("enum", "words"), rows)


def summary(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def paragraph(thing: object) -> str:
    return (inspect.getdoc(thing) or "").partition(">>>")[0].strip()


def faults_table() -> str:
    rows = []
    for each in fault_table.lines():
        files = dict.fromkeys(test.partition("::")[0] for test in each.tests)
        links = ", ".join(f"[{Path(file).stem.removeprefix('test_')}](../{file})" for file in files)
        rows.append((each.fault, each.what, links, each.left))
    return table(("", "what goes wrong", "tests", "left"), rows)


def rooms_text() -> str:
    rows = table(("room", "what it is for", "what is in it: the left imports the right"), room_table.rows())
    return f"{room_table.drawing()}\n\n{rows}"


def walk_table() -> str:
    """Show what three walks have in common; what runs by the clock, beside the jobs, is in some of them only."""
    walks = [walk.record() for _ in range(3)]
    by_job = set.intersection(*(set(each["job"]) for each in walks))
    by_webhook = set.intersection(*(set(each["webhook"]) for each in walks))
    rows = [
        (f"`{name}`", first_line(name), "every job" if name in by_job else "a webhook")
        for name in sorted(by_job | by_webhook, key=lambda name: (-room_of(name.replace("/", ".")), name))
    ]
    return table(("module", "its first line", "passed by"), rows)


def first_line(module: str) -> str:
    """Give the first line of the docstring of *module*, which is named as in `store/jobs/claiming`."""
    path = SOURCE / f"{module}.py"
    tree = ast.parse((path if path.exists() else SOURCE / module / "__init__.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").partition("\n")[0]


def sources_table(family: dict[str, str]) -> str:
    return table(("line", "what it is", "shown by"), source_table.rows(family))


def reasons_table() -> str:
    """Give every reason with what it means, its facts, and what ends it."""
    return table(("code", "what it means", "facts", "what ends it"), list(map(reason_line, CODES.values())))


def reason_line(reason: type[Reason]) -> tuple[str, ...]:
    own = vars(reason)
    means = inspect.cleandoc(reason.__doc__ or "").replace("\n", " ")
    facts = ", ".join(f"`{each.name}`" for each in dataclasses.fields(reason))
    ends = [str(inspect.getdoc(own["remedy"]))] if "remedy" in own else []
    ends += ["Time alone."] if "ends_at" in own else []
    return f"`{reason.code}`", means, facts, " Or: ".join(ends) or "-"


GENERATED: dict[str, Callable[[], str]] = {
    "reasons": reasons_table,
    "rooms": rooms_text,
    "guarantees": guarantee_table.show,
    "faults": faults_table,
    "phase queue": partial(sources_table, source_table.PHASE_QUEUE),
    "job chains": partial(sources_table, source_table.JOB_CHAINS),
    "target queue": partial(sources_table, source_table.TARGET_QUEUE),
    "defects": partial(sources_table, source_table.DEFECTS),
    "settings": settings_table,
    "errors": errors_table,
    "events": events_table,
    "log": log_table,
    "event values": event_values_text,
    "listener methods": listener_methods_text,
    "webhook schema": webhook_schema_text,
    "webhook methods": webhook_methods_text,
    "tenant methods": tenant_methods_text,
    "access methods": access_methods_text,
    "access values": access_values_text,
    "webhook values": webhook_values_text,
    "schedule methods": schedule_methods_text,
    "schedule values": schedule_values_text,
    "moves": moves_table,
    "diagram": states_diagram,
    "derived": derived_table,
    "commands": commands_text,
    "http problems": partial(http_table.problems_table, table),
    "http resources": http_table.resources_text,
    "http objects": http_table.objects_text,
    "metrics": partial(http_table.metrics_table, table),
    "names": names_table,
    "parts": parts_table,
    "methods": methods_text,
    "task methods": task_methods_text,
    "handler methods": handler_methods_text,
    "completing methods": completing_methods_text,
    "values": values_text,
    "keywords": keywords_text,
    "words": words_text,
}
RECORDED: dict[str, Callable[[], str]] = {"walk": walk_table}
"""What is written by the same command, and differs a little from run to run: the tests of the walk check it."""
MARKED = re.compile(r"(<!-- generated: (?P<name>[\w ]+) -->\n)(?P<text>.*?)(<!-- end -->)", re.DOTALL)


def places() -> dict[str, tuple[Path, str]]:
    return {
        each["name"]: (page, each["text"])
        for page in PAGES
        for each in MARKED.finditer(page.read_text(encoding="utf-8"))
    }


@pytest.mark.source("PQ-68")
@pytest.mark.parametrize("name", GENERATED)
def test_a_generated_part_is_what_the_code_says(name: str) -> None:
    page, text = places()[name]

    assert text.strip() == GENERATED[name]().strip(), f"{name_of(page)}: .venv/bin/python -m tests.test_docs"


# the architecture page: its walk passes every module, and what it names is there


ARCHITECTURE = ROOT / "docs" / "internals" / "architecture.md"
# pages and records that name modules as they are now; an older record keeps the names of its day
NAMING_MODULES = [
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs" / "internals").glob("*.md")),
    *sorted((ROOT / "docs" / "internals" / "decisions").glob("002*.md")),
]
MODULE = re.compile(rf"(?<![\w/.-])((?:{'|'.join(FOLDERS)})/[\w/]*\w)(?:\.(?!py\b)(\w+))?")


def test_the_architecture_names_every_module_that_a_job_passes() -> None:
    text = MARKED.sub(lambda each: "" if each["name"] == "rooms" else each["text"], ARCHITECTURE.read_text("utf-8"))
    named = set(re.findall(r"`([\w/]+)`", text))
    walked = {name for modules in walk.record().values() for name in modules}

    assert len(walked) > 50
    assert sorted(walked - named) == [], (
        "name them on the page, or write the walk anew: .venv/bin/python -m tests.test_docs"
    )


def test_a_module_in_the_walk_is_shown_with_its_first_line() -> None:
    rows = re.findall(r"^\| `([\w/]+)` \| (.*) \| [^|]* \|$", places()["walk"][1], re.MULTILINE)

    assert rows
    assert dict(rows) == {name: first_line(name).replace("|", "\\|") for name, _ in rows}


@pytest.mark.parametrize("page", NAMING_MODULES, ids=name_of)
def test_modules_and_their_functions_that_are_named_exist(page: Path) -> None:
    for path, function in MODULE.findall(page.read_text(encoding="utf-8")):
        found = [each for each in (SOURCE / f"{path}.py", SOURCE / path / "__init__.py") if each.exists()]
        assert found or (SOURCE / path).is_dir(), f"{name_of(page)} names {path}"
        if function and found:
            is_there = re.search(rf"\b(def|class) {function}\b", found[0].read_text(encoding="utf-8"))
            assert is_there, f"{name_of(page)} names {path}.{function}"


def test_the_architecture_names_every_thread() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    started = set(re.findall(r"(?:shell|stepper|Pool|Threads)\([^\n]*\"(holdfast-[a-z]+)\"", text))

    assert len(started) > 5
    named = set(re.findall(r"`(holdfast-[a-z]+)`", ARCHITECTURE.read_text(encoding="utf-8")))
    assert sorted(started - named) == []


def test_every_option_of_a_start_has_its_row_in_the_guide() -> None:
    guide = (ROOT / "docs" / "guides" / "starting-jobs.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^\| `(\w+)` \|", guide, re.MULTILINE)) == CHECKS.keys()


@pytest.mark.source("JC-99")
def test_every_error_is_in_the_guide_of_what_to_do() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")

    assert set(re.findall(r"^- `(\w+)`", page, re.MULTILINE)) == {
        each.__name__ for each in error_classes() if not each.__subclasses__()
    }


def write() -> None:
    """Write every generated part anew."""
    parts = GENERATED | RECORDED
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = MARKED.sub(lambda each: f"{each[1]}\n{parts[each['name']]()}\n\n{each[4]}", text)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"wrote {name_of(page)}")
    openapi_file.write()


if __name__ == "__main__":
    write()
