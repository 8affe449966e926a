"""`holdfast retention` as a person runs it: the real command, in a process of its own."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.support.processes import forked

APP = """
    from holdfast import Holdfast, Retention

    hf = Holdfast("jobs.db")

    def note(job):
        with open("noted.txt", "a") as file:
            file.write(f"{job.input.name}\\n")

    @hf.task(name="mail", retention=Retention(stale_after=60, delete_after=60, on_stale=note))
    def mail(name: str) -> None:
        pass

    @hf.task(name="report")
    def report() -> None:
        pass
"""
START = """
    from shop import hf, mail, report

    for call in (mail(name="Ada"), mail(name="Bob"), report()):
        hf.sync.cancel(hf.sync.start(call))
    hf.sync.close()
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A directory with an application, whose jobs ended an hour ago."""
    (tmp_path / "shop.py").write_text(dedent(APP))
    run(tmp_path, [sys.executable, "-c", dedent(START)])
    with sqlite3.connect(tmp_path / "jobs.db") as file:
        file.execute("UPDATE holdfast_job SET closed_at = closed_at - 3600000")
    file.close()
    return tmp_path


def run(directory: Path, command: list[str]) -> str:
    told = forked.run(command, cwd=directory, capture_output=True, text=True, timeout=60, check=False, env=os.environ)
    assert told.returncode == 0, told.stderr
    return told.stdout


def holdfast(directory: Path, *arguments: str) -> str:
    return run(directory, [str(Path(sys.executable).with_name("holdfast")), "retention", "shop:hf", *arguments])


def test_a_dry_run_shows_what_is_due_and_changes_nothing(shop: Path) -> None:
    first, second = holdfast(shop, "--dry-run"), holdfast(shop, "--dry-run")

    assert first == second
    assert first.splitlines() == [
        "task  outcome        stale    deleted       kept  postponed",
        "mail  cancelled          2          0          0          0",
        "2 chains would be marked stale, 0 chains deleted",
    ]
    assert not (shop / "noted.txt").exists()


def test_it_makes_one_pass_with_the_hooks_of_the_application(shop: Path) -> None:
    told = json.loads(holdfast(shop, "--json"))

    counted = {"task": "mail", "outcome": "cancelled", "stale": 2, "deleted": 0, "kept": 0, "postponed": 0}
    assert told == {"dry_run": False, "counts": [counted], "trimmed": 0}
    assert sorted((shop / "noted.txt").read_text().split()) == ["Ada", "Bob"]
    assert holdfast(shop) == "nothing is due: 0 chains were marked stale, 0 chains deleted\n"
