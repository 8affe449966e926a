"""Who asks: by a bearer token, the cookie of a session, the application's own users, or what a trusted proxy says.

The first of these that speaks decides; the cookie of a link comes last. What a token leads to is kept for at most five
seconds, so that a revoked one ends within that time; open streams ask again every minute.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from hmac import compare_digest
from typing import Any, TypeAlias
from uuid import UUID

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request

from holdfast.access import ALL_TENANTS, TOKEN_PREFIX, Role, hash_of, is_token
from holdfast.app import Holdfast
from holdfast.errors import InvalidInput, Misuse, StoreError, got
from holdfast.http.origins import Client
from holdfast.http.problems import Unauthenticated
from holdfast.logging import reason_of, say
from holdfast.store import access
from holdfast.store.access import Grant
from holdfast.texts import clean_text

KEPT_SECONDS = 5.0
NOTED_SECONDS = 300.0
MOST_KEPT = 10_000
BEARER = "bearer "
NAME_LENGTH = 200
COOKIE, LINK_COOKIE = "holdfast", "holdfast-link"
TOKEN, SESSION = "token", "session"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who somebody is, and what they may do: what `auth=` answers for a user of your application.

    *name* stands in the audit. *payloads=False* hides inputs, outputs and errors. *tenant* is the one tenant that they
    may use, `"*"` for all; None where there are no tenants, or for the control place alone.

    >>> Identity("ada", Role.OPERATOR).role.allows(Role.VIEWER)
    True
    """

    name: str
    role: Role
    payloads: bool = True
    tenant: str | None = None
    chain: UUID | None = None
    """The one chain that a guest may see."""
    key: str = ""
    """By what the limits know them; their name, unless it is said."""

    def __post_init__(self) -> None:
        if not _is_name(self.name):
            raise InvalidInput(f"the name of an Identity must be a text, {got(self.name)}; the audit keeps it", "name")
        if self.role not in list(Role):
            words = ", ".join(repr(str(each)) for each in Role)
            raise InvalidInput(f"the role of an Identity must be {words}, {got(self.role)}", "role")
        object.__setattr__(self, "role", Role(self.role))
        object.__setattr__(self, "name", clean_text(self.name, NAME_LENGTH))
        object.__setattr__(self, "key", self.key or f"user {self.name}")

    def may_use(self, tenant: str | None) -> bool:
        """Tell whether they may use that tenant, or without one the control place."""
        return self.tenant in (ALL_TENANTS, tenant)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip())


Auth: TypeAlias = Callable[[Request], Awaitable[Identity | None]]


@dataclass(frozen=True, slots=True)
class ProxyUsers:
    """Users that a trusted proxy has authenticated: the *header* with their name, and which of them are operators."""

    header: str
    operators: frozenset[str] = frozenset()


