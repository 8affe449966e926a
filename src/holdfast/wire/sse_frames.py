"""Server-sent events on the wire: messages as bytes, in which no value can forge a line, a field or a message.

A reader of such a stream ends a line at CR, LF or both, and a message at an empty line; it leaves out one blank behind
a field's name. So data is written a line at a time, whatever ended its lines, and a name or an id that would hold a
line's end is refused: there is no other way to write it. An id with NUL is refused too: browsers pass over it.
"""

from __future__ import annotations

import re

from holdfast.errors import InvalidInput

MEDIA_TYPE = "text/event-stream"

# not str.splitlines(): it also ends lines where a reader of the stream goes on, such as at U+2028 or a form feed
LINE_END = re.compile("\r\n|\r|\n")
FORGING = re.compile("[\r\n\0]")


def message(data: str, *, event: str | None = None, id: str | None = None) -> bytes:  # noqa: A002 - the field's name
    """Write one message; a browser gives *data* with LF for every end of a line, and None leaves a field out.

    Raises `InvalidInput` for an *event* or *id* with CR, LF or NUL.

    >>> message('{"percent":40}', event="job:progress", id="c5").decode()
    'event: job:progress\\nid: c5\\ndata: {"percent":40}\\n\\n'
    """
    lines = [*_line("event", event), *_line("id", id), *(f"data: {line}" for line in LINE_END.split(data))]
    return _block(lines)


def resume_point(id: str) -> bytes:  # noqa: A002 - the field's name
    """Have a reader resume behind *id*, without a message that it would see."""
    return _block(_line("id", id))


def retry(milliseconds: int) -> bytes:
    """Have a reader that has lost its stream ask again after *milliseconds*.

    >>> retry(2000)
    b'retry: 2000\\n\\n'
    """
    return _block(_line("retry", str(milliseconds)))


def _line(field: str, value: str | None) -> list[str]:
    if value is None:
        return []
    if FORGING.search(value):
        raise InvalidInput(f"{field} must have no line break and no NUL, which would forge a message", field)
    return [f"{field}: {value}"]


def _block(lines: list[str]) -> bytes:
    # a lone surrogate cannot be written as UTF-8, and a stream should not end because of one
    return "\n".join([*lines, "", ""]).encode("utf-8", errors="replace")
