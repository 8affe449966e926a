"""What is carried away: `/api/jobs.csv` and `/api/chains/{id}/export`. Of all reads these alone stand in the audit.

Both are written a page at a time, so that neither is ever whole in memory.
"""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse

from holdfast.client.chain_handle import Chain
from holdfast.http.chains import shown_chain
from holdfast.http.endpoint import Inquiry, NoBody, NoQuery
from holdfast.http.jobs import HistoryEvent, JobsFilter, history_event, now_of, wanted_of
from holdfast.models import Job, Page
from holdfast.store import audit
from holdfast.store.audit import NewAuditEntry
from holdfast.times import instant_text
from holdfast.wire.chain_json import ChainObject
from holdfast.wire.job_json import JobObject
from holdfast.wire.json_text import json_bytes

MOST_ROWS = 10_000
MOST_EXPORTED_JOBS = 10_000
MOST_EXPORTED_EVENTS = 100_000
PAGE, LARGE_PAGE = 20, 500
"""How many jobs are read at a time: whole ones, which may be large, and rows of a table."""

COLUMNS = (
    *("id", "chain_id", "chain_index", "parent", "task", "queue", "lane", "priority", "tags", "status", "state"),
    *("attempt", "used", "crashes", "worker", "reason", "progress", "run_at", "created_at", "started_at"),
    *("finished_at", "completed_by"),
)
"""What a row has of a job, before the type of its error."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a cell begins with that a spreadsheet would not show as it is."""


class ExportedEvent(HistoryEvent):
    """An event of an exported chain, and of which of its jobs."""

    job_id: str


class ChainExport(BaseModel):
    """A chain with all there is of it, as who asked may see it; *is_whole* tells whether it is all."""

    exported_at: str
    exported_by: str
    chain: ChainObject
    jobs: list[JobObject]
    events: list[ExportedEvent]
    is_whole: bool


async def jobs_csv(ask: Inquiry[JobsFilter, NoBody]) -> Response:
    """Download up to 10,000 jobs as CSV, narrowed by the filters of the list, without inputs and outputs."""
    wanted = wanted_of(ask)
    first = await ask.hf.list_jobs(**wanted, limit=LARGE_PAGE)

    async def rows() -> AsyncIterator[bytes]:
        yield _lines([[*COLUMNS, "error_type"]])
        page, left = first, MOST_ROWS
        while True:
            yield _lines(_row(ask, job) for job in page[:left])
            left -= len(page)
            if page.next_cursor is None or left <= 0:
                return
            page = await ask.hf.list_jobs(**wanted, limit=LARGE_PAGE, cursor=page.next_cursor)

    await _note(ask, "jobs.csv", {"filter": sorted(wanted)})
    return _download(ask, rows, "text/csv; charset=utf-8", "jobs.csv")


async def chain(ask: Inquiry[NoQuery, NoBody]) -> Response:
    """Download a chain: its jobs, their inputs and outputs, and all their events, as one JSON."""
    found = await ask.hf.get_chain(ask.id)
    first = await ask.hf.list_chain_jobs(found, limit=PAGE)
    await _note(ask, str(found.id), {})
    return _download(ask, lambda: _whole(ask, found, first), "application/json", f"chain-{found.id}.json")


async def _whole(ask: Inquiry[Any, Any], found: Chain[Any], page: Page[Job]) -> AsyncIterator[bytes]:
    head = {"exported_at": instant_text(now_of(ask)), "exported_by": ask.who.name, "chain": shown_chain(ask, found)}
    yield json_bytes(head)[:-1] + b',"jobs":['
    jobs, events = _Listed(MOST_EXPORTED_JOBS), _Listed(MOST_EXPORTED_EVENTS)
    ids = []
    while True:
        ids += [each.id for each in page]
        yield jobs.written(ask.shown.job(each) for each in page)
        if page.next_cursor is None or jobs.is_full:
            break
        page = await ask.hf.list_chain_jobs(found, limit=PAGE, cursor=page.next_cursor)
    yield b'],"events":['
    is_whole = page.next_cursor is None
    for each in ids:
        cursor = None
        while not events.is_full:
            told = await ask.hf.timeline(each, limit=LARGE_PAGE, cursor=cursor)
            yield events.written({**history_event(ask, event), "job_id": str(each)} for event in told)
            if (cursor := told.next_cursor) is None:
                break
    yield b'],"is_whole":' + json_bytes(is_whole and not events.is_full) + b"}"


class _Listed:
    """The items of a list that is written in pieces, up to *most*."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._is_empty = True

    @property
    def is_full(self) -> bool:
        return self._left <= 0

    def written(self, items: Iterable[object]) -> bytes:
        texts = list(map(json_bytes, items))
        self._left -= len(texts)
        text = b",".join(texts)
        if not texts or self._is_empty:
            self._is_empty = self._is_empty and not texts
            return text
        return b"," + text


def _row(ask: Inquiry[Any, Any], job: Job) -> list[object]:
    written = ask.shown.job(job, brief=True)
    error = written["error"] or {}
    tags = " ".join(written["tags"])
    values = [tags if name == "tags" else written[name] for name in COLUMNS]
    return [_cell(each) for each in (*values, error.get("type") if isinstance(error, dict) else None)]


def _cell(value: object) -> object:
    """Have a spreadsheet show a text as it is, and run none."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _lines(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode("utf-8", errors="replace")


async def _note(ask: Inquiry[Any, Any], subject: str, facts: dict[str, Any]) -> None:
    """Write down who has carried it away, before any of it is sent."""
    if ask.request.method == "HEAD":
        return
    entry = NewAuditEntry(str(ask.hf._starter.new_id()), ask.who.name, "export", subject, None, ask.request_id, facts)
    await ask.hf.store.run(audit.write, entry)


def _download(ask: Inquiry[Any, Any], pieces: Callable[[], AsyncIterator[bytes]], media: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    if ask.request.method == "HEAD":
        return Response(None, 200, headers, media)
    return StreamingResponse(pieces(), 200, headers, media)
