"""`holdfast worker`: runs jobs in a process of their own, until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.app import Holdfast
    from holdfast.worker.options import WorkerKeywords


@click.command()
@click.argument("app")
@click.option("--queues", help="The queues to serve, with commas.  [default: `default` and those its tasks name]")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="How many jobs a process runs at once.",
)
@click.option("--name", help="A name for people; the id of the worker begins with it.  [default: worker]")
@click.option(
    "--grace",
    type=click.FloatRange(0, 86_400),
    default=20.0,
    show_default=True,
    help="Seconds that running jobs are given when it stops.",
)
@click.option(
    "--poll",
    type=click.FloatRange(0.05, 3_600),
    default=2.0,
    show_default=True,
    help="Seconds between two looks when no hint comes.",
)
@click.option("--webhooks/--no-webhooks", default=True, help="Whether it delivers webhooks too.  [default: it does]")
@click.option(
    "--children",
    type=click.IntRange(1, 1_000),
    help='How many child processes run tasks with run_in="process", at most.  [default: one for each core]',
)
@click.option(
    "--child-jobs",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="After how many jobs a child is replaced.",
)
@click.option(
    "--child-megabytes",
    type=click.FloatRange(1),
    help="Above which size a child is replaced after its job.  [default: no limit]",
)
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="How many processes work; more than one have a supervisor.",
)
@click.option(
    "--health-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that tells every two seconds how it is, for `holdfast health`.",
)
def worker(app: str, queues: str | None, processes: int, health_file: Path | None, **options: Any) -> None:
    """Run the jobs of APP, the place of a Holdfast object such as `shop.jobs:hf`.

    The first SIGTERM or SIGINT (Ctrl-C) drains: nothing more is claimed, running jobs have the grace time, then they
    are interrupted and given back. A second one ends the process at once; the jobs it ran come back when their leases
    are over. SIGUSR1 has its health logged. Log lines go to stderr, the name of the event first.

    With --processes, a supervisor starts so many workers, starts those again that end, after 1 to 30 seconds, and hands
    the signals on. SIGHUP has it replace one worker after the other, by what the code is then.

    Exit codes: 0 all was written down; 1 the worker broke; 2 APP cannot be used; 5 the database could not be
    reached, at the start or for the last writes; 130 and 143 after a second Ctrl-C or SIGTERM. A supervisor ends with
    the worst of its workers' last codes, by this order: 2, 1, 5, 0; one that had to be killed counts as 1.

    \b
    Examples:
      holdfast worker shop.jobs:hf
      holdfast worker shop.jobs:hf --queues mail,reports --concurrency 20 --grace 60
      holdfast worker shop.jobs:hf --processes 4 --health-file /run/shop/health.json
    """
    import sys

    given = keywords(queues, app=app, **options)
    sys.exit(work(lambda: load(app), given, processes=processes, health_file=health_file))


def work(find: Callable[[], Holdfast], options: WorkerKeywords, *, processes: int, health_file: Path | None) -> int:
    """Run the jobs of what *find* gives, in this process or as the supervisor of several; answer the exit code."""
    import os

    from holdfast.cli.reporting import Reporting
    from holdfast.cli.serving import serve
    from holdfast.cli.supervising import supervise
    from holdfast.cli.systemd import Notifier
    from holdfast.cli.worker_process import Line

    line = Line.from_environment(os.environ)
    if line is not None:
        return serve(find(), options, Reporting(None, None), line)
    reporting = Reporting(health_file, Notifier.from_environment(os.environ))
    if processes > 1:
        return supervise(processes, options["grace"] or 0.0, reporting)
    return serve(find(), options, reporting)


def keywords(names: str | None, **options: Unpack[WorkerKeywords]) -> WorkerKeywords:
    """Make the keywords of `hf.worker()` of the options of this command; *names* are the queues, with commas."""
    if names is not None:
        options["queues"] = [each.strip() for each in names.split(",") if each.strip()]
    return options


def load(place: str) -> Holdfast:
    """Import the Holdfast object at *place*, which may be in this directory, as `find` does."""
    import sys

    sys.path.insert(0, "")
    return find(place)


def find(place: str) -> Holdfast:
    """Import the Holdfast object at *place*, or raise `Misuse` that says what is wrong with it."""
    import importlib

    from holdfast.app import Holdfast
    from holdfast.errors import Misuse

    module_name, colon, attribute = place.partition(":")
    if not colon or not module_name or not attribute:
        raise Misuse(f"{place!r} is no place of an object; write module:attribute, such as shop.jobs:hf")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # it was found, and something that it imports was not
        raise Misuse(f"there is no module {error.name!r} here; start in the directory that holds it") from None
    found = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise Misuse(f"module {module_name!r} has no {attribute!r}{_hint(module)}")
        found = getattr(found, name)
    if not isinstance(found, Holdfast):
        raise Misuse(f"{place} is of type {type(found).__name__}, not Holdfast{_hint(module)}")
    return found


def _hint(module: object) -> str:
    from holdfast.app import Holdfast

    there = [name for name, value in vars(module).items() if isinstance(value, Holdfast)]
    return f"; there is {', '.join(there)}" if there else "; it has no Holdfast object at all"
