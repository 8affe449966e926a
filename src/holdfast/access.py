"""Who may do what over HTTP, and who has done what: roles, tokens, links for outsiders, entries of the audit.

A token is `hf_`, 32 random bytes in base 62, and six characters that check them: a typo is told from a token that is
wrong. The database has its SHA-256 only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID
from zlib import crc32

from holdfast.models import Asked

TOKEN_PREFIX = "hf_"  # noqa: S105 - it marks one
TOKEN_BITS = 256
DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
SECRET_LENGTH, CHECK_LENGTH = 43, 6
NAME_LENGTH = 100
ALL_TENANTS = "*"


class Role(StrEnum):
    """What somebody may do over HTTP; each role may do all that those before it may."""

    GUEST = "guest"
    """Reads one chain, by a link."""
    VIEWER = "viewer"
    """Reads and follows everything."""
    OPERATOR = "operator"
    """Also starts, steers and completes jobs, and makes links."""
    ADMIN = "admin"
    """Also tokens, webhooks, schedules, tenants, the audit, and deleting many jobs."""

    def allows(self, needed: Role) -> bool:
        """Tell whether this role may do what *needed* may.

        >>> Role.OPERATOR.allows(Role.VIEWER), Role.VIEWER.allows(Role.OPERATOR)
        (True, False)
        """
        order = list(Role)
        return order.index(self) >= order.index(needed)


class Actor(NamedTuple):
    """In whose name something is done: *by* whom, *why*, and for which HTTP *request*."""

    by: str
    why: str | None = None
    request: str | None = None

    def asked(self, given: Asked) -> Asked:
        """Fill in what a call leaves unsaid."""
        return Asked(self.by if given.by is None else given.by, self.why if given.why is None else given.why)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInfo:
    """A token, without its secret."""

    id: UUID
    name: str
    role: Role
    tenant: str | None
    """The tenant that it is for, `*` for all; None for the control place, or where there are no tenants."""
    payloads: bool
    """Whether inputs, outputs and errors are shown."""
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None
    """When it was last used, to five minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link for an outsider: it shows one chain, live, and nothing else."""

    id: UUID
    chain: UUID
    tenant: str | None
    payloads: bool
    """Whether inputs, outputs and errors are shown."""
    created_at: datetime
    created_by: str | None
    expires_at: datetime | None
    revoked_at: datetime | None
    used_at: datetime | None
    """When it was last used, to five minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewToken:
    """A token that has just been made; *token* is its secret, which is shown only now."""

    token: str = field(repr=False)
    info: TokenInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class NewLink:
    """A link that has just been made; *token* is its secret, which is shown only now."""

    token: str = field(repr=False)
    link: Link

    def url(self, base: str) -> str:
        """Give the address to hand out; *base* is where Holdfast is served. The secret stands behind `#`.

        A browser sends nothing behind `#` to a server, so that it reaches no access log.
        """
        return f"{base.rstrip('/')}/shared#{self.token}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An act that somebody has done: it was committed together with this entry."""

    id: str
    at: datetime
    who: str
    action: str
    """What was done, such as `cancel` or `lane.skip`."""
    subject: str
    """To what: an id, a name, or how many."""
    why: str | None
    request: str | None
    """The id of the HTTP request, if it was one."""
    facts: Mapping[str, Any]
    """What else there is to say, as plain JSON."""


def make_token(bits: int) -> str:
    """Write 256 random *bits* as a token.

    >>> len(make_token(2**256 - 1)), make_token(1)[-8:]
    (52, '010HNUPx')
    """
    secret = _base62(bits, SECRET_LENGTH)
    return f"{TOKEN_PREFIX}{secret}{_check(secret)}"


def is_token(text: str) -> bool:
    """Tell whether *text* is written as a token is; a typo in one makes it none.

    >>> token = make_token(7)
    >>> is_token(token), is_token(token.replace("7", "8")), is_token("hf_")
    (True, False, False)
    """
    secret, check = text[len(TOKEN_PREFIX) : -CHECK_LENGTH], text[-CHECK_LENGTH:]
    is_whole = text.startswith(TOKEN_PREFIX) and len(secret) == SECRET_LENGTH and set(secret) <= set(DIGITS)
    return is_whole and _check(secret) == check


def hash_of(token: str) -> str:
    """Give what the database has of a token, or of the id of a session; its 256 bits need no salt."""
    return sha256(token.encode()).hexdigest()


def _check(secret: str) -> str:
    return _base62(crc32(secret.encode()), CHECK_LENGTH)


def _base62(number: int, length: int) -> str:
    digits = ""
    for _ in range(length):
        number, digit = divmod(number, 62)
        digits = DIGITS[digit] + digits
    return digits
