"""`holdfast audit` as a person runs it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Holdfast
from holdfast.store import audit
from holdfast.times import instant_text
from tests.cli.in_process import CommandLine
from tests.support.factories import greet


def test_what_was_done_is_listed_newest_first_with_who_and_why(led_to: Holdfast, run: CommandLine) -> None:
    face = led_to.sync.acting(by="Ada", why="year end", request="r-7")
    chain = face.start(greet(name="Ada"))
    face.cancel(chain)

    newest, oldest = run.read("audit")
    assert (newest["who"], newest["action"], newest["subject"]) == ("Ada", "cancel", str(chain.id))
    assert (oldest["action"], oldest["why"], oldest["request"]) == ("start", "year end", "r-7")
    line = run("audit", "--action", "cancel").out
    assert line == f"{newest['at']} Ada: cancel {chain.id}: year end\n"


def test_entries_are_narrowed_and_paged(led_to: Holdfast, run: CommandLine) -> None:
    chains = [led_to.sync.acting(by=who).start(greet(name=who)).id for who in ("Ada", "Bob", "Ada")]

    first = run("audit", "--limit", "2")
    cursor = first.err.partition("--after ")[2].strip()
    assert [each["subject"] for each in run.read("audit", "--after", cursor)] == [str(chains[0])]
    assert [each["subject"] for each in run.read("audit", "--who", "Bob")] == [str(chains[1])]
    assert [each["who"] for each in run.read("audit", "--subject", str(chains[2]))] == ["Ada"]


def test_entries_are_narrowed_to_a_span_of_time(led_to: Holdfast, run: CommandLine) -> None:
    led_to.sync.acting(by="Ada").start(greet(name="Ada"))
    (entry,) = led_to.sync.audit()
    at, later = str(instant_text(entry.at)), str(instant_text(entry.at + timedelta(milliseconds=1)))

    assert len(run.read("audit", "--since", at, "--until", later)) == 1
    assert run.read("audit", "--since", later) == run.read("audit", "--until", at) == []
    assert "is no time with a zone" in run("audit", "--since", "2026-12-01", code=2).err


def test_a_list_goes_on_over_pages_that_have_nothing(
    led_to: Holdfast, run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for who in ("Ada", "Bob", "Bob", "Bob"):
        led_to.sync.acting(by=who).start(greet(name=who))
    monkeypatch.setattr(audit, "MOST_SEARCHED", 1)

    assert [each["who"] for each in run.read("audit", "--who", "Ada")] == ["Ada"]
    assert run("audit", "--who", "Eve").out == "there are no entries\n"


def test_words_of_others_cannot_write_lines_of_their_own(led_to: Holdfast, run: CommandLine) -> None:
    led_to.sync.acting(by="Eve\x1b[2J", why="x\n2026 Ada: delete").start(greet(name="Eve"))

    (line,) = run("audit").out.splitlines()
    assert "\x1b" not in line
