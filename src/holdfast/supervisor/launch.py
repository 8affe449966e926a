"""How a worker process begins, for `holdfast worker` and `manage.py holdfast_worker`: their options and what they mean.

The options are plain data: each command translates them for its own command-line library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from holdfast.logging import FORMATS, LEVELS

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.app import Holdfast
    from holdfast.worker.options import WorkerKeywords


@dataclass(frozen=True, slots=True)
class WorkerOption:
    """One option: a switch if *kind* is bool; *least* and *most* bound a number, and a text is one of *choices*.

    *unset* says what None stands for.
    """

    name: str
    kind: type[bool] | type[int] | type[float] | type[str] | type[Path]
    help: str
    default: bool | int | float | None = None
    least: float | None = None
    most: float | None = None
    unset: str | None = None
    choices: tuple[str, ...] = ()
    is_repeated: bool = False
    """Whether it may be given several times; then its value is a list."""

    @property
    def flag(self) -> str:
        """Give its spelling on a command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def described(self) -> str:
        """Give its help, with what it is when it is left out."""
        usual = self.unset if self.default is None else f"{self.default}"
        return self.help if usual is None else f"{self.help}  [default: {usual}]"

    def complaint(self, value: float) -> str | None:
        """Say what is wrong with *value*, if it is out of bounds."""
        if self.least is not None and value < self.least:
            return f"{value} is too small: {self.flag} is at least {self.least}"
        if self.most is not None and value > self.most:
            return f"{value} is too large: {self.flag} is at most {self.most}"
        return None


