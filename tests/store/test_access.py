"""Tokens, links and sessions: made, found by hash alone, over, and forgotten. S-02, S-04, S-23."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import ChainNotFound, InvalidId, InvalidInput, UsageError
from holdfast.access import Role, hash_of, is_token, make_token
from holdfast.database.dialect import TABLES
from holdfast.errors import LinkNotFound, TokenNotFound
from holdfast.store import access
from tests.support.database_clock import DatabaseClock
from tests.support.factories import make_job
from tests.support.ways import WAYS, Awaitable, Way

pytestmark = pytest.mark.parametrize("way", WAYS, indirect=True)
"""Where there are no tenants; tests/tenants/test_access.py has the rest."""

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
MINUTE, HOUR, DAY = 60, 3600, 86_400


def tokens(way: Way) -> Any:
    """The handle of tokens, whose every method is awaited."""
    return way.hf.tokens if way.is_async else Awaitable(way.hf.sync.tokens)


def links(way: Way) -> Any:
    """The handle of links, whose every method is awaited."""
    return way.hf.links if way.is_async else Awaitable(way.hf.sync.links)


@pytest.fixture
def clock(way: Way) -> DatabaseClock:
    """The clock of the way's database, at noon."""
    return DatabaseClock(way.hf, round(NOON.timestamp() * 1000))


async def found(way: Way, token: str) -> access.Grant:
    """Give what a token or a link leads to."""
    grant = await way.read(access.find, hash_of(token))
    assert grant is not None
    return grant


async def test_a_token_that_was_made_is_found_by_its_hash(way: Way, clock: DatabaseClock) -> None:
    made = await tokens(way).create("deploy", role="operator", payloads=False, expires=90, by="Ada")

    assert is_token(made.token)
    assert (made.info.name, made.info.role, made.info.payloads) == ("deploy", Role.OPERATOR, False)
    assert (made.info.created_at, made.info.created_by, made.info.tenant) == (NOON, "Ada", None)
    assert made.info.expires_at == NOON + timedelta(seconds=90)
    grant = await found(way, made.token)
    assert grant[:6] == (made.info.id, "deploy", Role.OPERATOR, None, None, False)
    assert (grant.expires_at, grant.problem, grant.is_noted) == (made.info.expires_at, "", False)


async def test_a_token_is_a_viewer_that_never_expires_unless_it_is_said(way: Way) -> None:
    info = (await tokens(way).create("ada")).info

    assert (info.role, info.payloads, info.expires_at, info.revoked_at, info.used_at) == (
        Role.VIEWER,
        True,
        None,
        None,
        None,
    )


async def test_each_token_is_another(way: Way) -> None:
    made = [await tokens(way).create("ada") for _ in range(3)]

    assert len({each.token for each in made}) == len({each.info.id for each in made}) == 3


async def test_the_hash_of_a_stranger_leads_to_nothing(way: Way) -> None:
    await tokens(way).create("ada")

    assert await way.read(access.find, hash_of(make_token(7))) is None
    assert await way.read(access.find_session, hash_of(make_token(7))) is None


