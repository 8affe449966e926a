"""Sessions of browsers: what their cookies are, and when they end (S-04, S-23)."""

from __future__ import annotations

from hmac import compare_digest

import httpx
import pytest

from holdfast import Holdfast
from holdfast.access import hash_of, make_token
from holdfast.database.tx import Tx
from holdfast.http import asgi, identity
from holdfast.store import access
from tests.http.security.asking import SAME_SITE, browser, log_in
from tests.support.conditions import until
from tests.support.factories import greet

HOUR_MS = 3_600_000


async def make(hf: Holdfast, role: str = "viewer") -> str:
    """Make a token."""
    return (await hf.tokens.create("ada", role=role)).token


def said(answer: httpx.Response) -> tuple[str, str, set[str]]:
    """Give the name of the cookie that an answer sets, its value, and its rules."""
    first, *rules = answer.headers["set-cookie"].split("; ")
    name, _, value = first.partition("=")
    return name, value, set(rules)


async def test_the_cookie_of_a_session_is_for_this_site_and_for_no_script(hf: Holdfast) -> None:
    async with browser(asgi(hf)) as client:
        answer = await log_in(client, await make(hf))
    name, value, rules = said(answer)

    assert (answer.status_code, answer.content, answer.headers["cache-control"]) == (204, b"", "no-store")
    assert name == f"holdfast-{hash_of(await hf._identity() or '')[:8]}"
    assert len(value) == 52
    assert rules == {"Path=/", "HttpOnly", "SameSite=Strict", "Max-Age=86400"}


async def test_over_tls_no_sibling_can_set_the_cookie(hf: Holdfast) -> None:
    headers = {**SAME_SITE, "X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.9"}
    app = asgi(hf, proxies=["10.0.0.1"], hosts=["jobs.example.com"])
    async with browser(app, "jobs.example.com", ("10.0.0.1", 1)) as client:
        answer = await client.post("/api/session", json={"token": await make(hf)}, headers=headers)
    name, _, rules = said(answer)

    assert name.startswith("__Host-holdfast-")
    assert rules == {"Path=/", "HttpOnly", "SameSite=Strict", "Secure", "Max-Age=86400"}
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


@pytest.mark.parametrize(("host", "peer"), [("jobs.example.com", "127.0.0.1"), ("localhost", "192.0.2.9")])
async def test_nobody_is_given_a_cookie_in_the_clear(hf: Holdfast, host: str, peer: str) -> None:
    token = await make(hf)
    async with browser(asgi(hf, hosts=["jobs.example.com"]), host, (peer, 1)) as client:
        answer = await log_in(client, token)
        bearer = await client.get("/api", headers={"Authorization": f"Bearer {token}"})

    assert (answer.status_code, answer.json()["code"]) == (403, "https_required")
    assert "set-cookie" not in answer.headers
    assert bearer.status_code == 200


async def test_each_login_is_a_session_of_its_own_and_dead_after_logout(hf: Holdfast) -> None:
    token = await make(hf)
    async with browser(asgi(hf)) as client, browser(asgi(hf)) as other:
        one, two = [said(await log_in(client, token))[:2] for _ in range(2)]
        other.cookies.set(*one)
        await client.delete("/api/session", headers=SAME_SITE)
        ended = [await client.get("/api", headers={"Cookie": "=".join(two)})]
        lives = await other.get("/api")
        gone = await other.delete("/api/session", headers=SAME_SITE)
        other.cookies.set(*one)
        ended.append(await other.get("/api"))

    assert one != two
    assert lives.status_code == 200
    assert said(gone)[1:] == ("", {"Path=/", "HttpOnly", "SameSite=Strict", "Max-Age=0"})
    assert [each.status_code for each in ended] == [401, 401]


@pytest.mark.parametrize(
    ("column", "hours", "status"),
    [("seen_at", 7.9, 200), ("seen_at", 8.1, 401), ("created_at", 23.9, 200), ("created_at", 24.1, 401)],
)
async def test_a_session_ends_8_hours_after_its_last_use_and_24_after_its_first(
    hf: Holdfast, column: str, hours: float, status: int
) -> None:
    async with browser(asgi(hf)) as client, browser(asgi(hf)) as later:
        await log_in(client, await make(hf))
        await hf.store.run(_age, column, round(hours * HOUR_MS))
        later.cookies.update(client.cookies)

        assert (await later.get("/api")).status_code == status


