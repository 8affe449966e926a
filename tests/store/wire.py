"""Listens to what goes to PostgreSQL on one connection, whichever library it is of."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import Self

from tests.support.faults.fault_proxy import FaultProxy

VERB = re.compile(r"(?:^|;)\s*(\w+)")


class Wire:
    """The statements that were run inside its `with`, by their first words; connect to its *url*, and only once."""

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._before = 0
        self.verbs: list[str] = []

    @property
    def url(self) -> str:
        """The address that is listened to."""
        return self._proxy.url

    def __enter__(self) -> Self:
        self._before = len(list(self._run()))
        return self

    def __exit__(self, *_: object) -> None:
        self.verbs = list(self._run())[self._before :]

    def _run(self) -> Iterator[str]:
        """Give the verbs of all that was ever run: as one message, or prepared and then bound any number of times."""
        prepared: dict[str, str] = {}
        for kind, body in messages(bytes(self._proxy.sent)):
            texts = [each.decode() for each in body.split(b"\0")[:2]]
            if kind == b"Q":
                yield from VERB.findall(texts[0])
            elif kind == b"P":
                prepared[texts[0]] = texts[1]
            elif kind == b"B":
                yield from VERB.findall(prepared[texts[1]])


def messages(sent: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Take apart what a client has sent; what it says before the server knows it has no kind, and is left out."""
    at = 0
    while at < len(sent):
        kind = sent[at : at + 1].strip(b"\0")
        at += len(kind)
        (length,) = struct.unpack_from("!i", sent, at)
        if kind in (b"Q", b"P", b"B"):
            yield kind, sent[at + 4 : at + length]
        at += length
