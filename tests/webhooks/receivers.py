"""Receivers for tests: a real server on loopback that behaves as it is told, well or badly."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.support.processes.servers import stop_listening

Behave: TypeAlias = Callable[["Received", asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Received:
    """A request as it came over the wire; names of headers are in small letters."""

    line: str
    headers: dict[str, str]
    body: bytes


@dataclass(slots=True)
class Receiver:
    """A server, what it has received so far, and how it behaves; each may be changed while it runs."""

    behave: Behave
    port: int = 0
    scheme: str = "http"
    received: list[Received] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"


@asynccontextmanager
async def receiver(behave: Behave, tls: ssl.SSLContext | None = None) -> AsyncIterator[Receiver]:
    """Run a server on a free port of loopback."""
    made = Receiver(behave, scheme="https" if tls else "http")
    talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks[task] = writer
        try:
            request = await _read(reader)
            made.received.append(request)
            await made.behave(request, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
            del talks[task]

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        await stop_listening(server)
        for task, writer in talks.items():
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


async def _read(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *rest = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in rest)}
    return Received(line, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


def answers(status: int = 200, body: bytes = b"", **headers: str) -> Behave:
    """Answer as it should be done."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + body)

    return behave


def says(raw: bytes) -> Behave:
    """Send just these bytes, and close."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(raw)

    return behave


async def hangs(request: Received, writer: asyncio.StreamWriter) -> None:
    """Never answer."""
    await asyncio.Event().wait()


def drips(text: bytes, seconds: float) -> Behave:
    """Send one byte after the other."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        for byte in text:
            writer.write(bytes((byte,)))
            await writer.drain()
            await asyncio.sleep(seconds)

    return behave


def endless(head: bytes, chunk: bytes) -> Behave:
    """Send *head*, then *chunk* again and again, until nobody takes it any more; at most 2 GB."""

    async def behave(request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        for _ in range(2 * 2**30 // len(chunk)):
            writer.write(chunk)
            await writer.drain()

    return behave


def bomb() -> bytes:
    """Give 50 MB of nothing, packed into 50 kB."""
    return gzip.compress(b"\0" * 50_000_000)


def make_certificate(directory: Path, name: str, kind: str = "DNS") -> tuple[ssl.SSLContext, Path]:
    """Make a certificate that signs itself, for *name*; give what a server needs, and the file that a client trusts."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make a certificate with")
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", f"/CN={name}", "-addext", f"subjectAltName={kind}:{name}", "-keyout", key, "-out", certificate],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate
