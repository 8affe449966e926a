"""The examples in the help of `holdfast token`, `link` and `audit` work as they stand there."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import click
import pytest

from holdfast import Holdfast
from holdfast.access import Role
from holdfast.cli import commands
from holdfast.store import access
from holdfast.store.access import NewGrant
from tests.cli.in_process import CommandLine
from tests.support.factories import TASKS, greet

SHOWN = UUID("01980f00-6e1c-7000-8000-5a1c2f9e0b77")


def examples(command: click.Command) -> Iterator[str]:
    """Give the lines of the examples of a command and of those in it."""
    yield from (line.strip() for line in (command.help or "").splitlines() if line.strip().startswith("holdfast "))
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        yield from examples(inner)


@pytest.mark.parametrize(
    "line", [line for name in ("token", "link", "audit") for line in examples(commands.commands[name])]
)
def test_an_example_runs(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: CommandLine) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DATABASE", "jobs.db")
    run("migrate")
    run("tenants", "create", "acme")
    words = shlex.split(line.partition(" > ")[0])[1:]
    hf = Holdfast("jobs.db", tasks=[TASKS]).sync
    hf.start(greet(name="Ada").options(id=SHOWN))
    chain = SHOWN if words[0] == "link" else None
    hf.store.run_sync(access.add_link if chain else access.add_token, a_grant(chain))
    hf.close()

    assert run(*words).out


def a_grant(chain: UUID | None) -> NewGrant:
    """A token, or a link to *chain*, whose id is the one that the examples show."""
    return NewGrant(SHOWN, "hash", "shown", Role.GUEST if chain else Role.VIEWER, None, True, None, chain=chain)


@pytest.mark.parametrize("name", ["token", "link", "audit"])
def test_every_help_has_two_examples(name: str) -> None:
    command = commands.commands[name]
    inner = list(command.commands.values()) if isinstance(command, click.Group) else []

    assert {each.name: len([*examples(each)]) for each in inner} == {each.name: 2 for each in inner}
    assert len([*examples(command)]) >= 2
