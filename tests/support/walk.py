"""The walk of a job: which modules run code between a start and its result, and until its webhook has arrived.

`python -m tests.support.walk` runs one job on SQLite with a worker in the same process, and then one with a webhook. It
prints one JSON object: for each of the two walks the modules of Holdfast that ran a function, in the order of their
first calls. The job before them is not recorded: it does what happens once only (imports, migrations, task rows).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
from base64 import b64encode
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 30
SECRET = "whsec_" + b64encode(bytes(32)).decode()


class Recorder:
    """Notes every module of Holdfast that runs a function while `is_on`, in all threads that begin after `start`."""

    def __init__(self) -> None:
        self.is_on = False
        self.modules: dict[str, None] = {}

    def start(self) -> None:
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def _profile(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self.is_on and event == "call" and code.co_name != "<module>" and (name := module_of(code.co_filename)):
            self.modules[name] = None

    def stop(self) -> list[str]:
        """Give what was recorded, and begin anew."""
        self.is_on = False
        found, self.modules = list(self.modules), {}
        return found


@cache
def module_of(file: str) -> str | None:
    """Name the module of Holdfast in *file* as the docs do: `store/jobs/claiming`."""
    _, is_ours, path = file.rpartition("/holdfast/")
    return path.removesuffix(".py").removesuffix("/__init__") if is_ours and "/src/holdfast/" in file else None


class Receiver(BaseHTTPRequestHandler):
    """Answers 200 to every webhook, and sets `arrived`."""

    arrived = threading.Event()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
        self.arrived.set()

    def log_message(self, *_: object) -> None:
        pass


async def walk(recorder: Recorder, directory: str, port: int) -> dict[str, list[str]]:
    """Run the jobs, and give the modules of both walks."""
    from holdfast import Event, Holdfast

    hf = Holdfast(
        f"{directory}/jobs.db",
        webhook_secrets={"default": [SECRET]},
        webhook_private_addresses=["127.0.0.0/8"],
        webhook_ports=[port],
        webhook_http=True,
    )
    url = f"http://127.0.0.1:{port}/"
    heard = {"job:completed": asyncio.Event(), "job:webhook:delivered": asyncio.Event()}

    @hf.task(name="greet")
    async def greet(name: str) -> str:
        return f"Hello, {name}"

    @hf.on(*heard)
    async def note(event: Event) -> None:
        heard[event.name].set()

    async def start(webhook: str | None, *until: str) -> None:
        for each in heard.values():
            each.clear()
        chain = await hf.start(greet(name="Ada"), webhook=webhook)
        await chain.result(timeout=SECONDS)
        async with asyncio.timeout(SECONDS):
            for name in until:
                await heard[name].wait()

    found = {}
    async with hf, hf.worker():
        await start(url, *heard)
        for name, webhook, until in (("job", None, "job:completed"), ("webhook", url, "job:webhook:delivered")):
            recorder.is_on = True
            await start(webhook, until)
            found[name] = recorder.stop()
    return found


def record() -> dict[str, list[str]]:
    """Walk in a new process, and give the modules of both walks."""
    done = subprocess.run(
        [sys.executable, "-m", __name__], cwd=ROOT, check=False, capture_output=True, text=True, timeout=4 * SECONDS
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def main() -> None:
    recorder = Recorder()
    recorder.start()
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(walk(recorder, directory, server.server_port))
    sys.setprofile(None)
    server.shutdown()
    server.server_close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
