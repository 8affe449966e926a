"""Posts one message to one receiver, within its limits of time and bytes; needs the extra `webhooks`.

What answers may be slow, endless, compressed or hostile. So the name is resolved once, in a thread; the connection goes
to an address that has been checked, and nowhere else, while TLS and the header `Host` keep the name; nothing from the
environment leads it elsewhere, no redirect is followed, nothing is unpacked. All of it together has 15 seconds and
64 kB: a receiver that has sent its status by then has answered, whatever becomes of the rest.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from ipaddress import ip_address
from typing import Any, TypeAlias

import httpcore2
from httpcore2 import AsyncNetworkBackend, AsyncNetworkStream

from holdfast.errors import InvalidAddress
from holdfast.texts import clean_text
from holdfast.threads import Threads
from holdfast.webhooks.addresses import Address, AddressRules, Target
from holdfast.webhooks.answers import Answer, NotPosted

CONNECT_SECONDS, TOTAL_SECONDS = 5.0, 15.0
MOST_BYTES = 65_536
RESOLVERS = 256
"""How many names are looked up at once: up to twice as many as there are slots, for a look-up may outlast its post."""
KEPT_CHARACTERS = 1_000

Resolve: TypeAlias = Callable[[str, int], Sequence[str]]
"""Asks what addresses a name has; it blocks, and raises OSError if there are none."""


class _TooLong(Exception):
    """The answer is longer than we read."""


def resolve(host: str, port: int) -> list[str]:
    """Ask the system what addresses *host* has."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class Poster:
    """Posts to receivers that *rules* allow; names are resolved in threads of its own, for they may hang."""

    def __init__(
        self,
        rules: AddressRules,
        monotonic: Callable[[], float],
        *,
        resolve: Resolve = resolve,
        tls: Callable[[], ssl.SSLContext] = httpcore2.default_ssl_context,
        connect_seconds: float = CONNECT_SECONDS,
        total_seconds: float = TOTAL_SECONDS,
        threads: Threads | None = None,
    ) -> None:
        self._rules = rules
        self._monotonic = monotonic
        self._resolve = resolve
        self._make_tls = tls
        self._connect_seconds = connect_seconds
        self._total_seconds = total_seconds
        self._threads = threads or Threads(RESOLVERS)
        self._tls: ssl.SSLContext | None = None

    async def post(self, address: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Post *body* with *headers* to *address*; give the answer, or raise `NotPosted`."""
        began = self._monotonic()
        until = asyncio.get_running_loop().time() + self._total_seconds
        network = _PinnedNetwork(self._monotonic)
        try:
            async with asyncio.timeout_at(until):
                response = await self._status(network, self._rules.check(address), headers, body)
            text = await _read(response, until)
        except Exception as error:  # noqa: BLE001 - whatever a network, a server or a certificate can come to
            problem, what = _problem(error)
            raise NotPosted(problem, what, self._monotonic() - began) from None
        finally:
            await network.close()
        named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        return Answer(response.status, self._monotonic() - began, text, named)

    def close(self) -> None:
        """Let the threads go."""
        self._threads.close()

    async def _status(
        self, network: _PinnedNetwork, target: Target, headers: Mapping[str, str], body: bytes
    ) -> httpcore2.Response:
        """Send the request, and wait for the first lines of the answer."""
        network.addresses = await self._look_up(target)
        self._rules.require(network.addresses, target)
        tls = await self._context() if target.scheme == "https" else None
        origin = httpcore2.Origin(target.scheme.encode(), target.host.encode(), target.port)
        connection = httpcore2.AsyncHTTPConnection(origin, ssl_context=tls, network_backend=network)
        return await connection.handle_async_request(self._request(target, headers, body))

    async def _look_up(self, target: Target) -> list[Address]:
        if target.literal is not None:
            return [target.literal]
        found = await self._threads.call(partial(self._resolve, target.host, target.port))
        return [ip_address(each) for each in found]

    async def _context(self) -> ssl.SSLContext:
        if self._tls is None:  # it reads all certificates of this machine
            self._tls = await self._threads.call(self._make_tls)
        return self._tls

    def _request(self, target: Target, headers: Mapping[str, str], body: bytes) -> httpcore2.Request:
        url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
        ours = {"Host": target.authority, "Content-Length": str(len(body)), "Connection": "close", **headers}
        connect = {"timeout": {"connect": self._connect_seconds}}
        return httpcore2.Request("POST", url, headers=list(ours.items()), content=body, extensions=connect)


async def _read(response: httpcore2.Response, until: float) -> str:
    """Read the body, as far as time and bytes go; give its beginning, made storable."""
    kept = b""
    try:
        async with asyncio.timeout_at(until):
            async for chunk in response.aiter_stream():
                kept += chunk[: max(KEPT_CHARACTERS - len(kept), 0)]
    except (_TooLong, TimeoutError, httpcore2.NetworkError, httpcore2.ProtocolError):
        pass  # the status is what counts, and it has come
    return clean_text(kept.decode(errors="replace"), KEPT_CHARACTERS)


class _PinnedNetwork(AsyncNetworkBackend):
    """Connects to one of its *addresses*, whatever name it is asked for."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.addresses: Sequence[Address] = ()
        self._monotonic = monotonic
        self._network = httpcore2.AnyIOBackend()
        self._stream: AsyncNetworkStream | None = None

    async def close(self) -> None:
        """Close the connection, if there is one, also one that was broken off before it was anybody's."""
        if self._stream is not None:
            await self._stream.aclose()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> AsyncNetworkStream:
        """Connect to the first of the addresses that answers."""
        until = None if timeout is None else self._monotonic() + timeout
        refused: Exception | None = None
        for each in self.addresses:
            left = None if until is None else max(until - self._monotonic(), 0.0)
            try:
                stream = await self._network.connect_tcp(str(each), port, left, local_address, socket_options)
            except httpcore2.ConnectError as error:
                refused = error
                continue
            return self._checked(stream, each)
        raise refused or httpcore2.ConnectError("it has no address")

    def _checked(self, stream: AsyncNetworkStream, address: Address) -> AsyncNetworkStream:
        self._stream = stream
        peer = stream.get_extra_info("server_addr")
        if peer is None or ip_address(peer[0]) != address:
            raise InvalidAddress("the connection leads to another address than it was made for")
        return _BoundedStream(stream, MOST_BYTES)


class _BoundedStream(AsyncNetworkStream):
    """A connection of which only so many bytes are read."""

    def __init__(self, inner: AsyncNetworkStream, left: int) -> None:
        self._inner = inner
        self._left = left

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read some bytes, or raise if all that we want to read has been."""
        if self._left <= 0:
            raise _TooLong
        data = await self._inner.read(min(max_bytes, self._left), timeout)
        self._left -= len(data)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write *buffer*."""
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the connection."""
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> AsyncNetworkStream:
        """Go on with TLS, within the same bounds."""
        return _BoundedStream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._left)

    def get_extra_info(self, info: str) -> Any:
        """Tell what is known of the connection."""
        return self._inner.get_extra_info(info)


def _problem(error: Exception) -> tuple[str, str]:
    """Say in one word, and in a sentence, why there was no answer."""
    match error:
        case InvalidAddress():
            return "address", str(error)
        case httpcore2.ConnectError() if isinstance(error.__cause__, ssl.SSLError):
            return "tls", _said(error.__cause__)
        case httpcore2.ConnectError():
            return "connect", f"no connection: {_said(error)}"
        case httpcore2.ConnectTimeout():
            return "timeout", "no connection in time"
        case TimeoutError() | httpcore2.TimeoutException():
            return "timeout", "no answer in time"
        case OSError() | UnicodeError():  # what a connection comes to has been translated, so it is of the resolver
            return "dns", "its name cannot be resolved"
        case _TooLong():
            return "too_long", f"no status within {MOST_BYTES} bytes"
        case _:
            return "protocol", f"no answer that can be read: {_said(error)}"


def _said(error: BaseException) -> str:
    return clean_text(str(error) or type(error).__name__, 200)