async def _age(tx: Tx, column: str, ms: int) -> None:
    await tx.execute(f"UPDATE holdfast_session SET {column} = {column} - :ms", ms=ms)


async def test_a_session_ends_with_its_token(hf: Holdfast) -> None:
    made = await hf.tokens.create("ada")
    async with browser(asgi(hf)) as client, browser(asgi(hf)) as later:
        await log_in(client, made.token)
        await hf.tokens.revoke(made.info.id)
        later.cookies.update(client.cookies)

        assert (await later.get("/api")).status_code == 401


async def test_a_token_that_is_revoked_is_refused_within_five_seconds(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S-02."""
    assert identity.KEPT_SECONDS <= 5
    monkeypatch.setattr(identity, "KEPT_SECONDS", 0.05)
    chain = await hf.start(greet(name="Ada"))
    made, link = await hf.tokens.create("ada"), await hf.links.create(chain)
    async with browser(asgi(hf)) as client:

        async def statuses() -> list[int]:
            found = [
                await client.get("/api", headers={"Authorization": f"Bearer {each.token}"}) for each in (made, link)
            ]
            return [each.status_code for each in found]

        before = await statuses()
        await hf.tokens.revoke(made.info.id)
        await hf.links.revoke(link.link.id)

        async def is_seen() -> bool:
            return await statuses() == [401, 401]

        await until(is_seen, "both are refused")

    assert before == [200, 200]


async def test_secrets_are_compared_in_a_time_that_tells_nothing(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-02."""
    compared: list[tuple[str, str]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return compare_digest(one, other)

    own, token = make_token(7), await make(hf)
    for module in (access, identity):
        monkeypatch.setattr(module, "compare_digest", compare)
    async with browser(asgi(hf, tokens=[own])) as client:
        for each in (own, token):
            answer = await client.get("/api", headers={"Authorization": f"Bearer {each}"})
            assert answer.status_code == 200

    assert {hash_of(own), hash_of(token)} <= {one for one, other in compared if one == other}


@pytest.mark.parametrize("token", ["", "hf_", "hf_none", "x" * 1_000, "\x00", "•", "hf_" + "0" * 49])
async def test_what_is_no_token_opens_no_session(hf: Holdfast, token: str) -> None:
    async with browser(asgi(hf)) as client:
        answer = await log_in(client, token)

    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert token not in answer.text or not token


async def test_secrets_stand_in_the_one_answer_that_gives_them_and_nowhere_else(
    hf: Holdfast, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    admin = await make(hf, "admin")
    chain = await hf.start(greet(name="Ada"))
    async with browser(asgi(hf)) as client:
        session = said(await log_in(client, admin))[1]
        made = await client.post("/api/tokens", json={"name": "new"}, headers=SAME_SITE)
        link = await client.post(f"/api/chains/{chain.id}/links", json={}, headers=SAME_SITE)
        secrets = {admin, session, made.json()["token"], link.json()["url"].partition("#")[2]}
        read = [await client.get(f"/api{each}") for each in ("", "/tokens", "/links", "/audit", "/events.json")]
        read.append(await log_in(client, made.json()["token"][:-1]))
    told = [each.text for each in read] + [str(each.headers) for each in read]
    told += [repr(each) for each in (await hf.tokens.create("x"), await hf.links.create(chain), made.headers)]
    told += [tables := await _dump(hf), caplog.text, *capfd.readouterr()]

    assert {len(each) for each in secrets} == {52}
    assert [secret for secret in secrets if any(secret in each for each in told)] == []
    assert link.json()["url"].startswith("http://localhost/")
    assert hash_of(admin) in tables  # so it was looked at where tokens are


async def _dump(hf: Holdfast) -> str:
    tables = ("token", "session", "audit", "job", "event", "journal", "phase")
    return "".join([repr(await hf.store.read(_rows, table)) for table in tables])


async def _rows(tx: Tx, table: str) -> list[object]:
    return list(await tx.fetch_all(f"SELECT * FROM holdfast_{table}"))
