"""A TCP proxy with faults, to be put in front of a real PostgreSQL.

It runs in a thread of its own, so that blocking and async tests can use it, and can be told at any time to
be slow, to pass on only slices, to be silent, or to cut connections: all of them, or the next one that sends COMMIT. It
counts round trips and keeps what the clients sent.
"""

from __future__ import annotations

import asyncio
import random
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, Self, TypeAlias
from urllib.parse import urlsplit

from tests.support.processes.servers import stop_listening

Cut: TypeAlias = Literal["before", "after"]

COMMITS = (b"COMMIT\0", b"COMMIT;\0")  # with their end, for every BEGIN says READ COMMITTED; the second is asyncpg's
TERMINATE = b"X\0\0\0\4"


class FaultProxy:
    """Stands between clients and the server at *url*, from `with` on.

    Its *url* leads through it; *round_trips*, *sent* and *accepted*, the number of connections that were ever made
    through it, may be reset by the test. *latency*, give or take *jitter*, delays whatever is read, and *slice_bytes*
    has it passed on in pieces, *slice_pause* seconds apart. *bandwidth* is how many bytes a second all requests
    together may take, as on a line that they share. *cut_at_commit* cuts the next
    connection that commits, "before" or "after" the server has heard it, and *cuts* counts them. It listens on
    loopback, or on the socket *listening*.
    """

    def __init__(self, url: str, listening: socket.socket | None = None) -> None:
        self._target = urlsplit(url)
        self._listening = listening
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._lines: set[Line] = set()
        self._writers: list[asyncio.StreamWriter] = []
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._server: asyncio.Server | None = None
        self._chance = random.Random(14)
        self.latency = self.jitter = 0.0
        self.slice_bytes = 0
        self.slice_pause = 0.0
        self.bandwidth = 0.0
        self._line_free_at = 0.0
        self.round_trips = 0
        self.sent = bytearray()
        self.cut_at_commit: Cut | None = None
        self.cuts = 0
        self.accepted = 0
        self._is_closing = False

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._open).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """The address of the server by way of this proxy."""
        if self._server is None:
            raise RuntimeError("the proxy is not open")
        credentials = self._target.netloc.rpartition("@")[0]
        host, port = self._server.sockets[0].getsockname()
        return self._target._replace(netloc=f"{credentials}@{host}:{port}").geturl()

    @property
    def connections(self) -> int:
        """How many connections there are through it now."""
        return len(self._lines)

    def fall_silent(self) -> None:
        """Pass nothing on from now on, in either direction; keep every connection, and accept new ones."""
        self._call(self._set_speaks, False).result(10)

    def speak(self) -> None:
        """Pass on what was held back, and all that comes."""
        self._call(self._set_speaks, True).result(10)

    def cut(self) -> None:
        """Reset every connection."""
        self._call(self._cut).result(10)

    def _call(self, function: Callable[..., object], *args: object) -> Future[None]:
        async def called() -> None:
            outcome = function(*args)
            if asyncio.iscoroutine(outcome):
                await outcome

        return asyncio.run_coroutine_threadsafe(called(), self._loop)

    async def _open(self) -> None:
        where = {"host": "127.0.0.1", "port": 0} if self._listening is None else {"sock": self._listening}
        self._server = await asyncio.start_server(self._serve, **where)

    async def _close(self) -> None:
        self._is_closing = True
        if self._server is not None:
            await stop_listening(self._server)
        self._speaks.set()
        self._cut()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:  # one may just have been accepted
            await asyncio.gather(*others, return_exceptions=True)
        for writer in self._writers:  # of lines that have ended, too: the loop may not have closed them yet
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for writer in self._writers), return_exceptions=True)

    def _set_speaks(self, speaks: bool) -> None:
        if speaks:
            self._speaks.set()
        else:
            self._speaks.clear()

    def _cut(self) -> None:
        for line in list(self._lines):
            line.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._target.port or 5432
        self.accepted += 1
        self._writers.append(writer)
        try:
            upstream = await asyncio.open_connection(self._target.hostname, port)
        except OSError:
            writer.transport.abort()
            return
        self._writers.append(upstream[1])
        line = Line(self, (reader, writer), upstream)
        if self._is_closing:
            line.abort()
            return
        self._lines.add(line)
        try:
            await asyncio.gather(line.pass_requests(), line.pass_answers())
        except OSError:
            pass
        finally:
            line.abort()
            self._lines.discard(line)

    async def hold(self) -> None:
        """Wait as long as the faults say."""
        if self.latency:
            await asyncio.sleep(max(0.0, self.latency + self._chance.uniform(-self.jitter, self.jitter)))
        await self._speaks.wait()

    async def share_line(self, count: int) -> None:
        """Wait until *count* bytes have gone over the line that all requests share."""
        if self.bandwidth:
            now = self._loop.time()
            self._line_free_at = max(now, self._line_free_at) + count / self.bandwidth
            await asyncio.sleep(self._line_free_at - now)

    async def send(self, data: bytes, writer: asyncio.StreamWriter) -> None:
        """Pass *data* on, in slices if that was asked for."""
        size = self.slice_bytes or len(data)
        for begin in range(0, len(data), size):
            writer.write(data[begin : begin + size])
            await writer.drain()
            if self.slice_bytes:
                await asyncio.sleep(self.slice_pause)


Stream: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Line:
    """One client's connection and its continuation to the server."""

    def __init__(self, proxy: FaultProxy, client: Stream, server: Stream) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._is_answered = True
        self._is_to_be_cut = False

    def abort(self) -> None:
        """Reset both halves."""
        self._to_client.transport.abort()
        self._to_server.transport.abort()

    async def pass_requests(self) -> None:
        """Pass on what the client says, up to a COMMIT that is to be cut."""
        while data := await self._from_client.read(65536):
            self._count(data)
            await self._proxy.hold()
            await self._proxy.share_line(len(data))
            if any(each in data for each in COMMITS) and (cut := self._proxy.cut_at_commit) is not None:
                self._proxy.cut_at_commit = None
                self._proxy.cuts += 1
                self._is_to_be_cut = True
                if cut == "before":
                    self.abort()
                    return
            await self._proxy.send(data, self._to_server)
        self._to_server.close()

    async def pass_answers(self) -> None:
        """Pass on what the server says; if COMMIT is to be cut after it, its answer is lost."""
        while data := await self._from_server.read(65536):
            await self._proxy.hold()
            if self._is_to_be_cut:
                self.abort()
                return
            self._is_answered = True
            await self._proxy.send(data, self._to_client)
        self._to_client.close()

    def _count(self, data: bytes) -> None:
        self._proxy.sent += data
        self._proxy.round_trips += self._is_answered
        self._is_answered = False
