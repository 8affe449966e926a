"""`holdfast worker`: runs jobs in a process of their own, until it is told to stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.supervisor.launch import OPTIONS, ProcessOptions, WorkerOption, import_app, keywords, work

if TYPE_CHECKING:
    from holdfast.app import Holdfast


def _options(command: Callable[..., None]) -> Callable[..., None]:
    """Give *command* the options of a worker, in their order."""
    for each in reversed(OPTIONS):
        command = _option(each)(command)
    return command


def _option(option: WorkerOption) -> Callable[[Callable[..., None]], Callable[..., None]]:
    if option.kind is bool:
        switch = f"{option.flag}/--no-{option.name}"
        return click.option(switch, default=option.default, help=f"{option.help}  [default: {option.flag}]")
    return click.option(
        option.flag,
        type=_click_type(option),
        default=option.default,
        help=option.described,
        multiple=option.is_repeated,
    )


def _click_type(option: WorkerOption) -> Any:
    if option.kind is int:
        least, most = (None if bound is None else int(bound) for bound in (option.least, option.most))
        return click.IntRange(least, most)
    if option.kind is float:
        return click.FloatRange(option.least, option.most)
    if option.kind is Path:
        return click.Path(dir_okay=False, path_type=Path)
    return click.Choice(option.choices) if option.choices else str


@click.command()
@click.argument("app")
@_options
def worker(app: str, queues: str | None, **options: Any) -> None:
    """Start a worker. APP is the import path of your Holdfast object, e.g. `shop.jobs:hf`.

    The first SIGTERM or SIGINT (Ctrl-C) drains the worker: it claims no more jobs and gives running jobs the grace
    time. After that it interrupts them and gives them back; another worker can then run them. A second signal ends the
    process at once; other workers take its jobs over when their leases expire, on SQLite at once. On SIGUSR1 the worker
    logs its health.

    Log lines go to stderr, also those of your application. If your application sets up logging when it is imported, the
    worker leaves that alone: --log-level then sets the level of the logger `holdfast` only, and --log-format has no
    effect.

    With --processes 2 or more, a supervisor starts that many workers. It restarts a worker that ends, after about 1 to
    30 seconds, and its signals apply to all workers. On SIGHUP it replaces its workers one by one, so that they load
    the new code.

    With --tenant the worker serves tenants instead of the control place. The numbers are upper limits: if all tenants
    together want more than --concurrency, they take turns. A tenant may be created later.

    Exit codes: 0 the worker wrote the result of every handler that ended; 1 the worker crashed; 2 APP cannot be used;
    5 the database could not be reached, at the start or for the last writes; 130 and 143 after a second Ctrl-C or
    SIGTERM. A supervisor exits with the worst of its workers' last codes, in this order: 2, 1, 5, 0. A worker that had
    to be killed counts as 1.

    \b
    Examples:
      holdfast worker shop.jobs:hf
      holdfast worker shop.jobs:hf --queues mail,reports --concurrency 20 --grace 60
      holdfast worker shop.jobs:hf --processes 4 --health-file /run/shop/health.json
      holdfast worker shop.jobs:hf --concurrency 50 --tenant acme=4 --tenant '*=1'
    """
    import sys

    process = ProcessOptions.taken_from(options)
    sys.exit(work(lambda: load(app), keywords(queues, app=app, **options), process))


def load(path: str, command: str = "worker") -> Holdfast:
    """Import the Holdfast object with the import path *path*, also from the current directory.

    If the module raises, its traceback is printed first: without it nobody finds the line.
    """
    import sys
    import traceback

    from holdfast.errors import HoldfastError, Misuse

    sys.path.insert(0, "")
    try:
        return import_app(path, command)
    except HoldfastError:
        raise
    except Exception as error:  # noqa: BLE001 - a module of the user's may raise anything
        frames = [each for each in traceback.extract_tb(error.__traceback__) if "importlib" not in each.filename]
        traceback.print_exc()
        place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
        what = f"{type(error).__name__}: {error}{place}"
        raise Misuse(f"importing {path.partition(':')[0]!r} raised {what}; correct the module") from None
