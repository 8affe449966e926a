"""`/api/chains`: list, read and delete chains; `/api/links`: links by which an outsider sees one of them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from pydantic import AwareDatetime, BaseModel

from holdfast.client.chain_handle import Chain
from holdfast.errors import ChainNotFound
from holdfast.http.endpoint import Inquiry, NoBody, NoQuery, PageQuery, Taken
from holdfast.http.jobs import (
    SearchedObject,
    StepsQuery,
    WhyBody,
    Words,
    cut_short,
    listed,
    page_object,
    refuse_long,
    searched_object,
)
from holdfast.http.problems import Forbidden
from holdfast.models import Order
from holdfast.store.chains import deletes
from holdfast.wire.access_json import LinkObject, link_object
from holdfast.wire.chain_json import ChainObject, chain_object


class ChainsQuery(PageQuery):
    """Which chains; *status* is that of the last job, *roots_only* leaves out blockers."""

    id: Words = ()
    task: Words = ()
    status: Words = ()
    is_open: bool | None = None
    roots_only: bool = False
    created_from: AwareDatetime | None = None
    created_to: AwareDatetime | None = None
    order: Order = "newest"
    internal: bool = False

    def wanted(self) -> dict[str, Any]:
        """Give the keywords of `hf.list_chains`."""
        return {name: getattr(self, name) for name in self.model_fields_set}


class DeleteQuery(Taken):
    """How a chain is deleted: *cascade* takes its blockers along, *dry_run* only tells."""

    cascade: bool = False
    dry_run: bool = False
    why: str | None = None


class LinkBody(WhyBody):
    """For how long a link shows a chain, and whether inputs, outputs and errors as well."""

    hours: float = 24
    payloads: bool = False


class ChainPage(BaseModel):
    """A page of chains; it may be short, or empty, and have a next one."""

    items: list[ChainObject]
    next_cursor: str | None
    searched: SearchedObject | None


class DeletedChains(BaseModel):
    """The ids of the chains that were deleted, or would be by a dry run."""

    ids: list[str]
    dry_run: bool


class NewLinkObject(BaseModel):
    """A link that was just made; its address holds a secret, which is shown only now."""

    link: LinkObject
    url: str


class LinkPage(BaseModel):
    """A page of links."""

    items: list[LinkObject]
    next_cursor: str | None


def shown_chain(ask: Inquiry[Any, Any], chain: Chain[Any]) -> dict[str, Any]:
    """Write a chain as who asks may see it."""
    return chain_object(chain, ask.shown.of(chain.last_task))


async def list_all(ask: Inquiry[ChainsQuery, NoBody]) -> dict[str, Any]:
    """List chains, newest first, narrowed by filters."""
    page = await ask.hf.list_chains(**ask.query.wanted())
    return {**page_object(page, lambda each: shown_chain(ask, each)), "searched": searched_object(page)}


async def read(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """Read a chain, by its id or by that of any of its jobs."""
    return shown_chain(ask, await ask.hf.get_chain(ask.id))


async def list_steps(ask: Inquiry[StepsQuery, NoBody]) -> dict[str, Any]:
    """List the jobs of a chain, its first one first."""
    refuse_long(ask.query)
    page = await ask.hf.list_chain_jobs(ask.id, **ask.query.page)
    if ask.query.view == "full":
        page = cut_short(page, "steps", lambda job: job.chain_index)
    return {**page_object(page, lambda job: listed(ask, job, ask.query.view)), "searched": None}


async def blocked(ask: Inquiry[StepsQuery, NoBody]) -> dict[str, Any]:
    """List the jobs that have a chain as a blocker, newest first."""
    refuse_long(ask.query)
    page = await ask.hf.list_blocked_by(ask.id, **ask.query.page)
    if ask.query.view == "full":
        page = cut_short(page, "newest", lambda job: job.seq)
    return {**page_object(page, lambda job: listed(ask, job, ask.query.view)), "searched": None}


async def delete(ask: Inquiry[DeleteQuery, NoBody]) -> dict[str, Any]:
    """Delete a whole chain, with its blockers if that is asked for; or tell what would go."""
    query = ask.query
    if not query.dry_run:
        gone = await ask.hf.delete(ask.id, cascade=query.cascade)
    elif not (gone := await ask.hf.store.read(deletes.would_delete, [ask.id], query.cascade)):
        raise ChainNotFound(ask.id)
    return {"ids": list(map(str, gone)), "dry_run": query.dry_run}


async def link(ask: Inquiry[NoQuery, LinkBody]) -> dict[str, Any]:
    """Make a link by which an outsider sees a chain, live and for some hours."""
    if ask.body.payloads and not ask.shown.payloads:
        raise Forbidden("you are shown no inputs and outputs, so no link of yours shows them; leave out payloads")
    made = await ask.hf.links.create(ask.id, hours=ask.body.hours, payloads=ask.body.payloads)
    return {"link": link_object(made.link), "url": made.url(_base(ask))}


def _base(ask: Inquiry[Any, Any]) -> str:
    """Give the address that who asks has used."""
    request = ask.request
    scheme = ask.service.origins.client(request.scope, request.headers).scheme
    place = urlsplit(f"//{request.headers.get('host', '')}").netloc.rpartition("@")[2]
    return f"{scheme}://{place}{ask.root}"


async def list_links(ask: Inquiry[PageQuery, NoBody]) -> dict[str, Any]:
    """List the links, newest first, without their secrets."""
    return page_object(await ask.hf.links.list(**ask.query.page), link_object)


async def revoke_link(ask: Inquiry[NoQuery, NoBody]) -> dict[str, Any]:
    """Have a link show nothing any more."""
    return link_object(await ask.hf.links.revoke(ask.id))
