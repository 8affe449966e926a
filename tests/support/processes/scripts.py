"""A script that a test writes, in a process of its own and on the test's own database."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from holdfast import Holdfast
from tests.support.processes import forked

QUIET = "import warnings; warnings.filterwarnings('ignore', '.* is multi-threaded, use of fork', DeprecationWarning)\n"
"""Python 3.12 and later warn whoever forks beside threads, which these scripts do on purpose."""


async def run_script(text: str, directory: Path, hf: Holdfast) -> tuple[list[str], str]:
    """Run *text*, whose arguments are the address and the schema of *hf*; give the words it printed, and errors."""
    script = directory / "script.py"
    script.write_text(QUIET + text)
    command = [sys.executable, script, hf.settings.database, hf.settings.schema_name]
    ran = await asyncio.to_thread(forked.run, command, capture_output=True, text=True, timeout=60)
    return ran.stdout.split(), ran.stderr
