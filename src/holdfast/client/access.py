"""`hf.tokens` and `hf.links`: who may use the HTTP API, and which chain an outsider may look at; of both colours.

They stand in the control place, also when they are made by the face of a tenant: there the HTTP API looks them up,
before it knows of any tenant.
"""

from __future__ import annotations

import math
from datetime import timedelta
from random import Random
from typing import TypeGuard, Unpack
from uuid import UUID

from holdfast.access import (
    ALL_TENANTS,
    NAME_LENGTH,
    TOKEN_BITS,
    TOKEN_PREFIX,
    Link,
    NewLink,
    NewToken,
    Role,
    TokenInfo,
    hash_of,
    make_token,
)
from holdfast.client.handles import write_alone
from holdfast.client.list_options import PageOptions, flag, page_of
from holdfast.client.starter import Starter
from holdfast.client.verbs import asked_by
from holdfast.database.tx import Runner, Store, drive
from holdfast.errors import InvalidInput, got, near_and_all, shown
from holdfast.ids import Target, target_id, to_id
from holdfast.models import Page
from holdfast.store import access, reads
from holdfast.store.access import NewGrant
from holdfast.tasks.calls import is_name
from holdfast.tenancy import check_tenant_name

Tokens = Page[TokenInfo]
Links = Page[Link]
Seconds = float | timedelta

ROLES = tuple(each for each in Role if each is not Role.GUEST)
MOST_HOURS = 8_760
LONGEST_SECONDS = 36_525 * 86_400


def control_of(store: Store) -> Store:
    """Give the store of the control place; *store* itself, unless it is that of a tenant."""
    return getattr(store, "control", store)


class TokensHandle:
    """The tokens for the HTTP API: for programs, and for people who log in by one."""

    def __init__(self, control: Runner, starter: Starter, chance: Random) -> None:
        self._verbs = TokenVerbs(control, starter, chance)

    async def create(
        self,
        name: str,
        *,
        role: Role | str = Role.VIEWER,
        tenant: str | None = None,
        payloads: bool = True,
        expires: Seconds | None = None,
        by: str | None = None,
    ) -> NewToken:
        """Make a token; its secret is in the answer and nowhere else, for the database has only its SHA-256.

        *name* tells people which one it is. *role* is `viewer`, `operator` or `admin`. *expires* is in how many
        seconds, or a timedelta; None means never. With `payloads=False` it is shown no inputs, outputs and errors.
        Where there are tenants, *tenant* is one of them, `*` for all, or None for the control place; by the face of a
        tenant it is for that one. Raises `TenantNotFound`.
        """
        return await self._verbs.create(name, role, tenant, payloads, expires, by)

    async def list(self, **page: Unpack[PageOptions]) -> Tokens:
        """List the tokens, newest first; by the face of a tenant those for it alone.

        One that has expired or was revoked stays for 30 days.
        """
        return await self._verbs.list_all(page)

    async def revoke(self, token: UUID | str) -> TokenInfo:
        """Have the token of this id hold no more, and the sessions that it opened; or raise `TokenNotFound`."""
        return await self._verbs.revoke(token)


class BlockingTokensHandle:
    """The tokens for the HTTP API: for programs, and for people who log in by one."""

    def __init__(self, control: Runner, starter: Starter, chance: Random) -> None:
        self._verbs = TokenVerbs(control, starter, chance)

    def create(
        self,
        name: str,
        *,
        role: Role | str = Role.VIEWER,
        tenant: str | None = None,
        payloads: bool = True,
        expires: Seconds | None = None,
        by: str | None = None,
    ) -> NewToken:
        """Make a token; its secret is in the answer and nowhere else, for the database has only its SHA-256.

        *name* tells people which one it is. *role* is `viewer`, `operator` or `admin`. *expires* is in how many
        seconds, or a timedelta; None means never. With `payloads=False` it is shown no inputs, outputs and errors.
        Where there are tenants, *tenant* is one of them, `*` for all, or None for the control place; by the face of a
        tenant it is for that one. Raises `TenantNotFound`.
        """
        return drive(self._verbs.create(name, role, tenant, payloads, expires, by))

    def list(self, **page: Unpack[PageOptions]) -> Tokens:
        """List the tokens, newest first; by the face of a tenant those for it alone.

        One that has expired or was revoked stays for 30 days.
        """
        return drive(self._verbs.list_all(page))

    def revoke(self, token: UUID | str) -> TokenInfo:
        """Have the token of this id hold no more, and the sessions that it opened; or raise `TokenNotFound`."""
        return drive(self._verbs.revoke(token))


