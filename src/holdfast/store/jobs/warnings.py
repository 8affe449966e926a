"""Warnings: what went wrong in a handler after its job was completed; it is kept in the history and undoes nothing."""

from __future__ import annotations

import json

from holdfast.database.tx import Tx
from holdfast.states import Status
from holdfast.store.jobs.claiming import Token
from holdfast.store.log import events

FIND = """
    SELECT status, version FROM holdfast_job
    WHERE seq = :seq AND attempt = :attempt AND coalesce(nonce, '') = :nonce"""


async def append(tx: Tx, token: Token, error: str) -> None:
    """Append an event with *error*, a JSON text, to the job that the attempt of *token* has completed."""
    for status, version in await tx.fetch_all(FIND, seq=token.seq, attempt=token.attempt, nonce=token.nonce):
        facts = json.dumps({"error": json.loads(error)})
        await events.append(
            tx, [events.NewEvent(token.seq, "job:warning", Status(status), version, token.attempt, facts)]
        )
