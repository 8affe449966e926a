"""What all requests of one application share: its rules and limits, its places, who is known, its open streams."""

from __future__ import annotations

import logging
import re
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, TenantNotFound, UsageError
from holdfast.http.identity import Identities, Identity
from holdfast.http.limits import Limits, OpenStreams, Rate
from holdfast.http.origins import Client, Origins
from holdfast.http.problems import Forbidden, NoSuchRoute, WrongHost, problem
from holdfast.http.redacting import Redacting, Shown
from holdfast.http.sse import LiveStreams
from holdfast.store import tenants

OF_TENANT = re.compile(r"/t/([^/]+)(?=/|$)")
KEPT_SECONDS = 5.0
ALLOWED_SECONDS = 30.0
"""After which the right to a stream is looked at again: with the next ping, and what is kept, within a minute."""
MOST_HOSTS = 1_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Incoming:
    """How a request has come: its id, who sent it, and which tenant it is for."""

    request_id: str
    client: Client
    tenant: str | None


class Service:
    """One application over *hf*."""

    def __init__(
        self,
        hf: Holdfast,
        identities: Identities,
        origins: Origins,
        limits: Limits,
        redacting: Redacting,
        *,
        webhook_hosts: frozenset[str] = frozenset(),
        metrics_on_loopback: bool = False,
        has_streams: bool = True,
    ) -> None:
        self.hf = hf
        self.identities = identities
        self.origins = origins
        self.limits = limits
        self.redacting = redacting
        self.webhook_hosts = webhook_hosts
        self.has_streams = has_streams
        self.metrics_on_loopback = metrics_on_loopback
        monotonic = hf._runtime.monotonic
        self.logins = Rate(limits.logins_per_minute, 60.0, monotonic)
        self.requests = Rate(limits.requests_per_second, 1.0, monotonic)
        self.streams = OpenStreams(limits)
        self.live = LiveStreams(allowed_seconds=ALLOWED_SECONDS)
        self.answered: Counter[tuple[str, int]] = Counter()
        """How many answers there were, by operation and class of status."""
        self.endpoints: tuple[Any, ...] = ()
        """The table that is served."""
        self._places: dict[str | None, Holdfast] = {}
        self._hosts: OrderedDict[str, tuple[float, str | None]] = OrderedDict()

    def place(self, tenant: str | None) -> Holdfast:
        """Give the face of a tenant, or of the control place, which shows values as they are stored."""
        if tenant not in self._places:
            face = self.hf if tenant is None else self.hf.tenant(tenant)
            self._places[tenant] = face._as_stored(self.redacting.keys)
        return self._places[tenant]

    async def arrive(self, scope: Scope, request_id: str) -> tuple[Incoming, Scope]:
        """See where a request comes from and what it is for; raise `WrongHost` if that is not served here."""
        headers = Request(scope).headers
        client = self.origins.client(scope, headers)
        if len(headers.getlist("host")) > 1:
            raise WrongHost("the request names several hosts; send one Host header")
        of_host = await self._tenant_of(client) if self.hf.settings.tenants else None
        if of_host is None and not self.origins.serves(client.host):
            raise WrongHost(
                f"host {client.host!r} is not served here; add it to hosts= of asgi(), or to --allow-host of `holdfast "
                "serve`"
            )
        found = OF_TENANT.match(route_path(scope)) if self.hf.settings.tenants else None
        if found is None:
            return Incoming(request_id, client, of_host), scope
        if of_host is not None and found[1] != of_host:
            raise no_tenant()
        within = {**scope, "root_path": scope.get("root_path", "") + found[0]}
        return Incoming(request_id, client, found[1]), within

    async def _tenant_of(self, client: Client) -> str | None:
        """Name the tenant that the host belongs to; looked up once in five seconds, seldom for who makes them up."""
        now, host = self.hf._runtime.monotonic(), client.host
        at, name = self._hosts.get(host, (now - KEPT_SECONDS, None))
        if now - at < KEPT_SECONDS:
            return name
        if name is None and not self.origins.serves(host):
            self.requests.spend(f"host {client.source}", "requests for hosts that are not served")
        name = await self.hf.store.read(tenants.find_by_host, host)
        self._hosts[host] = now, name
        if len(self._hosts) > MOST_HOSTS:
            self._hosts.popitem(last=False)
        return name

    async def admit(self, came: Incoming, *, is_open: bool) -> None:
        """Refuse a request before it is asked who has sent it; unless it *is_open* to everybody."""

    async def refuse_tenant(self, who: Identity, tenant: str | None, *, is_open: bool, in_control: bool) -> None:
        """Refuse a tenant that is not there or not theirs, in the same words; *in_control*: it is not for tenants."""
        if is_open:  # what these answer is the same for every tenant, and for a name that is none
            return
        if tenant is not None and in_control:
            raise NoSuchRoute("tenants are managed in the control place: ask without /t/…/, by its own host")
        if tenant is None and not who.may_use(None):
            raise Forbidden(
                f"this is the control place, and {who.name} may use the tenant {who.tenant!r} only; ask below "
                f"/t/{who.tenant}/, or by the tenant's host name"
            )
        if not who.may_use(tenant):
            raise no_tenant()
        if tenant is not None:
            try:
                await self.hf._tenant_faces.registry.look(tenant)
            except (TenantNotFound, UsageError):
                raise no_tenant() from None

    def problem(self, error: HoldfastError, request_id: str, shown: Shown) -> Response:
        """Answer with what is wrong."""
        return problem(error, request_id, shown)

    def allow_origin(self, headers: MutableHeaders, origin: str | None) -> None:
        """Let pages of a named origin read the answer; nobody else's."""
        if origin is not None and self.origins.allows(origin):
            headers["Access-Control-Allow-Origin"] = origin
            headers["Access-Control-Allow-Credentials"] = "true"
            headers["Access-Control-Expose-Headers"] = "ETag, Retry-After, X-Request-Id"
            headers["Cross-Origin-Resource-Policy"] = "cross-origin"
            headers.add_vary_header("Origin")


def route_path(scope: Scope) -> str:
    """Give the path below where the application is mounted."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path


def no_tenant() -> HoldfastError:
    """Refuse a tenant that is not there, or not theirs: nobody is told which."""
    return Forbidden("there is no such tenant, or you may not use it; use a token of that tenant")