class LinksHandle:
    """The links for outsiders: each shows one chain, live, and nothing else."""

    def __init__(self, control: Runner, place: Runner, starter: Starter, chance: Random) -> None:
        self._verbs = LinkVerbs(control, place, starter, chance)

    async def create(
        self, chain: Target, *, hours: float = 24, payloads: bool = False, by: str | None = None
    ) -> NewLink:
        """Make a link that shows a chain for so many *hours*; or raise `ChainNotFound`.

        `link.url(base)` of the answer is what you hand out: the database has only the SHA-256 of its secret. Whoever
        has it sees the progress, and with `payloads=True` also inputs, outputs and errors.
        """
        return await self._verbs.create(chain, hours, payloads, by)

    async def list(self, **page: Unpack[PageOptions]) -> Links:
        """List the links, newest first; by the face of a tenant those of its chains alone.

        One that has expired or was revoked stays for 30 days.
        """
        return await self._verbs.list_all(page)

    async def revoke(self, link: UUID | str) -> Link:
        """Have the link of this id show nothing any more; or raise `LinkNotFound`."""
        return await self._verbs.revoke(link)


class BlockingLinksHandle:
    """The links for outsiders: each shows one chain, live, and nothing else."""

    def __init__(self, control: Runner, place: Runner, starter: Starter, chance: Random) -> None:
        self._verbs = LinkVerbs(control, place, starter, chance)

    def create(self, chain: Target, *, hours: float = 24, payloads: bool = False, by: str | None = None) -> NewLink:
        """Make a link that shows a chain for so many *hours*; or raise `ChainNotFound`.

        `link.url(base)` of the answer is what you hand out: the database has only the SHA-256 of its secret. Whoever
        has it sees the progress, and with `payloads=True` also inputs, outputs and errors.
        """
        return drive(self._verbs.create(chain, hours, payloads, by))

    def list(self, **page: Unpack[PageOptions]) -> Links:
        """List the links, newest first; by the face of a tenant those of its chains alone.

        One that has expired or was revoked stays for 30 days.
        """
        return drive(self._verbs.list_all(page))

    def revoke(self, link: UUID | str) -> Link:
        """Have the link of this id show nothing any more; or raise `LinkNotFound`."""
        return drive(self._verbs.revoke(link))


class TokenVerbs:
    """What both handles of tokens do, written once; *control* is the control place."""

    def __init__(self, control: Runner, starter: Starter, chance: Random) -> None:
        self._control = control
        self._starter = starter
        self._chance = chance

    async def create(
        self, name: str, role: object, tenant: object, payloads: object, expires: object, by: str | None
    ) -> NewToken:
        """Check what is given, and make one."""
        if not is_name(name, NAME_LENGTH):
            raise InvalidInput(
                f"name must be a text of 1 to {NAME_LENGTH} printable characters, such as the program or person that "
                f"is to have the token; {got(name)}",
                "name",
            )
        of_whom, expires_ms = self._tenant_of(tenant), _milliseconds(expires)
        shows, asked = flag(payloads, "payloads"), asked_by(by, None)
        wanted = _role(role)
        token = make_token(self._chance.getrandbits(TOKEN_BITS))
        new = NewGrant(
            self._starter.new_id(), hash_of(token), name, wanted, of_whom, shows, asked.by, expires_ms=expires_ms
        )
        made = await write_alone(self._control, "hf.tokens.create", access.add_token, new)
        return NewToken(token=token, info=made)

    def _tenant_of(self, tenant: object) -> str | None:
        own, has_tenants = self._starter.tenant.name, self._starter.settings.tenants
        if tenant is None or tenant == own:
            return own
        if own is not None:
            raise InvalidInput(
                f"this is the face of tenant {own!r}, which makes tokens for it alone, {got(tenant)}; ask the Holdfast "
                "object that it came from for others",
                "tenant",
            )
        if not has_tenants:
            raise InvalidInput(
                f"this Holdfast has no tenants, {got(tenant)}; leave tenant= out, or write Holdfast(database, "
                "tenants=True)",
                "tenant",
            )
        return ALL_TENANTS if tenant == ALL_TENANTS else check_tenant_name(tenant)

    async def list_all(self, page: PageOptions) -> Page[TokenInfo]:
        """List them."""
        return await self._control.read(access.list_tokens, self._starter.tenant.name, page_of(page, "list()"))

    async def revoke(self, token: UUID | str) -> TokenInfo:
        """Revoke one."""
        found, own = _id_of(token, "token"), self._starter.tenant.name
        return await write_alone(self._control, "hf.tokens.revoke", access.revoke_token, found, own)