class Identities:
    """Finds out who asks; *own* are tokens of this process, which no database has."""

    def __init__(self, hf: Holdfast, auth: Auth | None, users: ProxyUsers | None, own: Sequence[str] = ()) -> None:
        self._hf = hf
        self._auth = auth
        self._users = users
        self._own = {hash_of(token): _of_this_process(hash_of(token)) for token in own}
        self._own_sessions: OrderedDict[str, str] = OrderedDict()
        self._kept: OrderedDict[tuple[str, str], tuple[float, Grant]] = OrderedDict()
        """By what it is the hash of, too: the id of a session is no token, and a token opens no session by itself."""
        self._noted: OrderedDict[str, float] = OrderedDict()
        self._suffix: str | None = None

    def is_program(self, headers: Headers) -> bool:
        """Tell whether who asks brings a token, which no browser does for the page of another site."""
        return headers.get("authorization", "").lower().startswith(BEARER)

    def token_of(self, headers: Headers) -> str | None:
        """Give the token of ours that stands in the headers; tokens of others are for `auth=`."""
        token = bearer_of(headers)
        return token if token is not None and token.startswith(TOKEN_PREFIX) else None

    async def identify(self, request: Request, client: Client) -> Identity | None:
        """Tell who sends *request*; raise `Unauthenticated` for a token that does not hold."""
        if (token := self.token_of(request.headers)) is not None:
            return await self.of_token(token)
        # no program that brings a token for somebody else goes by a cookie: that was not asked where it comes from
        sessions = [] if self.is_program(request.headers) else await self._sessions(request, client)
        opened = {cookie: grant for cookie, hashed in sessions if (grant := await self._session(hashed)) is not None}
        if (grant := opened.get(COOKIE)) is not None:
            return _identity_of(grant, f"token {grant.id}")
        link = opened.get(LINK_COOKIE)
        try:
            found = await self._of_application(request, client)
        except HTTPException:  # an application may refuse whoever is not logged in there, and a link needs no login
            if link is None:
                raise
            found = None
        if found is None and link is not None:  # the last, so that somebody who is logged in may open a link
            return _identity_of(link, f"link {link.id}")
        return found

    async def _of_application(self, request: Request, client: Client) -> Identity | None:
        """Tell who it is by the application's own users, or those of a proxy."""
        if self._auth is not None and (found := await self._auth(request)) is not None:
            if not isinstance(found, Identity):
                raise Misuse(f"auth= must return an Identity or None, {got(found)}")
            return found
        return self._of_proxy(self._users, request.headers) if self._users and client.is_behind_proxy else None

    def _of_proxy(self, users: ProxyUsers, headers: Headers) -> Identity | None:
        """Tell whom a proxy speaks for: nobody if the header is there twice, for one of them may be the client's."""
        names = [name for name in headers.getlist(users.header) if name.strip()]
        if len(names) != 1:
            return None
        return Identity(names[0], Role.OPERATOR if names[0] in users.operators else Role.VIEWER)

    async def knows(self, request: Request, client: Client) -> bool:
        """Tell whether the token or the session of *request* was good before, so that to look again is no guess."""
        if (token := self.token_of(request.headers)) is not None:
            hashed = hash_of(token)
            return hashed in self._own or (TOKEN, hashed) in self._kept
        sessions = [] if self.is_program(request.headers) else await self._sessions(request, client)
        return all(each in self._own_sessions or (SESSION, each) in self._kept for _, each in sessions)

    async def of_token(self, token: str) -> Identity:
        """Tell whose token it is, or raise `Unauthenticated`."""
        return _identity_of(grant := await self.grant_of(token), f"token {grant.id}")

    async def grant_of(self, token: str) -> Grant:
        """Find what a token leads to, or raise `Unauthenticated`."""
        if not is_token(token):
            raise Unauthenticated("this is not a Holdfast token: it is mistyped or cut off; copy the whole token again")
        hashed = hash_of(token)
        grant = self._own_grant(hashed) or await self._look(TOKEN, hashed)
        if grant is None:
            raise Unauthenticated("nobody has this token; make one with `holdfast token create`")
        if grant.problem:
            raise Unauthenticated(f"this token is {grant.problem}; make another with `holdfast token create`")
        await self._note(grant, None)
        return grant

    def _own_grant(self, hashed: str) -> Grant | None:
        found = [grant for own, grant in self._own.items() if compare_digest(own, hashed)]
        return found[0] if found else None

    async def _session(self, hashed: str) -> Grant | None:
        if (token := self._own_sessions.get(hashed)) is not None:
            return self._own[token]
        grant = await self._look(SESSION, hashed)
        if grant is None or grant.problem:
            return None
        await self._note(grant, hashed)
        return grant

    async def open_session(self, session: str, grant: Grant) -> None:
        """Open a session with the rights of a token."""
        own = next((hashed for hashed, each in self._own.items() if each is grant), None)
        if own is not None:
            _keep(self._own_sessions, hash_of(session), own)
        else:
            await self._hf.store.run(access.open_session, hash_of(session), grant.id)

    async def end_sessions(self, request: Request, client: Client) -> None:
        """End the sessions whose cookies come with *request*."""
        for _, hashed in await self._sessions(request, client):
            self._kept.pop((SESSION, hashed), None)
            if self._own_sessions.pop(hashed, None) is None:
                await self._hf.store.run(access.end_session, hashed)

    async def cookie_name(self, kind: str, client: Client) -> str:
        """Name the cookie of a session; over TLS no other site of the same domain can set one of this name."""
        if self._suffix is None:
            identity = await self._hf._identity()
            self._suffix = hash_of(identity or "")[:8]
        return f"{kind}-{self._suffix}" if client.scheme != "https" else f"__Host-{kind}-{self._suffix}"

    async def _sessions(self, request: Request, client: Client) -> list[tuple[str, str]]:
        if not request.cookies:
            return []
        names = [(kind, await self.cookie_name(kind, client)) for kind in (COOKIE, LINK_COOKIE)]
        return [(kind, hash_of(request.cookies[name])) for kind, name in names if name in request.cookies]

    async def _look(self, kind: str, hashed: str) -> Grant | None:
        now = self._hf._runtime.monotonic()
        at, kept = self._kept.get((kind, hashed), (now - KEPT_SECONDS, None))
        if kept is not None and now - at < KEPT_SECONDS:
            return kept
        found = await self._hf.store.read(access.find if kind == TOKEN else access.find_session, hashed)
        if found is not None:
            _keep(self._kept, (kind, hashed), (now, found))
        else:
            self._kept.pop((kind, hashed), None)
        return found

    async def _note(self, grant: Grant, session: str | None) -> None:
        """Write down that it is used, now and then; whoever may only read goes on without."""
        key, now = session or str(grant.id), self._hf._runtime.monotonic()
        if (grant.is_noted and session is None) or now - self._noted.get(key, now - NOTED_SECONDS) < NOTED_SECONDS:
            return
        _keep(self._noted, key, now)
        try:
            await self._hf.store.run(access.note_use, grant.id, session)
        except StoreError as error:
            say(logger, "use_not_noted", reason=reason_of(error))


def bearer_of(headers: Headers) -> str | None:
    """Give the bearer token of a request, whoever has made it."""
    given = headers.get("authorization", "")
    return given[len(BEARER) :].strip() if given.lower().startswith(BEARER) else None


def _of_this_process(hashed: str) -> Grant:
    return Grant(UUID(int=0), "serve", Role.ADMIN, ALL_TENANTS, None, True, None, "", True)


def _identity_of(grant: Grant, key: str) -> Identity:
    name = f"link {grant.id}" if grant.chain is not None else grant.name
    return Identity(name, grant.role, grant.payloads, grant.tenant, grant.chain, key)


def _keep(kept: OrderedDict[Any, Any], key: object, value: object) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > MOST_KEPT:
        kept.popitem(last=False)
