"""What an endpoint is: a row of the table in `endpoints`, and the request as its handler sees it.

A handler is one line over `Holdfast`. It gets an `Inquiry`: the path, the query and the body are already read and
checked, whoever asks may do it, and `ask.hf` writes each act down in that person's name. It sees no request, and its
errors become problems. *role* has no default, so that an endpoint without one cannot be written.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated, Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from holdfast.access import Role
from holdfast.app import Holdfast
from holdfast.http.identity import Identity
from holdfast.http.redacting import Shown
from holdfast.http.service import Service
from holdfast.ids import target_id

Method: TypeAlias = Literal["GET", "POST", "PUT", "DELETE"]


class Open(Enum):
    """The mark of an endpoint that needs no identity."""

    NOBODY = "nobody"


NOBODY: Final = Open.NOBODY
KEY: Final = "Idempotency-Key"


class Taken(BaseModel):
    """What a body or a query may say; unknown words are refused, with the nearest known one."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoQuery(Taken):
    """A query that says nothing."""


class NoBody(Taken):
    """A body that says nothing."""


PageLimit: TypeAlias = Annotated[int, Field(json_schema_extra={"minimum": 1, "maximum": 500})]
"""Only told here: what reads the list refuses others, in its own words."""


class PageQuery(Taken):
    """Which page of a list."""

    limit: PageLimit = 50
    cursor: str | None = None

    @property
    def page(self) -> dict[str, Any]:
        """The keywords of a list."""
        return {"limit": self.limit, "cursor": self.cursor}


Q = TypeVar("Q", bound=Taken)
B = TypeVar("B", bound=Taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry(Generic[Q, B]):
    """A request that may be answered, as a handler sees it."""

    service: Service
    hf: Holdfast
    """The place that it is about; what is done by it is written down in the name of *who*."""
    control: Holdfast
    """The same of the control place, where tokens, links and tenants are; *hf* itself where there are no tenants."""
    who: Identity
    tenant: str | None
    path: Mapping[str, str]
    query: Q
    body: B
    request: Request
    """For what is no plain answer, such as a stream."""
    request_id: str
    shown: Shown
    """What *who* may see: `ask.shown.job(job)`, `.event(event)`, and `.of(task)` for values of that task's jobs."""

    @property
    def id(self) -> UUID:
        """The id in the path, or `InvalidId`."""
        return target_id(self.path["id"])

    @property
    def root(self) -> str:
        """The path at which this is mounted, as an address has it."""
        return quote(self.request.scope.get("root_path", ""))


class Reply(NamedTuple):
    """An answer that has more to say than its body: another status, or headers."""

    body: object
    status: int = 200
    headers: Mapping[str, str] = {}


Handler: TypeAlias = Callable[[Inquiry[Any, Any]], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One route: its handler gives what is written as JSON, a `Reply`, None for 204, or a response of Starlette."""

    method: Method
    path: str
    role: Role | Open
    handler: Handler
    query: type[Taken] = field(default=NoQuery, kw_only=True)
    takes: type[Taken] | None = field(default=None, kw_only=True)
    """The body; None if there is none."""
    gives: Any = field(default=None, kw_only=True)
    """The type of the answer, which OpenAPI describes; None if there is no body."""
    status: int = field(default=200, kw_only=True)
    also: Mapping[int, Any] = field(default_factory=dict, kw_only=True, hash=False)
    """Other answers that are no problems, by status."""
    problems: tuple[int, ...] = field(default=(), kw_only=True)
    """The statuses of problems beside those that every endpoint may have."""
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    """Headers of its own that it heeds, and what they are for."""
    media: str = field(default="application/json", kw_only=True)
    is_secret: bool = field(default=False, kw_only=True)
    """Whether a secret may be in its answer, so that it is never compressed."""
    in_control: bool = field(default=False, kw_only=True)
    """Whether it is about the control place alone, so that no tenant has it."""

    @property
    def is_act(self) -> bool:
        """Tell whether it may change something."""
        return self.method != "GET"

    @property
    def names_chain(self) -> bool:
        """Tell whether it is about the chain that its path or its query names, and so may be for a guest."""
        return "/chains/{id}" in self.path or "chain" in self.query.model_fields

    @property
    def operation_id(self) -> str:
        """The name that OpenAPI gives it."""
        return f"{self.handler.__module__.rpartition('.')[2]}_{self.handler.__name__}"

    @property
    def summary(self) -> str:
        """What it does, in a sentence."""
        return (self.handler.__doc__ or "").partition("\n")[0].rstrip(".")
