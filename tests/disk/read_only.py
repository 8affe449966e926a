"""A worker whose files may not be written for a while: `python -m tests.disk.read_only jobs.db jobs.db 400`.

The words are the database, the file or directory whose mode is changed, and the mode. It says in JSON what became of
it. A fork makes it close its connections: those that are open already do not ask for permission again.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
from pathlib import Path

from holdfast import Holdfast
from tests.disk.starved import TASKS, ended, fork_once, gate, refusal, waits
from tests.support.conditions import until

CAPABILITIES = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
DAC_OVERRIDE, DAC_READ_SEARCH = 1 << 1, 1 << 2


def obey_modes() -> None:
    """Bind this thread, and those that it begins, by the modes of files, as everybody is but root."""
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES, 0)
    rights = (ctypes.c_uint32 * 6)()
    if library.capget(header, rights) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for each in (0, 1):  # in effect, and permitted
        rights[each] &= ~(DAC_OVERRIDE | DAC_READ_SEARCH)
    if library.capset(header, rights) != 0:
        raise OSError(ctypes.get_errno(), "capset")


async def main(database: Path, place: Path, mode: int) -> None:
    """Take the right to write away while a job runs, and give it back."""
    hf = Holdfast(str(database), tasks=[TASKS], deadline_seconds=1)
    async with hf, hf.worker(poll=0.05) as worker:
        early = await hf.start_many([waits(n=1), waits(n=2)])
        await until(lambda: worker.health().running == 2, "the handlers run", 30)

        before = place.stat().st_mode
        place.chmod(mode)
        fork_once()
        refused = await refusal(hf)
        gate.set()
        await until(lambda: len(ended) == 2 and worker.health().trouble_since is not None, "it is in trouble", 30)

        place.chmod(before)
        results = [await each.result(timeout=30) for each in early]
        late = await hf.start(waits(n=3))
        results.append(await late.result(timeout=30))
    print(json.dumps({"refused": refused, "results": results}))


if __name__ == "__main__":
    os.umask(0o077)
    obey_modes()
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3], 8)))
