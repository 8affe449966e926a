"""`manage.py holdfast_worker`: what `holdfast worker` does, for the Holdfast of this project."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from holdfast.errors import HoldfastError
from holdfast.integrations.django.connections import tidy_connections
from holdfast.integrations.django.project import holdfast
from holdfast.supervisor.launch import OPTIONS, ProcessOptions, WorkerOption, keywords, work


class Command(BaseCommand):
    """Runs jobs until it is told to stop."""

    help = "Run the jobs of this project. The first SIGTERM or SIGINT drains, a second one ends the process at once."

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Take the options of `holdfast worker`, all of them, as they are declared there."""
        for each in OPTIONS:
            if each.kind is bool:
                flag = argparse.BooleanOptionalAction
                parser.add_argument(each.flag, dest=each.name, action=flag, default=each.default, help=each.help)
                continue
            parser.add_argument(
                each.flag,
                dest=each.name,
                action="append" if each.is_repeated else "store",
                type=_converter(each),
                default=each.default,
                help=each.described,
                choices=each.choices or None,
            )

    def handle(self, *args: Any, **given: Any) -> None:
        """Work; leave with the exit code of `holdfast worker`."""
        words = {each.name: given[each.name] for each in OPTIONS}
        process = ProcessOptions.taken_from(words)
        try:
            options = keywords(words.pop("queues"), **words)
            options["middleware"] = [tidy_connections]
            options["app"] = "holdfast.integrations.django.child:hf"
            code = work(holdfast, options, process)
        except HoldfastError as error:
            raise CommandError(str(error), returncode=error.exit_code) from error
        sys.exit(code)


def _converter(option: WorkerOption) -> Callable[[str], Any]:
    def convert(text: str) -> Any:
        value = option.kind(text)
        complaint = option.complaint(value) if isinstance(value, int | float) else None
        if complaint is not None:
            raise argparse.ArgumentTypeError(complaint)
        return value

    convert.__name__ = option.kind.__name__  # argparse names it when a text is no number at all
    return convert
