"""What lies behind an ASGI request: a server's connection, which can be cut off, and a server that may be stopping.

ASGI has a word for neither. A server that is told to stop waits for its open responses first, and a stream of events
has no end: it would wait for ever, and the application would hear of it only afterwards. And a client that reads no
more is not got rid of by ending its response: what has been written for it waits to be taken. So we look where uvicorn
can be seen from here: `receive` is a method of its exchange, or middleware has wrapped one, and the handler of signals
is a method of its server. Other servers are left to their own ways; most of them end what is open after a few seconds.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from types import CellType

from starlette.types import Receive

LOOK_SECONDS = 0.2
MOST_WRAPS = 100


class Connection:
    """The connection of one request, as far as its server shows it."""

    def __init__(self, receive: Receive) -> None:
        self._exchange = _exchange_behind(receive)
        self._was_kept_alive = self._is_kept_alive

    @property
    def is_closing(self) -> bool:
        """Tell whether its server wants to be rid of it: it is stopping."""
        return self._was_kept_alive and not self._is_kept_alive

    @property
    def _is_kept_alive(self) -> bool:
        return bool(getattr(self._exchange, "keep_alive", False))

    def cut(self) -> None:
        """Close it at once, with what its client has not taken yet."""
        abort = getattr(getattr(self._exchange, "transport", None), "abort", None)
        if callable(abort):
            abort()


def _exchange_behind(receive: Receive) -> object | None:
    """Find uvicorn's exchange behind *receive*, through what middleware has put before it."""
    wrapped: list[object] = [receive]
    for each in wrapped:  # it grows meanwhile
        if hasattr(each, "transport") and hasattr(each, "keep_alive"):
            return each
        if len(wrapped) < MOST_WRAPS:
            wrapped += [inner for inner in _wrapped_by(each) if inner not in wrapped]
    return None


def _wrapped_by(wrapper: object) -> list[object]:
    cells = getattr(wrapper, "__closure__", None) or ()
    owners = [getattr(wrapper, name, None) for name in ("__self__", "_receive", "__wrapped__", "func")]
    return [*(each for each in owners if each is not None), *filter(callable, map(_content, cells))]


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # it is still empty
        return None


def is_server_stopping() -> bool:
    """Tell whether the server of this process has been told to stop, if it says so."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True


class ShutdownSignals:
    """Tells open streams that their server is stopping; looks after it only while there are any."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], Connection] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, connection: Connection) -> asyncio.Future[None]:
        """Give what is done once the server of *connection* stops."""
        loop = asyncio.get_running_loop()
        stop: asyncio.Future[None] = loop.create_future()
        self._waiting[stop] = connection
        self._timer = self._timer or loop.call_later(LOOK_SECONDS, self._look, loop.call_later)
        return stop

    def withdraw(self, stop: asyncio.Future[None]) -> None:
        """Forget a stream that has ended."""
        del self._waiting[stop]
        stop.cancel()
        if not self._waiting and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop_all(self) -> None:
        """Have every open stream end."""
        for stop in self._waiting:
            _resolve(stop)

    def _look(self, call_later: Callable[..., asyncio.TimerHandle]) -> None:
        is_stopping = is_server_stopping()
        for stop, connection in self._waiting.items():
            if is_stopping or connection.is_closing:
                _resolve(stop)
        self._timer = call_later(LOOK_SECONDS, self._look, call_later)


def _resolve(stop: asyncio.Future[None]) -> None:
    if not stop.done():
        stop.set_result(None)