async def test_hashes_are_compared_in_constant_time(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await tokens(way).create("ada")
    session = await open_session(way, made.info.id)

    monkeypatch.setattr(access, "compare_digest", lambda *_: False)

    assert await way.read(access.find, hash_of(made.token)) is None
    assert await way.read(access.find_session, session) is None


async def test_a_token_expires_by_the_clock_of_the_database(way: Way, clock: DatabaseClock) -> None:
    made = await tokens(way).create("ada", expires=timedelta(minutes=1))

    clock.step(59.999)
    assert (await found(way, made.token)).problem == ""
    clock.step(0.001)
    assert (await found(way, made.token)).problem == "expired"


async def test_a_revoked_token_says_so_and_stays_revoked_since_the_first_time(way: Way, clock: DatabaseClock) -> None:
    made = await tokens(way).create("ada", expires=60)

    revoked = await tokens(way).revoke(made.info.id)
    clock.step(120)

    assert revoked.revoked_at == NOON
    assert (await found(way, made.token)).problem == "revoked"
    assert (await tokens(way).revoke(str(made.info.id))) == revoked


async def test_what_is_not_there_cannot_be_revoked(way: Way) -> None:
    chain = await make_job(way)
    token, link = await tokens(way).create("ada"), await links(way).create(chain)

    with pytest.raises(TokenNotFound, match="holdfast token list"):
        await tokens(way).revoke(uuid4())
    with pytest.raises(TokenNotFound):
        await tokens(way).revoke(link.link.id)
    with pytest.raises(LinkNotFound):
        await links(way).revoke(token.info.id)
    with pytest.raises(InvalidId):
        await tokens(way).revoke("ada")


async def test_a_secret_in_the_place_of_an_id_is_refused_without_showing_it(way: Way) -> None:
    made = await tokens(way).create("ada")

    with pytest.raises(InvalidInput, match="this is the secret of a token; give its id") as refused:
        await tokens(way).revoke(made.token)
    assert made.token not in str(refused.value)
    assert (await tokens(way).revoke(made.info.id)).revoked_at is not None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": ""}, "name must be a text of 1 to 100"),
        ({"name": "x" * 101}, "name must be a text of 1 to 100"),
        ({"name": "two\nlines"}, "name must be a text of 1 to 100"),
        ({"role": "guest"}, "make a link to one chain instead"),
        ({"role": "vewer"}, "there is no role 'vewer'; did you mean viewer"),
        ({"role": None}, "there is no role None; write 'viewer'"),
        ({"expires": 0}, "expires must be seconds from now or a timedelta"),
        ({"expires": timedelta(days=-1)}, "expires must be"),
        ({"expires": float("nan")}, "expires must be"),
        ({"expires": True}, "expires must be"),
        ({"expires": NOON}, "expires must be"),
        ({"payloads": "no"}, "payloads must be True or False"),
        ({"tenant": "acme"}, "this Holdfast has no tenants"),
        ({"tenant": "*"}, "this Holdfast has no tenants"),
        ({"by": 7}, "by must be a text"),
    ],
    ids=str,
)
async def test_what_a_token_cannot_be_is_refused(way: Way, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        await tokens(way).create(**{"name": "ada", **given})

    assert (await tokens(way).list()).items == ()


async def test_a_link_shows_its_chain_for_a_day_and_without_payloads(way: Way, clock: DatabaseClock) -> None:
    chain = await make_job(way)

    made = await links(way).create(chain, by="Ada")

    assert (made.link.chain, made.link.payloads, made.link.created_by) == (chain, False, "Ada")
    assert made.link.expires_at == NOON + timedelta(hours=24)
    grant = await found(way, made.token)
    assert (grant.role, grant.chain, grant.payloads, grant.problem) == (Role.GUEST, chain, False, "")
    clock.step(DAY)
    assert (await found(way, made.token)).problem == "expired"


async def test_a_link_by_a_job_shows_the_chain_of_the_job(way: Way) -> None:
    chain = await make_job(way)
    (job,) = (await way.face.list_chain_jobs(chain)).items

    made = await links(way).create(job, hours=0.5, payloads=True)

    assert (made.link.chain, made.link.payloads) == (chain, True)
    assert made.link.expires_at - made.link.created_at == timedelta(minutes=30)


async def test_a_link_to_nothing_is_refused(way: Way) -> None:
    with pytest.raises(ChainNotFound):
        await links(way).create(uuid4())
    with pytest.raises(InvalidId):
        await links(way).create("my order")


@pytest.mark.parametrize("hours", [0, -1, 8761, float("inf"), "24", True], ids=str)
async def test_a_link_holds_for_some_hours_up_to_a_year(way: Way, hours: Any) -> None:
    with pytest.raises(InvalidInput, match="hours must be a number above 0 and at most 8,760"):
        await links(way).create(await make_job(way), hours=hours)


async def test_the_secret_of_a_link_stands_behind_the_hash_sign(way: Way) -> None:
    made = await links(way).create(await make_job(way))

    assert made.url("https://jobs.example.com/") == f"https://jobs.example.com/shared#{made.token}"


async def test_tokens_and_links_are_listed_apart_newest_first_page_by_page(way: Way) -> None:
    chain = await make_job(way)
    made, linked = [], []
    for n in range(5):
        made.append((await tokens(way).create(f"token {n}")).info)
        linked.append((await links(way).create(chain)).link)

    assert await pages(tokens(way).list) == made[::-1]
    assert await pages(links(way).list) == linked[::-1]


async def pages(list_page: Callable[..., Any]) -> list[Any]:
    """List all, two at a time."""
    page, everything = await list_page(limit=2), []
    while True:
        everything += page.items
        if page.next_cursor is None:
            return everything
        assert len(page.items) == 2
        page = await list_page(limit=2, cursor=page.next_cursor)


async def test_a_cursor_of_another_list_is_refused(way: Way) -> None:
    with pytest.raises(UsageError, match="this cursor is not one of this list"):
        await tokens(way).list(cursor="bmV3ZXN0OjU")


async def test_no_secret_is_in_the_database_or_in_a_repr(way: Way) -> None:
    chain = await make_job(way)
    token, link = await tokens(way).create("ada"), await links(way).create(chain)
    await way.call(access.open_session, hash_of("the secret of a cookie"), token.info.id)

    everything = repr([await way.rows(f"SELECT * FROM holdfast_{name}") for name in TABLES])
    assert hash_of(token.token) in everything
    for secret in (token.token, link.token, "the secret of a cookie"):
        assert secret not in everything
        assert secret[3:20] not in f"{everything}{token!r}{link!r}{token}{link}{await tokens(way).list()}"


# sessions


async def open_session(way: Way, token_id: UUID, secret: str = "cookie") -> str:
    """Open a session; give the hash of its secret."""
    await way.call(access.open_session, hash_of(secret), token_id)
    return hash_of(secret)


async def test_a_session_has_the_rights_of_its_token(way: Way) -> None:
    made = await tokens(way).create("ada", role="admin", payloads=False)
    session = await open_session(way, made.info.id)

    grant = await way.read(access.find_session, session)
    assert grant is not None
    assert grant._replace(is_noted=False) == await found(way, made.token)


async def test_a_session_of_a_revoked_token_says_so(way: Way) -> None:
    made = await tokens(way).create("ada")
    session = await open_session(way, made.info.id)

    await tokens(way).revoke(made.info.id)

    grant = await way.read(access.find_session, session)
    assert grant is not None
    assert grant.problem == "revoked"


async def test_a_session_that_was_ended_is_over_and_no_other(way: Way) -> None:
    made = await tokens(way).create("ada")
    session, other = await open_session(way, made.info.id), await open_session(way, made.info.id, "other")

    for _ in range(2):
        await way.call(access.end_session, session)

    assert await way.read(access.find_session, session) is None
    assert await way.read(access.find_session, other) is not None


async def test_a_session_is_over_after_eight_hours_without_use(way: Way, clock: DatabaseClock) -> None:
    session = await open_session(way, (await tokens(way).create("ada")).info.id)

    clock.step(8 * HOUR - 1)
    assert await way.read(access.find_session, session) is not None
    clock.step(1)
    assert await way.read(access.find_session, session) is None


async def test_a_session_is_over_after_a_day_however_it_is_used(way: Way, clock: DatabaseClock) -> None:
    token = (await tokens(way).create("ada")).info.id
    session = await open_session(way, token)

    for _ in range(23):
        clock.step(HOUR)
        await way.call(access.note_use, token, session)
        assert await way.read(access.find_session, session) is not None
    clock.step(HOUR)

    assert await way.read(access.find_session, session) is None


async def test_use_is_written_down_once_in_five_minutes(way: Way, clock: DatabaseClock) -> None:
    made = await tokens(way).create("ada")
    session, noted = await open_session(way, made.info.id), []

    for _ in range(4):
        await way.call(access.note_use, made.info.id, session)
        ((used,),) = await way.rows("SELECT used_at FROM holdfast_token")
        ((seen,),) = await way.rows("SELECT seen_at FROM holdfast_session")
        assert used == seen
        noted.append((used / 1000 - NOON.timestamp()) / MINUTE)
        clock.step(2 * MINUTE)

    assert noted == [0, 0, 0, 6]


async def test_what_is_found_tells_whether_its_use_is_to_be_noted(way: Way, clock: DatabaseClock) -> None:
    made = await tokens(way).create("ada")
    await way.call(access.note_use, made.info.id)

    assert (await found(way, made.token)).is_noted
    clock.step(5 * MINUTE + 1)
    assert not (await found(way, made.token)).is_noted
    session = await open_session(way, made.info.id)
    await way.call(access.note_use, made.info.id)
    clock.step(4 * MINUTE)
    grant = await way.read(access.find_session, session)
    assert grant is not None
    assert grant.is_noted


async def test_a_token_that_holds_is_told_from_links_and_from_what_is_over(way: Way, clock: DatabaseClock) -> None:
    assert not await way.read(access.has_token)
    await links(way).create(await make_job(way))
    revoked = await tokens(way).create("ada")
    await tokens(way).revoke(revoked.info.id)
    await tokens(way).create("bob", expires=60)
    assert await way.read(access.has_token)

    clock.step(60)
    assert not await way.read(access.has_token)


# what is over is forgotten


async def test_what_has_been_over_for_thirty_days_is_forgotten(way: Way, clock: DatabaseClock) -> None:
    chain = await make_job(way)
    kept = await tokens(way).create("for ever")
    expired, revoked = await tokens(way).create("for a minute", expires=MINUTE), await tokens(way).create("revoked")
    link = await links(way).create(chain)
    await tokens(way).revoke(revoked.info.id)
    await open_session(way, kept.info.id)

    clock.step(DAY - 1)
    await way.face.retain()
    assert len(await way.rows("SELECT hash FROM holdfast_session")) == 1
    clock.step(1)
    await way.face.retain()
    assert await way.rows("SELECT hash FROM holdfast_session") == []
    clock.step(29 * DAY - 1)
    await way.face.retain()
    assert {each.id for each in (await tokens(way).list()).items} == {kept.info.id, expired.info.id, revoked.info.id}
    clock.step(MINUTE + 1)
    await way.face.retain()
    assert [each.id for each in (await tokens(way).list()).items] == [kept.info.id]
    assert [each.id for each in (await links(way).list()).items] == [link.link.id]
    clock.step(DAY)
    await way.face.retain()
    assert (await links(way).list()).items == ()


async def test_it_is_forgotten_in_pieces(way: Way, clock: DatabaseClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MOST_DELETED", 2)
    for n in range(5):
        await tokens(way).create(f"token {n}", expires=1)
    clock.step(31 * DAY)

    old = await way.read(access.find_old)
    await way.call(access.delete_old, old)
    assert len(old.tokens) == 2
    assert len((await tokens(way).list()).items) == 3
    await way.face.retain()
    assert (await tokens(way).list()).items == ()


async def test_a_dry_run_of_retention_forgets_none(way: Way, clock: DatabaseClock) -> None:
    await tokens(way).create("ada", expires=1)
    clock.step(31 * DAY)

    await way.face.retain(dry_run=True)

    assert len((await tokens(way).list()).items) == 1
