"""`holdfast link` as a person runs it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from holdfast import Holdfast
from holdfast.access import hash_of, is_token
from holdfast.store import access
from tests.cli.in_process import CommandLine
from tests.support.factories import TASKS, greet

ANY_ID = "01980f00-6e1c-7000-8000-5a1c2f9e0b77"


@pytest.fixture
def chain(led_to: Holdfast) -> UUID:
    """A chain."""
    return led_to.sync.start(greet(name="Ada")).id


def test_a_link_is_alone_on_stdout_with_its_secret_behind_the_hash_sign(
    led_to: Holdfast, chain: UUID, run: CommandLine
) -> None:
    printed = run("link", "create", str(chain), "--base-url", "https://jobs.example.com/")

    address, _, secret = printed.out.removesuffix("\n").partition("#")
    assert address == "https://jobs.example.com/shared"
    assert is_token(secret)
    grant = led_to.sync.store.read_sync(access.find, hash_of(secret))
    assert grant is not None
    assert (grant.role, grant.chain, grant.payloads) == ("guest", chain, False)
    assert f"{grant.id} shows chain {chain}, without payloads; until 20" in printed.err
    assert secret not in printed.err


def test_an_id_alone_is_a_chain_that_a_link_is_made_to(led_to: Holdfast, chain: UUID, run: CommandLine) -> None:
    printed = run("link", str(chain), "--hours", "2", "--payloads")

    (made,) = led_to.sync.links.list()
    assert (made.chain, made.payloads) == (chain, True)
    assert made.expires_at is not None
    assert made.expires_at - made.created_at == timedelta(hours=2)
    assert printed.out.startswith("/shared#hf_")
    assert "put the address of your server in front of it" in printed.err


def test_links_are_listed_without_secrets_and_revoked(led_to: Holdfast, chain: UUID, run: CommandLine) -> None:
    made = run.read("link", str(chain), "--by", "Ada")
    empty = run("link", "list", "--limit", "1", "--after", made["id"]).out

    listed = run("link", "list").out
    revoked = run("link", "revoke", made["id"], "--by", "Bob", "--why", "wrong customer").out

    assert empty == "there are no links\n"
    assert listed.startswith(f"{made['id']} shows chain {chain}, without payloads; until 20")
    assert made["token"] not in listed
    assert f"{made['id']} shows chain {chain}, without payloads; revoked at 20" in revoked
    assert [(each.who, each.action) for each in led_to.sync.audit()] == [("Bob", "link.revoke"), ("Ada", "link.create")]


def test_what_is_not_there_is_an_exit_code(led_to: Holdfast, run: CommandLine) -> None:
    assert "there is no chain" in run("link", ANY_ID, code=3).err
    assert "there is no link" in run("link", "revoke", ANY_ID, code=3).err
    assert "is not an id" in run("link", "create", "my-order", code=2).err
    assert "No such command" in run("link", "my-order", code=2).err
    assert "is no address; write https://" in run("link", ANY_ID, "--base-url", "jobs.example.com", code=2).err


def test_a_link_to_a_chain_of_a_tenant_is_that_tenants(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: CommandLine
) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE", str(tmp_path / "jobs.db"))
    run("migrate")
    run("tenants", "create", "acme")
    hf = Holdfast(str(tmp_path / "jobs.db"), tenants=True, tasks=[TASKS])
    chain = hf.tenant("acme").sync.start(greet(name="Ada")).id
    hf.sync.close()

    made = run.read("link", str(chain), "--tenant", "acme")

    assert made["tenant"] == "acme"
    assert [each["id"] for each in run.read("link", "list", "--tenant", "acme")] == [made["id"]]
    assert "there is no chain" in run("link", str(chain), code=3).err
