"""The target queue's own routes, as an application of its own: `targets(hf, task=…)`.

Paths, words, answers and errors are those of that service, so that its clients need no change. The tenant is that of
the host; its API key is a token of Holdfast for that tenant, in `X-API-Key` or as a bearer token. What may be done with
it, and its audit, are as everywhere. An error is `{"detail": …}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from holdfast.access import Role
from holdfast.app import Holdfast
from holdfast.errors import HoldfastError, Misuse, TenantNotFound, TenantSuspended, UsageError, got
from holdfast.http import target_jobs
from holdfast.http.app import Api
from holdfast.http.endpoint import NOBODY, Endpoint, Handler, Taken
from holdfast.http.identity import Identities, Identity, bearer_of
from holdfast.http.limits import Limits
from holdfast.http.origins import Client, Origins
from holdfast.http.problems import Forbidden, NoSuchRoute, Unauthenticated, detail_of, problem
from holdfast.http.redacting import Redacting, Shown
from holdfast.http.service import Incoming, Service
from holdfast.http.target_jobs import (
    AllTargetJobsQuery,
    AnyQuery,
    DatabaseHealth,
    IsTarget,
    LogQuery,
    NewTargetJob,
    Resolution,
    TargetJobList,
    TargetJobObject,
    TargetJobsQuery,
    TargetLogObject,
    TargetRules,
    TargetVerbBody,
)
from holdfast.tasks.task import Task
from holdfast.worker.options import WorkerKeywords

KEY = "X-API-Key"
LIMITS = Limits(requests_per_second=500)
"""All programs of a tenant may have one key, and they poll."""
OF_TARGET = "/targets/{target}/jobs"
OF_JOB = f"{OF_TARGET}/{{id}}"
WRONG_STATE = frozenset({HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED})


def _read(path: str, handler: Handler, gives: Any, query: type[Taken] = AnyQuery) -> Endpoint:
    return Endpoint("GET", path, Role.VIEWER, handler, query=query, gives=gives, problems=(404,))


def _act(path: str, handler: Handler, takes: type[Taken] = TargetVerbBody) -> Endpoint:
    return Endpoint(
        "POST", path, Role.OPERATOR, handler, query=AnyQuery, takes=takes, gives=TargetJobObject, problems=(404,)
    )


def _either_way(endpoints: Sequence[Endpoint]) -> Iterator[Endpoint]:
    """Give each endpoint with and without a slash at the end."""
    for each in endpoints:
        other = each.path.removesuffix("/") if each.path.endswith("/") else f"{each.path}/"
        yield from (each, replace(each, path=other))


AS_WRITTEN = (
    _read("/jobs/", target_jobs.list_all, TargetJobList, AllTargetJobsQuery),
    _read(f"{OF_TARGET}/", target_jobs.list_of_target, TargetJobList, TargetJobsQuery),
    _act(f"{OF_TARGET}/", target_jobs.create, NewTargetJob),
    _read(OF_JOB, target_jobs.read, TargetJobObject),
    _act(f"{OF_JOB}/resume/", target_jobs.resume),
    _act(f"{OF_JOB}/interrupt/", target_jobs.interrupt),
    _act(f"{OF_JOB}/cancel/", target_jobs.cancel),
    _act(f"{OF_JOB}/resolve/", target_jobs.resolve, Resolution),
    _read(f"{OF_JOB}/logs/", target_jobs.logs, list[TargetLogObject], LogQuery),
    _read(f"{OF_JOB}/http_exchanges/", target_jobs.http_exchanges, list[TargetLogObject], LogQuery),
    _act("/jobs/{id}/resume", target_jobs.resume),
    Endpoint("GET", "/health/db", NOBODY, target_jobs.health, query=AnyQuery, gives=DatabaseHealth),
)
TARGET_ENDPOINTS: tuple[Endpoint, ...] = tuple(_either_way(AS_WRITTEN))
"""The table of `targets(hf)`; each path is there with and without a slash at its end."""


def targets(
    hf: Holdfast,
    *,
    task: Task[..., Any] | str,
    is_target: IsTarget | None = None,
    worker: bool | WorkerKeywords = False,
    hosts: Sequence[str] = (),
    origins: Sequence[str] = (),
    proxies: Sequence[str] = (),
    redact: Iterable[str] = (),
    limits: Limits | None = None,
) -> Api:
    """Make an application with the target queue's own routes; targets are lanes, and its jobs are those of *task*.

    By itself it opens *hf* and closes it; mounted, *hf* opens when first used, and the worker is your own affair:
    `lifespan=lifespan(hf, worker=True)`.

    The task is called with what a client sends: `target`, `name` and `parameters`. *is_target* is an async function of
    a tenant's name and a target; without it every target exists. *worker* runs one in this process: True, or the
    keywords of `hf.worker()`; when the server stops, it drains first. The tenant is that of the host. Who asks needs a
    token of that tenant (`hf.tenant(name).tokens.create(…)`), as `X-API-Key` or as a bearer token. The other keywords
    are those of `asgi`; unless *limits* say otherwise, a key may send 500 requests a second.
    """
    rules = _rules_of(hf, task, is_target)
    service = TargetService(hf, Origins.of(hosts, origins, proxies), limits or LIMITS, Redacting(redact), rules)
    return Api(service, TARGET_ENDPOINTS, worker=worker)


def _rules_of(hf: Holdfast, task: object, is_target: IsTarget | None) -> TargetRules:
    if isinstance(task, Task):
        return TargetRules(task.name, tuple(task.names), is_target)
    if isinstance(task, str):
        names = tuple(hf.tasks.get(task).names) if task in hf.tasks else (task,)
        return TargetRules(task, names, is_target)
    raise Misuse(f"task= must be a task or its name, {got(task)}; write targets(hf, task=operate)")


class TargetIdentities(Identities):
    """Knows who asks by an API key, and by nothing else."""

    def is_program(self, headers: Headers) -> bool:
        """Say yes: nobody is known here by anything that a browser sends by itself."""
        return True

    def token_of(self, headers: Headers) -> str | None:
        """Give the API key of a request."""
        return headers.get(KEY, bearer_of(headers))

    async def identify(self, request: Request, client: Client) -> Identity:
        """Tell whose key comes with *request*, or raise `Unauthenticated`."""
        if (key := self.token_of(request.headers)) is None:
            raise Unauthenticated(f"there is no API key; send a token of `holdfast token create` as `{KEY}: hf_…`")
        return await self.of_token(key)


class TargetService(Service):
    """What all requests share here: the tenant of the host, its API key, and errors in the words of that service."""

    def __init__(
        self, hf: Holdfast, origins: Origins, limits: Limits, redacting: Redacting, rules: TargetRules
    ) -> None:
        super().__init__(hf, TargetIdentities(hf, None, None), origins, limits, redacting, has_streams=False)
        self.rules = rules

    async def arrive(self, scope: Scope, request_id: str) -> tuple[Incoming, Scope]:
        """See which tenant a request is for: the host says it, and no path does."""
        if not self.hf.settings.tenants:
            return await super().arrive(scope, request_id)
        client = self.origins.client(scope, Request(scope).headers)
        return Incoming(request_id, client, await self._tenant_of(client)), scope

    async def admit(self, came: Incoming, *, is_open: bool) -> None:
        """Refuse a tenant that is unknown or suspended, before anything else is asked."""
        if self.hf.settings.tenants and not is_open:
            await self._refuse_host(came)

    async def _refuse_host(self, came: Incoming) -> None:
        try:
            tenant = None if came.tenant is None else await self.hf._tenant_faces.registry.look(came.tenant)
        except (TenantNotFound, UsageError):
            tenant = None
        if tenant is None or tenant.state != "active":
            raise Forbidden(f"there is no tenant at host {came.client.host!r}, or it is suspended")

    async def refuse_tenant(self, who: Identity, tenant: str | None, *, is_open: bool, in_control: bool) -> None:
        """Refuse the key of another tenant, in the words for one that nobody has."""
        if not is_open and not who.may_use(tenant):
            raise Unauthenticated("this API key is not one of this tenant")

    def problem(self, error: HoldfastError, request_id: str, shown: Shown) -> Response:
        """Answer with what is wrong: a wrong state is 400 here, and a suspended tenant 403."""
        status = HTTPStatus.FORBIDDEN if isinstance(error, TenantSuspended) else error.http_status
        headers = problem(error, request_id, shown).headers
        told = {name: value for name, value in headers.items() if not name.startswith("content-")}
        detail = "Not Found" if isinstance(error, NoSuchRoute) else detail_of(error, shown)
        return JSONResponse({"detail": detail}, HTTPStatus.BAD_REQUEST if status in WRONG_STATE else status, told)
