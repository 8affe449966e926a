"""`holdfast schedules` as a person runs it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.cli import main
from tests.support.factories import TASKS, greet


class Command:
    """The command itself, in this process: `command("list")`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run it; give what it printed, or what it complained of."""
        self._monkeypatch.setattr(sys, "argv", ["holdfast", "schedules", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self._capsys.readouterr()
        assert int(str(ended.value.code or 0)) == code, printed.err
        return printed.err if code else printed.out

    def read(self, *arguments: str) -> Any:
        """Run it, and read its JSON."""
        return json.loads(self(*arguments, "--json"))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command."""
    return Command(monkeypatch, capsys)


@pytest.fixture(params=["sqlite", "postgres"])
def hf(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, new_holdfast: Callable[..., Holdfast]
) -> Holdfast:
    """A face on the database to which the environment leads, with the schedule `nightly`."""
    made = new_holdfast(request.param, tasks=[TASKS])
    made.sync.open()
    monkeypatch.setenv("HOLDFAST_DATABASE", made.settings.database)
    monkeypatch.setenv("HOLDFAST_SCHEMA_NAME", made.settings.schema_name)
    call = greet(name="Ada").options(unique="night")
    made.sync.schedules.put("nightly", call, cron="0 3 * * *", timezone="Europe/Rome", jitter=2)
    return made


def test_a_schedule_is_listed_shown_paused_resumed_run_and_deleted(hf: Holdfast, command: Command) -> None:
    (listed,) = command.read("list")
    line = command("list")
    (paused,) = command.read("pause", "nightly", "--until", "2199-01-01T00:00Z", "--by", "Ada", "--why", "year end")
    paused_line = command("list")
    (resumed,) = command.read("resume", "nightly", "--by", "Bob")
    chain = command("run", "nightly", "--why", "now").strip()
    again = command.read("run", "nightly")
    shown = command.read("show", "nightly")
    text = command("show", "nightly")
    deleted = command("delete", "nightly")

    assert (listed["name"], listed["task"], listed["arguments"]) == ("nightly", "greet", {"name": "Ada"})
    assert listed["rule"] == {"cron": "0 3 * * *", "timezone": "Europe/Rome"}
    assert (listed["words"], len(listed["next_times"])) == ("At 03:00 every day (Europe/Rome)", 5)
    words = "nightly: At 03:00 every day (Europe/Rome), starts greet; "
    assert line == f"{words}next at {listed['next_at']}\n"
    assert (paused["paused_until"], paused["paused_by"], paused["next_at"]) == ("2199-01-01T00:00:00.000Z", "Ada", None)
    assert paused_line == f"{words}paused until 2199-01-01T00:00:00.000Z: year end\n"
    assert (resumed["paused_at"], resumed["next_at"], resumed["changed_by"]) == (None, listed["next_at"], "Bob")
    assert again == {"chain": chain, "deduplicated": True}
    assert (shown["options"]["unique"]["key"], shown["jitter"], shown["ticks"]) == ("night", 2.0, [])
    assert 'call: greet {"name": "Ada"}' in text
    assert "no ticks yet" in text
    assert deleted == "deleted nightly\n"
    assert command("list") == "there are no schedules\n"
    assert str(hf.sync.get_chain(chain).id) == chain


def test_a_list_goes_on_behind_its_page(hf: Holdfast, command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    hf.sync.schedules.put("weekly", greet(name="Bob"), cron="0 3 * * 1")

    page = hf.sync.schedules.list(limit=1)
    assert [each["name"] for each in command.read("list", "--limit", "1")] == ["nightly"]
    assert [each["name"] for each in command.read("list", "--after", str(page.next_cursor))] == ["weekly"]


def test_a_schedule_that_nobody_takes_up_says_so(hf: Holdfast, command: Command) -> None:
    hf.sync.store.run_sync(_overdue)

    (listed,) = command.read("list")
    assert listed["is_late"] is True
    assert command("list").endswith("Z, and no worker has taken that up\n")


async def _overdue(tx: Any) -> None:
    await tx.execute("UPDATE holdfast_schedule SET next_at = $now - 61000")


def test_a_schedule_in_trouble_says_so(hf: Holdfast, command: Command) -> None:
    hf.sync.store.run_sync(_trouble)

    assert command("list").endswith("; in trouble: UnknownTask: gone\n")


async def _trouble(tx: Any) -> None:
    await tx.execute("UPDATE holdfast_schedule SET trouble = 'UnknownTask: gone'")


def test_what_is_not_there_is_an_exit_code(hf: Holdfast, command: Command) -> None:
    for verb in ("show", "pause", "resume", "run", "delete"):
        assert "there is no schedule 'hourly'" in command(verb, "hourly", code=3)
    for text in ("tomorrow", "2026-12-01", "2026-12-01T08:30"):
        assert f"{text!r} is no time with a zone" in command("pause", "nightly", "--until", text, code=2)
    assert "is not in the future" in command("pause", "nightly", "--until", "2020-12-01T08:30+01:00", code=2)


def test_a_preview_needs_no_database(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HOLDFAST_DATABASE", raising=False)
    monkeypatch.chdir(tmp_path)

    words, *times = command("preview", "0 8 * * 1-5", "--timezone", "Asia/Tokyo").splitlines()
    every = command.read("preview", "--every", "300")

    assert words == "At 08:00 on Monday through Friday (Asia/Tokyo)"
    assert len(times) == 5
    assert all(each.endswith("T23:00:00.000Z") for each in times)
    assert (every["words"], len(every["next_times"])) == ("Every 5 minutes", 5)
    assert "column 3: '25' is no hour" in command("preview", "0 25 * * *", code=2)
    assert not list(tmp_path.iterdir())


def test_what_a_person_does_stands_in_the_audit(hf: Holdfast, command: Command) -> None:
    command("pause", "nightly", "--by", "Ada", "--why", "year end")
    command("delete", "nightly", "--by", "Bob")

    told = [(each.who, each.action, each.subject, each.why) for each in hf.sync.audit()]
    assert told == [("Bob", "schedule.delete", "nightly", None), ("Ada", "schedule.pause", "nightly", "year end")]
