"""Tokens, links and sessions: who may use the HTTP API. They stand in the control place; secrets only as hashes.

A link is a token of the role `guest` with a chain. A session is what a browser has in place of its token: the id in its
cookie leads to the token or link, whose rights it has for as long as both hold.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from hmac import compare_digest
from typing import NamedTuple, TypeVar
from uuid import UUID

from holdfast.access import ALL_TENANTS, Link, Role, TokenInfo
from holdfast.database.tx import Row, Tx, repeatable
from holdfast.errors import LinkNotFound, TenantNotFound, TokenNotFound, UsageError
from holdfast.models import Page
from holdfast.store.reads import Paging
from holdfast.store.rows import instant, maybe_instant
from holdfast.unreadable import readable, reading

T = TypeVar("T")

IDLE_MS, WHOLE_MS = 8 * 3_600_000, 24 * 3_600_000
"""How long a session holds without being used, and in all."""
NOTED_MS = 300_000
"""How seldom it is written down that a token or a session is used."""
KEPT_MS = 30 * 86_400_000
"""How long tokens and links stay in lists once they are over."""
MOST_DELETED = 1_000

COLUMNS = "id, name, role, tenant, chain, payloads, created_at, created_by, expires_at, revoked_at, used_at"


class NewGrant(NamedTuple):
    """A token or a link to be made; *chain* makes it a link, *expires_ms* is from now."""

    id: UUID
    hash: str
    name: str
    role: Role
    tenant: str | None
    payloads: bool
    created_by: str | None
    expires_ms: int | None = None
    chain: UUID | None = None


ADD = """
    INSERT INTO holdfast_token (id, hash, name, role, tenant, chain, payloads, created_at, created_by, expires_at)
    VALUES (:id, :hash, :name, :role, :tenant, :chain, :payloads, $now, :created_by,
        $now + CAST(:expires_ms AS bigint))
    ON CONFLICT DO NOTHING"""
ONE = f"""SELECT {COLUMNS} FROM holdfast_token WHERE id = :id"""
# who drops the tenant has its row locked: what is made meanwhile would be left for another tenant of its name
TENANT = """SELECT name FROM holdfast_tenant WHERE name = :name $locked"""


@repeatable
async def add_token(tx: Tx, new: NewGrant) -> TokenInfo:
    """Make a token; or raise `TenantNotFound`."""
    return _read_token(await _add(tx, new))


@repeatable
async def add_link(tx: Tx, new: NewGrant) -> Link:
    """Make a link; or raise `TenantNotFound`."""
    return _read_link(await _add(tx, new))


async def _add(tx: Tx, new: NewGrant) -> Row:
    if new.tenant not in (None, ALL_TENANTS) and not await tx.fetch_all(TENANT, name=new.tenant):
        raise TenantNotFound(new.tenant)
    values = new._asdict() | {
        "id": str(new.id),
        "role": str(new.role),
        "payloads": int(new.payloads),
        "chain": None if new.chain is None else str(new.chain),
    }
    await tx.execute(ADD, **values)
    (row,) = await tx.fetch_all(ONE, id=str(new.id))
    return row


PAGE = "id < :before ORDER BY id DESC LIMIT :most"
TOKENS = f"""SELECT {COLUMNS} FROM holdfast_token WHERE chain IS NULL AND {PAGE}"""
TOKENS_OF = f"""SELECT {COLUMNS} FROM holdfast_token WHERE chain IS NULL AND tenant = :tenant AND {PAGE}"""
LINKS = f"""SELECT {COLUMNS} FROM holdfast_token WHERE chain IS NOT NULL AND {PAGE}"""
LINKS_OF = f"""SELECT {COLUMNS} FROM holdfast_token WHERE chain IS NOT NULL AND tenant = :tenant AND {PAGE}"""
BEHIND_ALL = "g"  # what comes after every id


async def list_tokens(tx: Tx, tenant: str | None, paging: Paging) -> Page[TokenInfo]:
    """List tokens, newest first; those of *tenant* only, unless that is None."""
    return await _list(tx, TOKENS if tenant is None else TOKENS_OF, tenant, paging, _read_token)


async def list_links(tx: Tx, tenant: str | None, paging: Paging) -> Page[Link]:
    """List links, newest first; those of *tenant* only, unless that is None."""
    return await _list(tx, LINKS if tenant is None else LINKS_OF, tenant, paging, _read_link)


async def _list(tx: Tx, sql: str, tenant: str | None, paging: Paging, read: Callable[[Row], T]) -> Page[T]:
    of_whom = {} if tenant is None else {"tenant": tenant}
    before = BEHIND_ALL if paging.cursor is None else _read_cursor(paging.cursor)
    rows = await tx.fetch_all(sql, before=before, most=paging.limit + 1, **of_whom)
    shown = rows[: paging.limit]
    return Page(tuple(readable(shown, read)), shown[-1][0] if len(rows) > len(shown) else None)


def _read_cursor(cursor: str) -> str:
    try:
        return str(UUID(cursor))
    except (ValueError, AttributeError, TypeError):
        raise UsageError("this cursor is not one of this list; take next_cursor of the page before") from None


# whoever stands in a tenant revokes only what is its own; an empty text stands for who may revoke all. With plain
# columns the planner would weigh three indexes for one row
MINE = "CAST(:tenant AS text) IN ('', coalesce(tenant, ''))"
REVOKE = "UPDATE holdfast_token SET revoked_at = coalesce(revoked_at, $now) WHERE id = :id"
REVOKE_TOKEN = f"""{REVOKE} AND coalesce(chain, '') = '' AND {MINE} RETURNING {COLUMNS}"""
REVOKE_LINK = f"""{REVOKE} AND coalesce(chain, '') <> '' AND {MINE} RETURNING {COLUMNS}"""


@repeatable
async def revoke_token(tx: Tx, token_id: UUID, tenant: str | None) -> TokenInfo:
    """Have a token hold no more, or raise `TokenNotFound`."""
    rows = await tx.fetch_all(REVOKE_TOKEN, id=str(token_id), tenant=tenant or "")
    if not rows:
        raise TokenNotFound(token_id)
    return _read_token(rows[0])


@repeatable
async def revoke_link(tx: Tx, link_id: UUID, tenant: str | None) -> Link:
    """Have a link hold no more, or raise `LinkNotFound`."""
    rows = await tx.fetch_all(REVOKE_LINK, id=str(link_id), tenant=tenant or "")
    if not rows:
        raise LinkNotFound(link_id)
    return _read_link(rows[0])


class Grant(NamedTuple):
    """What a secret leads to: a token or a link; *problem* says why it does not hold, and is empty if it does."""

    id: UUID
    name: str
    role: Role
    tenant: str | None
    chain: UUID | None
    payloads: bool
    expires_at: datetime | None
    problem: str
    """`revoked` or `expired`."""
    is_noted: bool
    """Whether its use was written down less than five minutes ago: `note_use` would write nothing."""


GRANT = f"""granted.id, granted.name, granted.role, granted.tenant, granted.chain, granted.payloads, granted.expires_at,
    CASE WHEN granted.revoked_at IS NOT NULL THEN 'revoked' WHEN granted.expires_at <= $now THEN 'expired' ELSE '' END,
    CASE WHEN granted.used_at >= $now - {NOTED_MS} THEN 1 ELSE 0 END"""
FIND = f"""SELECT granted.hash, {GRANT} FROM holdfast_token AS granted WHERE granted.hash = :hash"""
FIND_SESSION = f"""
    SELECT session.hash, {GRANT}, CASE WHEN session.seen_at >= $now - {NOTED_MS} THEN 1 ELSE 0 END
    FROM holdfast_session AS session JOIN holdfast_token AS granted ON granted.id = session.token
    WHERE session.hash = :hash AND session.seen_at > $now - {IDLE_MS}
        AND coalesce(session.created_at, 0) > $now - {WHOLE_MS}"""  # plainly, it would invite to the index of that


async def find(tx: Tx, hash_: str) -> Grant | None:
    """Find the token or link of this hash."""
    return _grant(hash_, await tx.fetch_all(FIND, hash=hash_))


async def find_session(tx: Tx, hash_: str) -> Grant | None:
    """Find what the session of this hash leads to, if the session holds."""
    return _grant(hash_, await tx.fetch_all(FIND_SESSION, hash=hash_))


def _grant(hash_: str, rows: list[Row]) -> Grant | None:
    # how an index compares is its own affair, and a collation might let more be equal than is
    return next((_read_grant(row[1:]) for row in rows if compare_digest(row[0], hash_)), None)


ANY_THAT_HOLDS = """
    SELECT 1 FROM holdfast_token
    WHERE chain IS NULL AND id < :before AND revoked_at IS NULL AND coalesce(expires_at, $now + 1) > $now
    ORDER BY id DESC LIMIT 1"""


async def has_token(tx: Tx) -> bool:
    """Tell whether there is a token that holds."""
    return bool(await tx.fetch_all(ANY_THAT_HOLDS, before=BEHIND_ALL))


USED = f"""UPDATE holdfast_token SET used_at = $now WHERE id = :id AND coalesce(used_at, 0) < $now - {NOTED_MS}"""
SEEN = f"""UPDATE holdfast_session SET seen_at = $now WHERE hash = :hash AND seen_at < $now - {NOTED_MS}"""


async def note_use(tx: Tx, token_id: UUID, session: str | None = None) -> None:
    """Note that a token is used, by the session of this hash if that is given; to five minutes."""
    await tx.execute(USED, id=str(token_id))
    if session is not None:
        await tx.execute(SEEN, hash=session)


OPEN = """
    INSERT INTO holdfast_session (hash, token, created_at, seen_at) VALUES (:hash, :token, $now, $now)
    ON CONFLICT DO NOTHING"""
END = """DELETE FROM holdfast_session WHERE hash = :hash"""


@repeatable
async def open_session(tx: Tx, hash_: str, token_id: UUID) -> None:
    """Open a session for a token or a link."""
    await tx.execute(OPEN, hash=hash_, token=str(token_id))


@repeatable
async def end_session(tx: Tx, hash_: str) -> None:
    """End a session; one that is over already stays so."""
    await tx.execute(END, hash=hash_)


FORGET_TOKENS_OF = """DELETE FROM holdfast_token WHERE chain IS NULL AND tenant = :tenant"""
FORGET_LINKS_OF = """DELETE FROM holdfast_token WHERE chain IS NOT NULL AND tenant = :tenant"""


async def forget_tenant(tx: Tx, tenant: str) -> None:
    """Forget the tokens and links of a tenant that is dropped: another that gets its name is none of theirs."""
    await tx.execute(FORGET_TOKENS_OF, tenant=tenant)
    await tx.execute(FORGET_LINKS_OF, tenant=tenant)


OLD_SESSIONS = f"""
    SELECT hash FROM holdfast_session WHERE created_at <= $now - {WHOLE_MS} ORDER BY created_at LIMIT :most"""
OLD_EXPIRED = f"""
    SELECT id FROM holdfast_token WHERE expires_at <= $now - {KEPT_MS} ORDER BY expires_at LIMIT :most"""
OLD_REVOKED = f"""
    SELECT id FROM holdfast_token WHERE revoked_at <= $now - {KEPT_MS} ORDER BY revoked_at LIMIT :most"""
DELETE_SESSIONS = """DELETE FROM holdfast_session WHERE hash $any(hashes: text)"""
DELETE_TOKENS = """DELETE FROM holdfast_token WHERE id $any(ids: text)"""


class OldAccess(NamedTuple):
    """What is over, and can be forgotten."""

    sessions: list[str]
    tokens: list[str]


async def find_old(tx: Tx) -> OldAccess:
    """Find some sessions that are over, and tokens and links that expired or were revoked 30 days ago."""
    sessions, expired, revoked = [
        [key for (key,) in await tx.fetch_all(each, most=MOST_DELETED)]
        for each in (OLD_SESSIONS, OLD_EXPIRED, OLD_REVOKED)
    ]
    return OldAccess(sessions, list(dict.fromkeys(expired + revoked)))


@repeatable
async def delete_old(tx: Tx, old: OldAccess) -> None:
    """Forget what `find_old` has found."""
    if old.sessions:
        await tx.execute(DELETE_SESSIONS, hashes=old.sessions)
    if old.tokens:
        await tx.execute(DELETE_TOKENS, ids=old.tokens)


def _read_token(row: Row) -> TokenInfo:
    id_, name, role, tenant, _, payloads, created_at, created_by, expires_at, revoked_at, used_at = row
    with reading("holdfast_token", id_):
        return TokenInfo(
            id=UUID(id_),
            name=name,
            role=Role(role),
            tenant=tenant,
            payloads=bool(payloads),
            created_at=instant(created_at),
            created_by=created_by,
            expires_at=maybe_instant(expires_at),
            revoked_at=maybe_instant(revoked_at),
            used_at=maybe_instant(used_at),
        )


def _read_link(row: Row) -> Link:
    id_, _, _, tenant, chain, payloads, created_at, created_by, expires_at, revoked_at, used_at = row
    with reading("holdfast_token", id_):
        return Link(
            id=UUID(id_),
            chain=UUID(chain),
            tenant=tenant,
            payloads=bool(payloads),
            created_at=instant(created_at),
            created_by=created_by,
            expires_at=maybe_instant(expires_at),
            revoked_at=maybe_instant(revoked_at),
            used_at=maybe_instant(used_at),
        )


def _read_grant(row: Row) -> Grant:
    id_, name, role, tenant, chain, payloads, expires_at, problem, *noted = row
    with reading("holdfast_token", id_):
        found = Role(role), tenant, None if chain is None else UUID(chain), bool(payloads), maybe_instant(expires_at)
        return Grant(UUID(id_), name, *found, problem, all(noted))
