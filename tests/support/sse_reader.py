"""Reads server-sent events as the specification tells browsers to, a piece at a time, however the pieces are cut."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

LINE_END = re.compile("\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as a page's listener is given it."""

    event: str
    data: str
    last_id: str

    @property
    def json(self) -> Any:
        """What its data says."""
        return json.loads(self.data)


class Reader:
    """An event source without its connection: takes bytes, gives messages."""

    def __init__(self) -> None:
        self.last_id = ""
        self.retry_ms: int | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._event = ""
        self._data: list[str] = []
        self._id = ""

    def feed(self, piece: bytes) -> list[Message]:
        """Take *piece*; give the messages that are whole by now."""
        self._text += self._decoder.decode(piece)
        *lines, self._text = LINE_END.split(self._text)
        if self._text == "" and piece.endswith(b"\r"):  # it may be half of a line's end: wait for the other one
            self._text = lines.pop() + "\r"
        return [each for line in lines if (each := self._take(line)) is not None]

    def _take(self, line: str) -> Message | None:
        if line == "":
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_ms = int(value)
        return None

    def _dispatch(self) -> Message | None:
        event, data = self._event, self._data
        self.last_id = self._id
        self._event, self._data = "", []
        return Message(event or "message", "\n".join(data), self.last_id) if data else None


def read(pieces: Iterable[bytes]) -> list[Message]:
    """Give the messages of a whole stream."""
    reader = Reader()
    return [message for piece in pieces for message in reader.feed(piece)]
