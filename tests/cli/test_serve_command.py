"""`holdfast serve` as a person runs it: who may come in, over what, and how it stops."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Holdfast, NotMigrated
from holdfast.access import is_token
from holdfast.cli import commands
from tests.cli.in_process import CommandLine
from tests.support.factories import greet
from tests.support.processes import forked
from tests.support.sse_reader import Reader

SHOP = """
from holdfast import Holdfast

hf = Holdfast("jobs.db")

@hf.task(name="greet")
async def greet(name: str) -> str:
    return f"Hello, {name}"
"""
PUBLIC = "jobs.example.com"

in_a_process = pytest.mark.long
"""The command runs until it is stopped, so it needs a process of its own, and that takes a second or two."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: CommandLine) -> Path:
    """A folder with a shop and its database, where the command line is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_DATABASE", "jobs.db")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "jobs.py").write_text(SHOP, encoding="utf-8")
    run("migrate")
    return tmp_path


@pytest.fixture
def token(folder: Path) -> str:
    """A stored token of an operator."""
    hf = Holdfast("jobs.db").sync
    made = hf.tokens.create("ada", role="operator").token
    hf.close()
    return made


class Served:
    """The command while it runs, and what it has said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        assert process.stderr is not None
        while "serving http" not in self.said:
            line = process.stderr.readline()
            assert line, self.said
            self.said += line
        self.address = self.said.rpartition("serving ")[2].partition("/api;")[0]

    def client(self, token: str | None = None, **options: Any) -> httpx.Client:
        """Give a client of it."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(base_url=self.address, headers=headers | options.pop("headers", {}), **options)

    def get(self, path: str, token: str | None = None, **options: Any) -> httpx.Response:
        """Send one request."""
        with self.client(token, **options) as client:
            return client.get(path)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        """Tell it to stop; give its exit code, and all that it has said."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=15)
        return self.process.returncode, out, self.said + err


