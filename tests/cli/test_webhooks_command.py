"""`holdfast webhooks` as a person runs it: the command itself, and the receiver in a process of its own."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast
from holdfast.cli import main
from holdfast.runtime import wall_ms
from holdfast.settings import secret_key
from holdfast.webhooks import sign
from tests.support.outbox import empty_outbox
from tests.support.processes import forked

COMMAND = str(Path(sys.executable).with_name("holdfast"))
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@dataclass(frozen=True, slots=True)
class Told:
    """What a command has said."""

    returncode: int
    stdout: str
    stderr: str


class Command:
    """The command itself, in this process: `webhooks("list")`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Told:
        self._monkeypatch.setattr(sys, "argv", ["holdfast", "webhooks", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = self._capsys.readouterr()
        return Told(int(str(ended.value.code or 0)), printed.out, printed.err)

    def read(self, *arguments: str) -> Any:
        told = self(*arguments, "--json")
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)


@pytest.fixture
def webhooks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command."""
    return Command(monkeypatch, capsys)


@pytest.fixture
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The address of a migrated database, to which the environment leads."""
    url, schema = str(tmp_path / "jobs.db"), "public"
    if request.param == "postgres":
        url, schema = request.getfixturevalue("empty_url"), "contract"
    else:
        shutil.copy(request.getfixturevalue("migrated_file"), url)
    monkeypatch.setenv("HOLDFAST_DATABASE", url)
    monkeypatch.setenv("HOLDFAST_SCHEMA_NAME", schema)
    return url


both = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
on_file = pytest.mark.parametrize("database", ["sqlite"], indirect=True)


@both
def test_a_subscription_is_made_seen_disabled_enabled_and_removed(database: str, webhooks: Command) -> None:
    url = "https://example.com/hooks"
    empty = webhooks("list")
    made = webhooks("add", url, "--event", "job:failed", "--task", "greet", "--secret", "shop")
    subscription = made.stdout.strip()
    (listed,) = webhooks.read("list")
    (off,) = webhooks.read("disable", subscription, "--why", "moving")
    line = webhooks("list").stdout
    (on,) = webhooks.read("enable", subscription)
    removed = webhooks("remove", subscription)

    assert empty.stdout == "there are no subscriptions\n"
    assert (listed["id"], listed["url"], listed["events"]) == (subscription, url, ["job:failed"])
    assert (listed["tasks"], listed["secrets"], listed["disabled_at"]) == (["greet"], ["shop"], None)
    assert (off["reason"], off["disabled_at"] is None, on["disabled_at"]) == ("moving", False, None)
    assert line == f"{subscription} {url}: job:failed of greet, signed by shop, disabled: moving\n"
    assert removed.stdout == f"removed {subscription}\n"
    assert webhooks.read("list") == []


@on_file
def test_adding_under_a_name_twice_makes_one_subscription(database: str, webhooks: Command) -> None:
    first = webhooks("add", "https://example.com/hooks", "--name", "billing").stdout
    again = webhooks("add", "https://example.org/hooks", "--name", "billing").stdout
    (listed,) = webhooks.read("list")
    line = webhooks("list").stdout
    removed = webhooks("remove", "billing")

    assert first == again
    assert (listed["name"], listed["url"]) == ("billing", "https://example.org/hooks")
    assert line.startswith(f"{first.strip()} billing https://example.org/hooks: job:completed")
    assert (removed.returncode, webhooks.read("list")) == (0, [])


@on_file
def test_deliveries_are_listed_and_delivered_once_more(database: str, webhooks: Command) -> None:
    hf = Holdfast(database)

    @hf.task(name="greet")
    async def greet() -> None:
        """Do nothing."""

    with hf.sync as face:
        chain = face.start(greet(), webhook="https://example.com/hooks")
        face.cancel(chain)
        empty_outbox(hf)
        (delivery,) = face.webhooks.deliveries()
        face.cancel(delivery.id)

    (listed,) = webhooks.read("deliveries", "--job", str(chain.id))
    (again,) = webhooks.read("redeliver", str(delivery.id), "--why", "lost")
    lines = webhooks("deliveries").stdout.splitlines()

    assert (listed["event"], listed["job"], listed["status"]) == ("job:cancelled", str(chain.id), "cancelled")
    assert again["message_id"] == str(delivery.id)
    assert len(lines) == 2
    assert lines[0] == f"{again['id']} job:cancelled of {chain.id} to https://example.com/hooks: pending after 0 tries"


@on_file
def test_what_is_wrong_is_told_in_one_line_with_its_exit_code(database: str, webhooks: Command) -> None:
    bad = webhooks("add", "http://127.0.0.1/")
    missing = webhooks("remove", str(uuid4()))
    unknown = webhooks("add", "https://example.com/", "--event", "job:dreamt")

    assert (bad.returncode, missing.returncode, unknown.returncode) == (2, 3, 2)
    assert "\nholdfast: webhooks are not sent to http://127.0.0.1/…: it is not https" in bad.stderr
    assert missing.stderr.count("\n") == unknown.stderr.count("\n") == 2  # the database, and the error


def test_a_secret_is_printed_and_new_each_time(webhooks: Command) -> None:
    one, other = webhooks("secret").stdout.strip(), webhooks("secret").stdout.strip()

    assert len(secret_key(one)) == len(secret_key(other)) == 32
    assert one != other


# the receiver


@contextmanager
def listening(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = forked.Popen(
        [COMMAND, "webhooks", "listen", "--port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        yield process, process.stderr.readline().split()[2]
    finally:
        process.kill()
        process.communicate()


def post(url: str, body: bytes, headers: dict[str, str]) -> tuple[int, str | None]:
    request = urllib.request.Request(url, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["Retry-After"]
    except urllib.error.HTTPError as error:
        with error:  # it has the answer's body open
            return error.code, error.headers["Retry-After"]


BODY = b'{"type":"job:completed","timestamp":"2026-01-01T00:00:00Z","data":{"job":{"id":"7","task":"greet"}}}'


def signed(body: bytes = BODY) -> dict[str, str]:
    return sign(body, webhook_id="abc", timestamp=wall_ms() // 1000, secrets=[SECRET])


def test_the_receiver_checks_prints_and_answers() -> None:
    with listening("--secret", SECRET, "--count", "3") as (process, url):
        status = [
            post(url, BODY, signed()),
            post(url, BODY + b" ", signed()),
            post(url, b"\x1b[2J", {"webhook-id": "\x1b[2J"}),
        ]
        printed, _ = process.communicate(timeout=20)

    assert [each for each, _ in status] == [200, 400, 400]
    assert printed.splitlines() == [
        "job:completed greet 7 webhook-id=abc signature='fits' answer=200",
        "job:completed greet 7 webhook-id=abc signature='signature' answer=400",
        "webhook-id=?[2J signature='missing' answer=400",
    ]
    assert process.returncode == 0


def test_the_receiver_answers_badly_if_asked_to() -> None:
    with listening("--answer", "429", "--retry-after", "7", "--count", "1", "--json") as (process, url):
        answer = post(url, BODY, signed())
        printed, _ = process.communicate(timeout=20)

    line = json.loads(printed)
    assert answer == (429, "7")
    assert (line["signature"], line["answer"], line["webhook_id"]) == ("not checked", 429, "abc")
    assert line["body"]["type"] == "job:completed"


def test_the_receiver_wants_a_real_secret_and_a_free_port(webhooks: Command) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = webhooks("listen", "--port", str(other.getsockname()[1]))
    bad = webhooks("listen", "--secret", "hunter2")

    assert (bad.returncode, taken.returncode) == (2, 1)
    assert "hunter2" not in bad.stderr
    assert "cannot listen on port" in taken.stderr
