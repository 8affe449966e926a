"""`/api/session`: a browser gives a token once, and has a cookie in its place, which no script can read."""

from __future__ import annotations

from holdfast.access import TOKEN_BITS, Role, make_token
from holdfast.http.endpoint import Inquiry, NoBody, NoQuery, Reply, Taken
from holdfast.http.identity import COOKIE, LINK_COOKIE
from holdfast.http.origins import Client
from holdfast.http.problems import HttpsRequired

WHOLE_SECONDS = 24 * 3600


class Login(Taken):
    """The token to log in with."""

    token: str


async def log_in(ask: Inquiry[NoQuery, Login]) -> Reply:
    """Exchange a token for the cookie of a session."""
    client = ask.service.origins.client(ask.request.scope, ask.request.headers)
    if not client.is_private:
        raise HttpsRequired(
            "a browser may log in over HTTPS only, or on this machine; give `holdfast serve` --certificate and --key, "
            "or put it behind a proxy that speaks HTTPS and is named with --proxies"
        )
    ask.service.logins.spend(client.source, "logins from this address")
    grant = await ask.service.identities.grant_of(ask.body.token)
    session = make_token(ask.service.hf._runtime.chance.getrandbits(TOKEN_BITS))
    await ask.service.identities.open_session(session, grant)
    kind = LINK_COOKIE if grant.role is Role.GUEST else COOKIE
    name = await ask.service.identities.cookie_name(kind, client)
    return Reply(None, 204, {"Set-Cookie": f"{name}={session}; {_rules(client)}; Max-Age={WHOLE_SECONDS}"})


async def log_out(ask: Inquiry[NoQuery, NoBody]) -> Reply:
    """End the session of the cookie."""
    client = ask.service.origins.client(ask.request.scope, ask.request.headers)
    await ask.service.identities.end_sessions(ask.request, client)
    name = await ask.service.identities.cookie_name(COOKIE, client)
    return Reply(None, 204, {"Set-Cookie": f"{name}=; {_rules(client)}; Max-Age=0"})


def _rules(client: Client) -> str:
    return f"Path=/; HttpOnly; SameSite=Strict{'; Secure' if client.scheme == 'https' else ''}"
