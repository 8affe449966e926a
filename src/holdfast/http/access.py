"""`/api/tokens`: who may use this API, and in which role."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from holdfast.access import Role
from holdfast.http.endpoint import Inquiry, NoBody, NoQuery, PageQuery, Taken
from holdfast.http.jobs import WhyBody
from holdfast.http.problems import Forbidden
from holdfast.wire.access_json import TokenObject, token_object


class CreateTokenBody(WhyBody):
    """A token to be made; it *expires* in so many seconds. Unless it is said, it sees what its maker sees."""

    name: str
    role: Literal["viewer", "operator", "admin"] = "viewer"
    tenant: str | None = None
    payloads: bool | None = None
    expires: float | None = None


class RevokeTokenQuery(Taken):
    """Why a token is revoked."""

    why: str | None = None


class TokenMade(BaseModel):
    """A token that has just been made; its secret is shown only now."""

    token: str
    info: TokenObject


class TokenPage(BaseModel):
    """A page of tokens, newest first."""

    items: list[TokenObject]
    next_cursor: str | None


async def list_tokens(ask: Inquiry[PageQuery, NoBody]) -> dict[str, Any]:
    """List the tokens, newest first; those that ended stay for 30 days."""
    page = await ask.hf.tokens.list(**ask.query.page)
    return {"items": [token_object(each) for each in page], "next_cursor": page.next_cursor}


async def create_token(ask: Inquiry[NoQuery, CreateTokenBody]) -> dict[str, Any]:
    """Make a token; its secret is in the answer and nowhere else."""
    wanted = ask.body
    payloads = ask.who.payloads if wanted.payloads is None else wanted.payloads
    _refuse_more(ask, Role(wanted.role), payloads)
    made = await ask.hf.tokens.create(
        wanted.name, role=wanted.role, tenant=wanted.tenant, payloads=payloads, expires=wanted.expires
    )
    return {"token": made.token, "info": token_object(made.info)}


async def revoke_token(ask: Inquiry[RevokeTokenQuery, NoBody]) -> dict[str, Any]:
    """Have a token hold no more, and the sessions that it opened."""
    return token_object(await ask.hf.tokens.revoke(ask.id))


def _refuse_more(ask: Inquiry[Any, CreateTokenBody], role: Role, payloads: bool) -> None:
    """Let nobody make a token that may do more than they may themselves."""
    who, tenant = ask.who, ask.body.tenant
    if not who.role.allows(role):
        raise Forbidden(f"you may make tokens up to your own role, which is {who.role}; ask for one of these")
    if payloads and not who.payloads:
        raise Forbidden("you are shown no payloads, so your tokens cannot show them either; leave payloads out")
    if tenant is not None and not who.may_use(tenant):
        raise Forbidden(f"you may make tokens for what you may use yourself, and that is not tenant {tenant!r}")
