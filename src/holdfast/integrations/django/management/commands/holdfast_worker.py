"""`manage.py holdfast_worker`: what `holdfast worker` does, for the Holdfast of this project."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError

from holdfast.cli.worker import keywords, work, worker
from holdfast.errors import HoldfastError
from holdfast.integrations.django.connections import tidy_connections
from holdfast.integrations.django.project import holdfast

OPTIONS = [each for each in worker.params if isinstance(each, click.Option)]


class Command(BaseCommand):
    """Runs jobs until it is told to stop."""

    help = "Run the jobs of this project. The first SIGTERM or SIGINT drains, a second one ends the process at once."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Take the options of `holdfast worker`, all of them, as they are declared there."""
        for each in OPTIONS:
            default = each.default if each.show_default else None  # click's own word for none is not None
            shown = f"{each.help}  [default: {default}]" if each.show_default else each.help
            if each.is_flag:
                flag = argparse.BooleanOptionalAction
                parser.add_argument(*each.opts, dest=each.name, action=flag, default=each.default, help=each.help)
                continue
            parser.add_argument(*each.opts, dest=each.name, type=_converter(each), default=default, help=shown)

    def handle(self, *args: Any, **given: Any) -> None:
        """Work; leave with the exit code of `holdfast worker`."""
        words = {str(each.name): given[str(each.name)] for each in OPTIONS}
        processes, health_file = words.pop("processes"), words.pop("health_file")
        options = keywords(words.pop("queues"), **words)
        options["middleware"] = [tidy_connections]
        options["app"] = "holdfast.integrations.django.child:hf"
        try:
            code = work(holdfast, options, processes=processes, health_file=health_file)
        except HoldfastError as error:
            raise CommandError(str(error), returncode=error.exit_code) from error
        sys.exit(code)


def _converter(option: click.Option) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        try:
            return option.type.convert(text, option, None)
        except click.UsageError as error:
            raise argparse.ArgumentTypeError(error.format_message()) from error

    return convert
