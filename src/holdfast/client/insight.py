"""What both faces tell about the whole, written once: each function takes a `Runner` first, as the verbs do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast.client.list_options import PageOptions, page_of
from holdfast.database.tx import Runner
from holdfast.errors import InvalidInput, got
from holdfast.models import Page
from holdfast.tasks.decoder import Decoder

if TYPE_CHECKING:
    from holdfast.questions import InboxEntry, InboxKind


async def inbox(runner: Runner, decoder: Decoder, kind: InboxKind | None, options: PageOptions) -> Page[InboxEntry]:
    """List what waits for a person."""
    from holdfast.questions import KINDS, Ask, Halt, PausedJob  # few programs ask
    from holdfast.store.insight import inbox as entries

    if kind is not None and kind not in KINDS:
        raise InvalidInput(f"kind must be {', '.join(map(repr, KINDS))} or None for all, {got(kind)}", "kind")
    wanted = page_of(options, "inbox()")
    page = await runner.read(entries.inbox, kind, wanted.limit, wanted.cursor)
    return page.map(
        lambda each: replace(each, job=decoder.job(each.job)) if isinstance(each, Ask | Halt | PausedJob) else each
    )
