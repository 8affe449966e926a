"""`holdfast token` as a person runs it."""

from __future__ import annotations

import getpass
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.access import hash_of, is_token
from holdfast.store import access
from tests.cli.in_process import CommandLine

ANY_ID = "01980f00-6e1c-7000-8000-5a1c2f9e0b77"


def test_a_new_token_is_alone_on_stdout_so_that_a_script_can_take_it(led_to: Holdfast, run: CommandLine) -> None:
    printed = run("token", "create", "deploy", "--role", "operator")

    secret = printed.out.removesuffix("\n")
    assert is_token(secret)
    grant = led_to.sync.store.read_sync(access.find, hash_of(secret))
    assert grant is not None
    assert (grant.name, grant.role, grant.payloads, grant.expires_at) == ("deploy", "operator", True, None)
    assert f"{grant.id} deploy: operator; never expires, not used yet; keep the token now" in printed.err
    assert secret not in printed.err


def test_a_token_may_expire_and_show_no_payloads(led_to: Holdfast, run: CommandLine) -> None:
    made = run.read("token", "create", "ada", "--days", "1.5", "--no-payloads")

    (info,) = led_to.sync.tokens.list()
    assert (made["id"], made["role"], made["payloads"]) == (str(info.id), "viewer", False)
    assert info.expires_at is not None
    assert info.expires_at - info.created_at == timedelta(hours=36)
    assert is_token(made["token"])


def test_tokens_are_listed_newest_first_page_by_page(led_to: Holdfast, run: CommandLine) -> None:
    made = [led_to.sync.tokens.create(name).info for name in ("ada", "bob", "eve")]

    first = run("token", "list", "--limit", "2")
    cursor = first.err.partition("--after ")[2].strip()
    assert [line.split()[1] for line in first.out.splitlines()] == ["eve:", "bob:"]
    assert [each["id"] for each in run.read("token", "list", "--after", cursor)] == [str(made[0].id)]


def test_a_list_has_no_secret(led_to: Holdfast, run: CommandLine) -> None:
    secret = led_to.sync.tokens.create("ada").token

    for options in ((), ("--json",)):
        out, err = run("token", "list", *options)
        assert secret[3:20] not in out + err
        assert hash_of(secret) not in out + err


def test_a_list_of_none_says_so(led_to: Holdfast, run: CommandLine) -> None:
    assert run("token", "list").out == "there are no tokens\n"


def test_a_token_is_revoked_by_its_id(led_to: Holdfast, run: CommandLine) -> None:
    info = led_to.sync.tokens.create("ada").info

    out, _ = run("token", "revoke", str(info.id))

    (now,) = led_to.sync.tokens.list()
    assert now.revoked_at is not None
    assert out.startswith(f"{info.id} ada: viewer; revoked at 20")
    assert "there is no token" in run("token", "revoke", ANY_ID, code=3).err


def test_the_audit_names_the_login_and_the_machine_unless_another_is_said(led_to: Holdfast, run: CommandLine) -> None:
    made = run.read("token", "create", "ada", "--why", "first day")
    run("token", "revoke", made["id"], "--by", "Bob", "--why", "lost laptop")

    login = f"{getpass.getuser()}@{socket.gethostname()}"
    assert made["created_by"] == login
    revoked, created = led_to.sync.audit().items
    assert (created.who, created.action, created.subject, created.why) == (
        login,
        "token.create",
        made["id"],
        "first day",
    )
    assert (revoked.who, revoked.action, revoked.why) == ("Bob", "token.revoke", "lost laptop")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("create", "ada", "--role", "guest"), "'guest' is not one of"),
        (("create", "ada", "--days", "-1"), "expires must be"),
        (("create", ""), "name must be"),
        (("revoke", "ada"), "'ada' is not an id"),
        (("list", "--after", "x"), "this cursor is not one of this list"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_what_cannot_be_is_refused(led_to: Holdfast, run: CommandLine, given: tuple[str, ...], said: str) -> None:
    assert said in run("token", *given, code=2).err


def test_tokens_of_tenants_are_made_and_listed_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: CommandLine
) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE", str(tmp_path / "jobs.db"))
    run("migrate")
    run("tenants", "create", "acme")

    made = {name: run.read("token", "create", "ada", "--tenant", name)["id"] for name in ("acme", "*")}

    assert [each["id"] for each in run.read("token", "list", "--tenant", "acme")] == [made["acme"]]
    assert {each["id"]: each["tenant"] for each in run.read("token", "list")} == {made["acme"]: "acme", made["*"]: "*"}
    assert "there is no tenant 'zeta'" in run("token", "create", "ada", "--tenant", "zeta", code=3).err
    assert f"{made['*']} ada: viewer of all tenants; never expires" in run("token", "list").out
    run("token", "revoke", made["acme"])
