"""The `holdfast` command: one file for each group of commands; each imports what it needs when it runs."""

from __future__ import annotations

import sys

import click

from holdfast import __version__
from holdfast.cli.audit import audit
from holdfast.cli.health import health
from holdfast.cli.link import link
from holdfast.cli.migrate import migrate
from holdfast.cli.retention import retention
from holdfast.cli.schedules import schedules
from holdfast.cli.serve import serve
from holdfast.cli.tenants import tenants
from holdfast.cli.token import token
from holdfast.cli.watch import watch
from holdfast.cli.webhooks import webhooks
from holdfast.cli.worker import worker
from holdfast.errors import HoldfastError

OF_JOBS = frozenset(["cancel", "failed", "info", "inspect", "jobs", "list", "pause", "requeue", "resume", "retry"])
IN_PYTHON = (
    'Write Python, e.g. `hf.sync.list_jobs(status="failed")` and `hf.sync.retry(id)`; `holdfast watch ID` shows a job.'
)


class Commands(click.Group):
    """The commands; whoever looks for one that steers jobs hears how it is done."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that *args* begin with."""
        if args[0] in OF_JOBS:
            ctx.fail(f"No such command {args[0]!r}: no command lists or changes jobs yet. {IN_PYTHON}")
        return super().resolve_command(ctx, args)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="holdfast")
def commands() -> None:
    """Run workers, migrate the database, watch jobs, and manage schedules, tenants, tokens and webhooks."""


commands.add_command(audit)
commands.add_command(health)
commands.add_command(link)
commands.add_command(migrate)
commands.add_command(retention)
commands.add_command(schedules)
commands.add_command(serve)
commands.add_command(tenants)
commands.add_command(token)
commands.add_command(watch)
commands.add_command(webhooks)
commands.add_command(worker)


def main() -> None:
    """Run the command line; an error of ours is one line and the exit code of its family."""
    try:
        commands()
    except HoldfastError as error:
        click.echo(f"holdfast: {error}", err=True)
        sys.exit(error.exit_code)
