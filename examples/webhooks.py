"""Tell others when a job is done, on a SQLite file: a worker posts signed webhooks, a receiver checks and counts them.

The receiver is busy at first and answers 503. So the worker tries again, under the same id, by which the receiver could
tell what it has had already. Then the secret is rotated: for a while both sign, and nobody misses anything.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast import Holdfast, InvalidSignature, Tasks
from holdfast.webhooks import new_secret, verify_webhook

tasks = Tasks()


@tasks.task(name="resize")
async def resize(image: str) -> str:
    """Do something that somebody waits for elsewhere."""
    return f"{image}, small"


class Receiver:
    """Another service: it knows its secret, and is busy for the first request."""

    def __init__(self, secret: str) -> None:
        self.secret = secret
        self.tries = 0
        self.known: set[str] = set()
        self.taken: asyncio.Queue[str] = asyncio.Queue()

    def take(self, headers: dict[str, str], body: bytes) -> int:
        """Check a request, and answer its status: 200 has been taken, 400 is refused, 503 is asked to come again."""
        self.tries += 1
        try:
            said = verify_webhook(body, headers, self.secret)
        except InvalidSignature as error:
            print(f"refused: {error}")
            return 400
        if self.tries == 1:
            return 503
        if headers["webhook-id"] not in self.known:  # else it has come before, and our answer was lost
            self.known.add(headers["webhook-id"])
            self.taken.put_nowait(f"{said['type']}: {said['data']['job']['output']}")
        return 200


@asynccontextmanager
async def serving(take: Callable[[dict[str, str], bytes], int]) -> AsyncIterator[str]:
    """Serve on this machine, as any web framework would; give the address."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head if line)}
        status = take(headers, await reader.readexactly(int(headers["content-length"])))
        writer.write(f"HTTP/1.1 {status} \r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks"


def open_shop(path: Path, *secrets: str) -> Holdfast:
    """Make a face whose webhooks may go to this machine, signed by all of *secrets*."""
    return Holdfast(
        str(path),
        tasks=[tasks],
        webhook_secrets={"default": secrets},
        webhook_http=True,
        webhook_ports=None,
        webhook_private_addresses=True,
        webhook_retry_seconds=0.1,
    )


async def main() -> None:
    """Send webhooks, and rotate their secret."""
    old, new = new_secret(), new_secret()
    receiver = Receiver(old)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "shop.db"
        async with serving(receiver.take) as url:
            hf = open_shop(path, old)
            async with hf, hf.worker():
                await hf.webhooks.subscribe(url, events=["job:completed"], tasks=["resize"])
                chain = await hf.start(resize(image="cat.png"))
                print(f"taken: {await receiver.taken.get()} (in {receiver.tries} tries)")

            hf = open_shop(path, new, old)  # both sign, until the receiver knows the new one
            async with hf, hf.worker():
                await hf.start(resize(image="dog.png"))
                print(f"taken: {await receiver.taken.get()} (by the old secret)")
                receiver.secret = new
                await hf.start(resize(image="owl.png"))
                print(f"taken: {await receiver.taken.get()} (by the new one)")
                print(f"the first job knows: webhook_sent is {(await hf.get_job(chain.id)).webhook_sent}")


if __name__ == "__main__":
    asyncio.run(main())
