"""The help texts: each starts with a verb, and each says what the arguments are."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from holdfast.cli import commands

NO_VERBS = {"A", "An", "The", "How", "What", "Which", "Who", "Whether", "If", "After", "Above", "Seconds", "Only", "It"}


def all_commands(group: click.Group, name: str = "holdfast") -> Iterator[tuple[str, click.Command]]:
    yield name, group
    for inner, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from all_commands(command, f"{name} {inner}")
        else:
            yield f"{name} {inner}", command


COMMANDS = dict(all_commands(commands))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_text_starts_with_a_verb(name: str) -> None:
    command = COMMANDS[name]
    options = [each for each in command.params if isinstance(each, click.Option)]

    for text in [command.help or "", *(each.help or "" for each in options)]:
        assert re.match(r"[A-Z][a-z]+\b", text), text
        assert text.split(" ")[0] not in NO_VERBS, text


@pytest.mark.parametrize("name", COMMANDS)
def test_a_help_text_says_what_each_argument_is(name: str) -> None:
    command = COMMANDS[name]
    arguments = [each.human_readable_name for each in command.params if isinstance(each, click.Argument)]

    text = " ".join((command.help or "").partition("Examples:")[0].split())
    assert not [each for each in arguments if not re.search(rf"\b{each}\b is\b", text)]