OPTIONS = (
    WorkerOption(
        "queues", str, "Serve these queues, separated by commas.", unset="`default` and the queues of its tasks"
    ),
    WorkerOption("concurrency", int, "Run at most this many jobs at once in each process.", 100, 1, 10_000),
    WorkerOption(
        "tenant",
        str,
        "Serve this tenant with at most so many of the slots, e.g. `acme=4`; `*=1` for all others. Repeat it for more.",
        unset="the control place alone",
        is_repeated=True,
    ),
    WorkerOption("name", str, "Name the worker; its id starts with this name.", unset="worker"),
    WorkerOption("grace", float, "Give running jobs this many seconds when the worker stops.", 20.0, 0, 86_400),
    WorkerOption("poll", float, "Look for new jobs after this many seconds without a notification.", 2.0, 0.05, 3_600),
    WorkerOption("webhooks", bool, "Deliver webhooks too.", default=True),
    WorkerOption(
        "children",
        int,
        'Run tasks with run_in="process" in at most this many child processes.',
        least=1,
        most=1_000,
        unset="one per CPU core",
    ),
    WorkerOption("child_jobs", int, "Replace a child process after this many jobs.", 10_000, 1),
    WorkerOption(
        "child_megabytes",
        float,
        "Replace a child process, after its job, if it uses more megabytes than this.",
        least=1,
        unset="no limit",
    ),
    WorkerOption(
        "processes", int, "Start this many worker processes; if more than one, under a supervisor.", 1, 1, 256
    ),
    WorkerOption("health_file", Path, "Write the health to this file every two seconds, for `holdfast health`."),
    WorkerOption("log_level", str, "Log from this level on.", unset="info", choices=LEVELS),
    WorkerOption("log_format", str, "Log lines of text, or of JSON.", unset="text", choices=FORMATS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """What the processes of a worker command are given beside the keywords of `hf.worker()`."""

    processes: int = 1
    health_file: Path | None = None
    log_level: str | None = None
    log_format: str | None = None

    @classmethod
    def taken_from(cls, options: dict[str, Any]) -> Self:
        """Take out of *options* what is for the processes; the keywords of `hf.worker()` are left."""
        return cls(**{each.name: options.pop(each.name) for each in fields(cls)})


def work(load: Callable[[], Holdfast], options: WorkerKeywords, process: ProcessOptions) -> int:
    """Run the jobs of what *load* gives, in this process or as the supervisor of several; answer the exit code."""
    import os

    from holdfast.logging import LogOptions, set_up_logging
    from holdfast.supervisor.reporting import Notifier, Reporting
    from holdfast.supervisor.run import serve
    from holdfast.supervisor.supervisor import supervise
    from holdfast.supervisor.worker_process import SupervisorPipe

    pipe = SupervisorPipe.from_environment(os.environ)
    log = LogOptions(process.log_level, process.log_format, None if pipe is None else pipe.number)
    reporting = Reporting(None, None)
    if pipe is None:
        reporting = Reporting(process.health_file, Notifier.from_environment(os.environ))
        if process.processes > 1:
            set_up_logging(log)
            return supervise(process.processes, options["grace"] or 0.0, reporting)
    hf = load()
    set_up_logging(log)  # not before: if the application sets up logging when it is imported, that is left alone
    return serve(hf, options, reporting, pipe)


def keywords(
    names: str | None, tenant: Sequence[str] | None = None, **options: Unpack[WorkerKeywords]
) -> WorkerKeywords:
    """Make the keywords of `hf.worker()` of the options of this command.

    *Names* are the queues, with commas, and *tenant* the tenants, each with `=` and its slots.
    """
    from holdfast.errors import Misuse

    if names is not None:
        queues = options["queues"] = [each.strip() for each in names.split(",") if each.strip()]
        if any(len(each.split()) > 1 for each in queues):
            meant = ",".join(names.replace(",", " ").split())
            raise Misuse(
                f"--queues {names!r} has blanks inside a name; if these are several, write commas: `--queues {meant}`; "
                "a queue with a blank in its name is served by hf.worker(queues=[…])"
            )
    if tenant:
        options["tenants"] = _slots_of_all(tenant)
    return options


def _slots_of_all(texts: Sequence[str]) -> dict[str, int]:
    """Read `acme=4` and `*=1`; a tenant has one number."""
    found: dict[str, int] = {}
    for name, slots in map(_slots_of, texts):
        if name in found:
            from holdfast.errors import Misuse

            raise Misuse(f"--tenant {name}={slots} comes after --tenant {name}={found[name]}; give each tenant once")
        found[name] = slots
    return found


def _slots_of(text: str) -> tuple[str, int]:
    """Read `acme=4`."""
    name, equals, slots = text.partition("=")
    if not equals or not slots.strip().isdecimal():
        from holdfast.errors import Misuse

        raise Misuse(f"--tenant {text!r} has no number of slots; write `--tenant {name.strip() or 'acme'}=1`")
    return name.strip(), int(slots)


def import_app(path: str, command: str = "worker") -> Holdfast:
    """Import the Holdfast object with the import path *path*, or raise `Misuse` that says what is wrong with it."""
    import importlib

    from holdfast.app import Holdfast
    from holdfast.errors import Misuse

    module_name, colon, attribute = path.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        meant = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise Misuse(f"{path!r} is a file, not an import path; write `holdfast {command} {meant}:{attribute or 'hf'}`")
    if not colon or not module_name or not attribute:
        raise Misuse(
            f"{path!r} is not the import path of an object: write module, colon, name, e.g. "
            f"`holdfast {command} {_with_colon(module_name)}`"
        )
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # it was found, and something that it imports was not
        raise Misuse(
            f"there is no module {error.name!r} in {Path.cwd()}; run the command in the directory that contains it, or "
            "correct the name before the colon"
        ) from None
    found = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise Misuse(f"module {module_name!r} has no {attribute!r}{_known_apps(module, module_name)}")
        found = getattr(found, name)
    if not isinstance(found, Holdfast):
        raise Misuse(f"{path} is a {type(found).__name__}, not a Holdfast object{_known_apps(module, module_name)}")
    return found


def _with_colon(name: str) -> str:
    """Give the import path that *name* was meant to be: a module without its object, or both with a dot between."""
    from contextlib import suppress
    from importlib.util import find_spec

    before, dot, last = name.rpartition(".")
    if before and dot and last:
        with suppress(Exception):  # it imports what is before the dot, and that may raise anything
            if find_spec(name) is not None:
                return f"{name}:hf"
        return f"{before}:{last}"
    return f"{name or 'shop.jobs'}:hf"


def _known_apps(module: object, name: str) -> str:
    from holdfast.app import Holdfast

    there = [f"{name}:{each}" for each, value in vars(module).items() if isinstance(value, Holdfast)]
    return f"; did you mean {' or '.join(there)}?" if there else "; the module has no Holdfast object"
