"""What a report calls wrong, and how `holdfast health` says so: in words, as JSON, by its exit code."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic_core import to_json

from holdfast.errors import Misuse
from holdfast.supervisor.health import HealthReport, ProcessReport, is_stuck, problems, summary
from holdfast.supervisor.reporting import HealthFile, Notifier, Reporting
from holdfast.supervisor.worker_process import SupervisorPipe
from holdfast.webhooks.receivers import ReceiverHealth
from holdfast.worker.health import Health
from tests.cli.test_worker import holdfast
from tests.support.log_lines import lines
from tests.support.processes.listening_systemd import listening_systemd

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def working(**health: Any) -> ProcessReport:
    """A worker process that works as it should, but for what is said of its health."""
    usual = {"since": ago(500).isoformat(), "claimed_at": ago(1).isoformat(), "hints": "listening", "running": 3}
    return ProcessReport(number=1, state="working", pid=7, heard_at=ago(1), health={**usual, **health})


def report(*processes: ProcessReport, at: datetime = NOW) -> HealthReport:
    return HealthReport(at=at, pid=6, processes=processes)


WELL = {
    "as usual": working(),
    "draining": ProcessReport(number=1, state="draining", pid=7, heard_at=ago(1), health={"running": 1}),
    "ended": ProcessReport(number=1, state="ended", last_end="exit code 0"),
    "a short trouble": working(trouble_since=ago(29).isoformat()),
    "busy for hours": working(claimed_at=ago(9_000).isoformat()),
    "just begun": working(claimed_at=None, since=ago(1).isoformat(), running=0),
    "idle": working(running=0, claimed_at=ago(40).isoformat()),
    "of a release that says less": ProcessReport(number=1, state="working", pid=7, heard_at=ago(1)),
}


@pytest.mark.parametrize("name", WELL)
def test_what_is_as_it_should_be_is_no_problem(name: str) -> None:
    assert problems(report(WELL[name]), NOW) == []


STUCK = {
    "has not been heard of for 16 s": ProcessReport(number=1, state="working", pid=7, heard_at=ago(16)),
    "has an event loop that has not answered for 61 s": working(loop_lag=61.0),
    "is idle and has not asked for work for 91 s": working(running=0, claimed_at=ago(91).isoformat()),
    "is idle and has not asked for work for 95 s": working(running=0, claimed_at=None, since=ago(95).isoformat()),
}
TROUBLED = {
    "has had trouble with its database for 32 s: no answer": working(
        trouble_since=ago(32).isoformat(), trouble="no answer"
    ),
    "has had trouble with its database for 31 s": working(trouble_since=ago(31).isoformat(), running=0),
    "could start no child process for 31 s": working(children={"failing_since": ago(31).isoformat()}),
    "is still starting": ProcessReport(number=1, state="starting", pid=7),
    "is down (killed by SIGKILL) and starts again in 4 s": ProcessReport(
        number=1, state="down", last_end="killed by SIGKILL", again_at=ago(-4)
    ),
}


@pytest.mark.parametrize("text", [*STUCK, *TROUBLED])
def test_what_is_not_is_named_and_may_be_what_a_restart_would_mend(text: str) -> None:
    found = problems(report((STUCK | TROUBLED)[text]), NOW)

    assert [each.text for each in found] == [f"process 1 {text}"]
    assert is_stuck(found) == (text in STUCK)


def test_a_worker_that_polls_rarely_may_be_idle_for_longer() -> None:
    rarely = ProcessReport(
        number=1, state="working", heard_at=NOW, poll=60, health={"running": 0, "claimed_at": ago(170).isoformat()}
    )

    assert problems(report(rarely), NOW) == []


def test_of_an_old_report_only_its_age_counts() -> None:
    (found,) = problems(report(TROUBLED["is still starting"], at=ago(20)), NOW)

    assert (found.text, found.is_stuck) == ("nothing was reported for 20 s", True)


# the command


def fresh(path: Path, *processes: ProcessReport) -> None:
    """Write a health file of this moment, or of one a little later, for a busy machine may take its time to read it."""
    later = [replace(each, heard_at=ago(-60)) if each.heard_at == ago(1) else each for each in processes]
    moved = json.loads(to_json(report(*later, at=ago(-60))))
    path.write_text(json.dumps(_shifted(moved, datetime.now(UTC) - NOW)))


def _shifted(value: Any, shift: timedelta) -> Any:
    if isinstance(value, dict):
        return {name: _shifted(each, shift) for name, each in value.items()}
    if isinstance(value, list):
        return [_shifted(each, shift) for each in value]
    try:
        return (datetime.fromisoformat(value) + shift).isoformat()
    except (TypeError, ValueError):
        return value


def test_the_command_tells_of_each_process_and_that_all_is_well(tmp_path: Path) -> None:
    children = {"idle": 1, "busy": 2, "starting": 1, "failing_since": None}
    silent = {"receiver": "hooks.example:443/…", "since": None, "is_silent": True, "under_way": 1, "put_off": 12}
    fresh(tmp_path / "health.json", working(stubborn=["a", "b"], children=children, receivers=[silent]))

    told = holdfast("health", "health.json", cwd=tmp_path)

    assert told.returncode == 0, told.stderr
    verdict, process = told.stdout.splitlines()
    assert verdict == "healthy: 1 working; 3 jobs running"
    assert process.startswith("process 1, working, pid 7, 3 running, listening, asked for work ")
    assert process.endswith(
        "2 of 4 children busy, 2 that do not stop, webhook receiver hooks.example:443/… silent for 0 s (12 put off)"
    )


def test_the_command_names_what_is_wrong_and_ends_with_1(tmp_path: Path) -> None:
    fresh(tmp_path / "health.json", TROUBLED["is still starting"])

    told = holdfast("health", "health.json", cwd=tmp_path)

    assert told.returncode == 1
    assert told.stdout.startswith("not healthy: process 1 is still starting\n")


@pytest.mark.parametrize(("text", "code"), [*[(each, 1) for each in STUCK], *[(each, 0) for each in TROUBLED]])
def test_liveness_is_only_about_what_a_restart_would_mend(tmp_path: Path, text: str, code: int) -> None:
    fresh(tmp_path / "health.json", (STUCK | TROUBLED)[text])

    told = holdfast("health", "health.json", "--liveness", cwd=tmp_path)

    assert told.returncode == code
    assert told.stdout.startswith("not healthy: " if code else "no restart needed, but not healthy: ")


def test_as_json_it_is_the_report_with_the_verdict(tmp_path: Path) -> None:
    fresh(tmp_path / "health.json", TROUBLED["is still starting"])

    told = json.loads(holdfast("health", "health.json", "--json", cwd=tmp_path).stdout)

    assert told["is_healthy"] is False
    assert told["problems"] == ["process 1 is still starting"]
    assert told["processes"][0]["state"] == "starting"


@pytest.mark.parametrize(
    ("text", "says"), [(None, "No such file"), ("", "is not a health file"), ('{"at": 1', "is not a health file")]
)
def test_a_file_that_cannot_be_read_is_no_health(tmp_path: Path, text: str | None, says: str) -> None:
    if text is not None:
        (tmp_path / "health.json").write_text(text)

    told = holdfast("health", "health.json", cwd=tmp_path)

    assert told.returncode == 1
    assert says in told.stderr


# who is told


def test_a_health_file_is_always_a_whole_one_and_gone_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "health.json"
    reporting = Reporting(path, None)
    reporting.begin(report(TROUBLED["is still starting"]))
    with path.open() as before:
        reporting.publish(report(working()))

        assert json.load(before)["processes"][0]["state"] == "starting"
    assert json.loads(path.read_text())["processes"][0]["state"] == "working"
    reporting.end()
    assert list(tmp_path.iterdir()) == []


def test_a_health_file_is_for_its_owner_and_follows_no_link(tmp_path: Path) -> None:
    """A7."""
    path, precious = tmp_path / "health.json", tmp_path / "precious"
    precious.write_text("precious")
    (tmp_path / ".health.json.new").symlink_to(precious)
    path.symlink_to(precious)

    Reporting(path, None).begin(report())

    assert precious.read_text() == "precious"
    assert not path.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_health_file_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(Misuse, match=r"cannot write the health file .*No such file or directory"):
        Reporting(tmp_path / "nowhere" / "health.json", None).begin(report())


def test_a_health_file_that_cannot_be_written_any_more_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").mkdir()
    file = HealthFile(tmp_path / "run" / "health.json")
    file.begin(report())
    (tmp_path / "run").rename(tmp_path / "moved")

    for _ in range(3):
        file.write(report())

    assert lines(caplog) == ["health_file_not_written"]


def test_systemd_is_not_told_that_we_live_if_we_are_stuck(tmp_path: Path) -> None:
    with listening_systemd(tmp_path / "notify") as systemd:
        reporting = Reporting(None, Notifier(str(tmp_path / "notify"), watchdog=30))

        reporting.begin(report(working(loop_lag=70.0)))
        reporting.publish(report(TROUBLED["is still starting"]))

        assert systemd.recv(4096).decode() == "STATUS=1 working; 3 jobs running\nREADY=1"
        assert systemd.recv(4096).decode() == "STATUS=1 starting; 0 jobs running\nWATCHDOG=1"


@pytest.mark.parametrize(
    ("variables", "watchdog"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
    ],
)
def test_what_systemd_wants_is_read_from_the_environment_and_not_handed_on(
    variables: dict[str, str], watchdog: float | None
) -> None:
    environment = {"NOTIFY_SOCKET": "@abstract", "HOME": "/", **variables}

    notifier = Notifier.from_environment(environment)

    assert notifier is not None
    assert notifier.watchdog == watchdog
    assert environment == {"HOME": "/"}
    assert Notifier.from_environment(environment) is None


@pytest.mark.parametrize(("watchdog", "seconds"), [(None, 2.0), (30.0, 2.0), (1.0, 0.5)])
def test_a_sign_of_life_comes_twice_in_the_time_that_systemd_waits(watchdog: float | None, seconds: float) -> None:
    assert Reporting(None, Notifier("@abstract", watchdog)).seconds == seconds


def test_a_notification_that_nobody_hears_is_no_error(tmp_path: Path) -> None:
    assert not Notifier(str(tmp_path / "nobody")).send(READY=1)


def test_we_are_ready_when_every_process_has_worked_not_only_if_they_do_so_together(tmp_path: Path) -> None:
    fallen = TROUBLED["is down (killed by SIGKILL) and starts again in 4 s"]
    with listening_systemd(tmp_path / "notify") as systemd:
        reporting = Reporting(None, Notifier(str(tmp_path / "notify")))
        reporting.begin(report(working(), replace(fallen, number=2)))
        reporting.publish(report(fallen, replace(working(), number=2)))

        assert "READY=1" not in systemd.recv(4096).decode()
        assert "READY=1" in systemd.recv(4096).decode()


def test_systemd_is_told_again_that_we_are_ready_if_it_did_not_hear_it(tmp_path: Path) -> None:
    reporting = Reporting(None, Notifier(str(tmp_path / "notify")))
    reporting.begin(report(working()))

    with listening_systemd(tmp_path / "notify") as systemd:
        reporting.publish(report(working()))
        reporting.publish(report(working()))

        assert "READY=1" in systemd.recv(4096).decode()
        assert "READY=1" not in systemd.recv(4096).decode()


def test_a_summary_counts() -> None:
    assert summary(report(working(running=1), ProcessReport(number=2, state="down"))) == (
        "1 working, 1 down; 1 job running"
    )


# the line to the supervisor


def health(**facts: Any) -> Health:
    usual: dict[str, Any] = {"hints": "polling", "loop_lag": 0.0, "running": 0, "stubborn": (), "is_draining": False}
    return Health(id="w", since=NOW, claimed_at=None, trouble_since=None, **{**usual, **facts})


def test_a_line_is_written_whole_however_much_is_to_be_said() -> None:
    reading, writing = os.pipe()
    line = SupervisorPipe(3, writing)
    try:
        silent = ReceiverHealth(receiver="h" * 253 + ":443/…", since=NOW, is_silent=True, under_way=8, put_off=9_999)
        stubborn, trouble = tuple(f"{n:036}" for n in range(9_000)), "\ud800" + "\U0001f600" * 9_000
        assert line.write(health(stubborn=stubborn, trouble=trouble, receivers=(silent,) * 1_000), 2.0)

        told = os.read(reading, 65_536)
        assert told.endswith(b"\n")
        assert len(told) < 4_096
        assert json.loads(told)["health"]["since"] == "2026-11-15T12:00:00Z"
        assert json.loads(told)["health"]["trouble"].startswith("?\U0001f600")
    finally:
        os.close(reading)
        os.close(writing)


def test_a_supervisor_that_does_not_read_is_there_and_one_that_is_gone_is_not() -> None:
    reading, writing = os.pipe()
    line = SupervisorPipe(3, writing)
    try:
        while line.write(health(), 2.0) and not _is_full(writing):
            pass
        assert line.write(health(), 2.0)

        os.close(reading)
        assert not line.write(health(), 2.0)
    finally:
        os.close(writing)


def _is_full(descriptor: int) -> bool:
    import select

    return not select.select([], [descriptor], [], 0)[1]


def test_the_place_is_read_from_the_environment_and_not_handed_on() -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    environment = {"HOLDFAST_SUPERVISED": f"4:{writing}", "HOME": "/"}
    try:
        line = SupervisorPipe.from_environment(environment)

        assert line is not None
        assert line.number == 4
        assert not os.get_inheritable(writing)
        assert environment == {"HOME": "/"}
        assert SupervisorPipe.from_environment(environment) is None
    finally:
        os.close(reading)
        os.close(writing)