@contextmanager
def serving(*words: str) -> Iterator[Served]:
    """Run it in a process of its own, on a port that is free."""
    process = forked.Popen(
        [forked.COMMAND, "serve", *words, "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
    )  # fmt: skip
    try:
        yield Served(process)
    finally:
        process.kill()
        process.communicate()


EXAMPLES = [line.strip() for line in (commands.commands["serve"].help or "").splitlines() if "  holdfast serve" in line]


def test_there_are_two_examples() -> None:
    assert len(EXAMPLES) == 2


@in_a_process
@pytest.mark.parametrize("line", EXAMPLES)
def test_an_example_serves(line: str, token: str) -> None:
    with serving(*shlex.split(line)[2:]) as served:
        assert served.get("/api", token).status_code == 200
        assert served.stop()[0] == 0


@in_a_process
def test_without_a_token_it_makes_one_that_is_alone_on_stdout_and_dies_with_it(folder: Path) -> None:
    with serving() as served:
        code, out, err = served.stop(signal.SIGINT)
    secret = out.removesuffix("\n")
    assert (code, is_token(secret)) == (0, True)
    assert secret[3:20] not in err
    assert "there is no token yet; this one is an admin's" in err

    with serving() as served:
        assert served.process.stdout is not None
        own = served.process.stdout.readline().strip()
        assert served.get("/api", own).json()["who"]["role"] == "admin"
        answer = served.get("/api", secret)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")


@in_a_process
def test_a_stored_token_is_all_that_holds_where_there_is_one(token: str) -> None:
    with serving() as served:
        assert served.get("/api", token).json()["who"]["name"] == "ada"
        _, out, err = served.stop()

    assert (out, "there is no token" in err) == ("", False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_where_others_can_reach_it_and_nobody_could_log_in_it_does_not_start(
    folder: Path, run: CommandLine, host: str
) -> None:
    err = run("serve", "--host", host, code=2).err

    assert f"nobody could log in, and {host} can be reached from other machines" in err


@in_a_process
@pytest.mark.parametrize(
    ("words", "is_warned"),
    [((), True), (("--proxies", "10.0.0.0/8"), False)],
    ids=["plain", "behind a proxy"],
)
def test_it_warns_where_tokens_would_go_unencrypted(token: str, words: tuple[str, ...], is_warned: bool) -> None:
    with serving("--host", "0.0.0.0", *words) as served:
        assert served.get("/api", token).status_code == 200
        assert ("tokens go there unencrypted" in served.said) is is_warned
        assert "no --allow-host is given, so requests from other machines are refused" in served.said


@in_a_process
@pytest.mark.parametrize(
    ("network", "who"), [("127.0.0.0/8", [200, "bob", "viewer", "ada", "operator"]), ("10.0.0.0/8", [401])]
)
def test_users_are_taken_from_a_trusted_proxy_alone(folder: Path, network: str, who: list[object]) -> None:
    words = ("--proxies", network, "--proxy-user", "X-Forwarded-User", "--proxy-operators", "ada, eve")
    with serving(*words) as served:
        answers = [served.get("/api", headers={"X-Forwarded-User": name}) for name in ("bob", "ada")]

    told = [each.json()["who"] for each in answers if each.status_code == 200]
    assert [answers[0].status_code, *(each[key] for each in told for key in ("name", "role"))] == who


@pytest.fixture
def certificate(folder: Path) -> tuple[str, str]:
    """A certificate for this machine that it has signed itself, and its key."""
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *words.split(), *names, "-keyout", "key.pem", "-out", "certificate.pem"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    return "certificate.pem", "key.pem"


@in_a_process
def test_with_a_certificate_a_browser_logs_in_over_https(token: str, certificate: tuple[str, str]) -> None:
    own_page = {"Sec-Fetch-Site": "same-origin"}
    with serving("--certificate", certificate[0], "--key", certificate[1]) as served:
        assert served.address.startswith("https://")
        trusting = ssl.create_default_context(cafile=certificate[0])
        with served.client(verify=trusting, headers=own_page) as client:
            login = client.post("/api/session", json={"token": token})
            who = client.get("/api").json()["who"]

    name, _, rules = login.headers["Set-Cookie"].partition("=")
    assert (login.status_code, who["name"]) == (204, "ada")
    assert name.startswith("__Host-holdfast-")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=Strict"} <= {each.strip() for each in rules.split(";")}
    assert login.headers["Strict-Transport-Security"] == "max-age=31536000"


@in_a_process
def test_a_browser_elsewhere_does_not_log_in_over_plain_http(token: str) -> None:
    headers = {"Host": PUBLIC, "Sec-Fetch-Site": "same-origin"}
    with serving("--allow-host", PUBLIC) as served, served.client(headers=headers) as client:
        answer = client.post("/api/session", json={"token": token})

    assert (answer.status_code, answer.json()["code"]) == (403, "https_required")
    assert "Strict-Transport-Security" not in answer.headers


@in_a_process
def test_a_host_that_is_not_named_is_not_served(token: str) -> None:
    with serving("--allow-host", PUBLIC) as served:
        codes = [served.get("/api", token, headers={"Host": host}).status_code for host in (PUBLIC, "evil.test")]

    assert codes == [200, 421]


@in_a_process
def test_a_stop_ends_streams_at_once_and_they_know_when_to_come_back(token: str) -> None:
    reader = Reader()
    with serving() as served, served.client(token) as client:
        with client.stream("GET", "/api/events") as response:
            pieces = response.iter_bytes()
            assert reader.feed(next(pieces))[0].event == "snapshot"

            served.process.send_signal(signal.SIGTERM)

            assert [message.event for piece in pieces for message in reader.feed(piece)] == []
        code, _, err = served.stop()
    assert (code, reader.retry_ms is not None) == (0, True)
    assert err.count("\n") == 2, err  # the database and the address, no complaint


@in_a_process
def test_tenants_are_served_if_it_is_told_to(folder: Path, run: CommandLine) -> None:
    run("tenants", "create", "acme")
    secret = run("token", "create", "ada", "--tenant", "acme").out.strip()

    with serving("--tenants") as served:
        assert served.get("/t/acme/api", secret).json()["tenant"] == "acme"


def test_a_port_that_is_in_use_is_one_line(token: str, run: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        err = run("serve", "--port", port, code=2).err

    assert f"holdfast: cannot listen on 127.0.0.1, port {port}: Address already in use" in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("shop.nothing:hf",), "shop.nothing"),
        (("shop",), "e.g. `holdfast serve shop:hf`"),
        (("jobs.db",), "this is a database; give it as --database"),
        (("postgresql://localhost/jobs",), "this is a database; give it as --database"),
        (("shop.jobs:hf", "--tenants"), "APP has its own database"),
        (("--certificate", "jobs.db"), "--certificate and --key go together"),
        (("--certificate", "jobs.db", "--key", "jobs.db"), "the certificate or its key cannot be used"),
        (("--proxy-user", "X-Forwarded-User"), "--proxy-user needs --proxies"),
        (("--proxy-operators", "ada"), "--proxy-operators needs --proxy-user"),
        (("--proxies", "everywhere"), "proxies: "),
        (("--allow-host", "https://jobs.example.com"), "write it without scheme and port"),
        (("--origin", "app.example.com"), "write https://app.example.com"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_what_cannot_be_is_refused_before_anything_is_served(
    token: str, run: CommandLine, words: tuple[str, ...], said: str
) -> None:
    err = run("serve", *words, code=2).err

    assert said in err
    assert "serving" not in err


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path, run: CommandLine) -> None:
    missing = tmp_path / "missing.db"

    assert "there is no database file" in run("serve", "--database", str(missing), code=NotMigrated.exit_code).err
    assert not missing.exists()


@pytest.mark.long  # it asks again until its deadline
def test_a_database_that_is_not_there_is_one_line(tmp_path: Path, run: CommandLine) -> None:
    err = run("serve", "--database", "postgresql://nobody@127.0.0.1:1/nowhere", code=5).err

    assert len(err.splitlines()) == 2, err


@in_a_process
def test_it_serves_either_database(led_to: Holdfast) -> None:
    secret = led_to.sync.tokens.create("ada", role="operator").token
    job = led_to.sync.start(greet(name="Ada")).id

    with serving() as served, served.client(secret) as client:
        assert client.post(f"/api/jobs/{job}/cancel", json={"why": "no stock"}).status_code == 200
        assert served.stop()[0] == 0

    assert [(each.who, each.why) for each in led_to.sync.audit() if each.action == "cancel"] == [("ada", "no stock")]


@in_a_process
def test_no_answer_waits_for_the_clients_word_that_it_has_the_head(token: str) -> None:
    """A client may hold that back for 40 ms, and then each request on a kept connection takes as long."""
    with serving() as served, served.client(token) as client:
        seconds = sorted(client.get("/api").elapsed.total_seconds() for _ in range(31))

    assert seconds[15] < 0.035
