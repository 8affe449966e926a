"""The messages between a worker and its child processes: a JSON object on each line, and nothing that can be run.

worker to child   begin     where its application is, and what else it is to know
                  run       a job under a number, which it may begin when it has taken that from its `tickets`
                  lease     how long it is good for by now
                  abort     have the handler stop, and why
                  written   that a report is in the database
                  answer    to what was asked under a number
child to worker   hello     it has imported its application; which database that has
                  taken     it begins the job of that number
                  report    how far the handler is
                  hold      write no reports until `release`; is answered when none is under way
                  release   go on with reports
                  completed a block has completed the job
                  ended     what the attempt came to
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from holdfast.outcomes import Outcome
from holdfast.store.jobs.claiming import Claimed, ProgressReport

Message: TypeAlias = dict[str, Any]

CHUNK = 65_536

JOB = TypeAdapter(Claimed)
OUTCOME = TypeAdapter(Outcome | None)
"""Dumped without what is as usual: most jobs leave nothing but an output."""
REPORT = TypeAdapter(ProgressReport)


def encode(say: str, **facts: object) -> bytes:
    return json.dumps({"say": say, **facts}).encode() + b"\n"


class MessageReader:
    """Puts messages together from the pieces in which they arrive."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[Message]:
        """Add *piece*; give the messages that are whole by now, those before one that is no JSON as well."""
        *whole, rest = piece.split(b"\n")
        if not whole:
            self._rest += rest
            return iter(())
        first = bytes(self._rest) + whole[0]
        self._rest = bytearray(rest)
        return map(json.loads, map(bytes.decode, (first, *whole[1:])))  # of bytes it would guess the encoding first