class LinkVerbs:
    """What both handles of links do, written once; *place* is where the chains are, *control* the control place."""

    def __init__(self, control: Runner, place: Runner, starter: Starter, chance: Random) -> None:
        self._control = control
        self._place = place
        self._starter = starter
        self._chance = chance

    async def create(self, chain: Target, hours: object, payloads: object, by: str | None) -> NewLink:
        """Check what is given, and make one."""
        wanted, expires_ms = target_id(chain), _hours(hours)
        shows, asked = flag(payloads, "payloads"), asked_by(by, None)
        found = await self._place.read(reads.get_chain, wanted)
        token, of_whom = make_token(self._chance.getrandbits(TOKEN_BITS)), self._starter.tenant.name
        name = f"link to {found.id}"
        new = NewGrant(
            self._starter.new_id(), hash_of(token), name, Role.GUEST, of_whom, shows, asked.by, expires_ms, found.id
        )
        made = await write_alone(self._control, "hf.links.create", access.add_link, new)
        return NewLink(token=token, link=made)

    async def list_all(self, page: PageOptions) -> Page[Link]:
        """List them."""
        return await self._control.read(access.list_links, self._starter.tenant.name, page_of(page, "list()"))

    async def revoke(self, link: UUID | str) -> Link:
        """Revoke one."""
        found, own = _id_of(link, "link"), self._starter.tenant.name
        return await write_alone(self._control, "hf.links.revoke", access.revoke_link, found, own)


def _id_of(given: UUID | str, what: str) -> UUID:
    if isinstance(given, str) and given.startswith(TOKEN_PREFIX):  # errors are printed, and logged
        raise InvalidInput(f"this is the secret of a {what}; give its id, as hf.{what}s.list() shows it", what)
    return to_id(given)


def _role(role: object) -> Role:
    if role == Role.GUEST:
        raise InvalidInput(
            "a token cannot be a guest's; make a link to one chain instead: hf.links.create(chain)", "role"
        )
    if role not in ROLES:
        near = near_and_all(role, ROLES, "the roles are") if isinstance(role, str) else f"; write {Role.VIEWER.value!r}"
        raise InvalidInput(f"there is no role {shown(role)}{near}", "role")
    return Role(str(role))


def _milliseconds(expires: object) -> int | None:
    """Read in how long a token expires."""
    if expires is None:
        return None
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
    if not _is_between(seconds, LONGEST_SECONDS):
        raise InvalidInput(
            f"expires must be seconds from now or a timedelta, above 0 and at most a hundred years, {got(expires)}; "
            "leave it out for a token that never expires",
            "expires",
        )
    return math.ceil(seconds * 1000)


def _hours(hours: object) -> int:
    if not _is_between(hours, MOST_HOURS):
        raise InvalidInput(
            f"hours must be a number above 0 and at most {MOST_HOURS:,}, which is a year, {got(hours)}", "hours"
        )
    return math.ceil(hours * 3_600_000)


def _is_between(value: object, most: float) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= most
