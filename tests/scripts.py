"""A script that a test writes, in a process of its own and on the test's own database."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from holdfast import Holdfast
from tests import forked


async def run_script(text: str, directory: Path, hf: Holdfast) -> tuple[list[str], str]:
    """Run *text*, whose arguments are the address and the schema of *hf*; give the words it printed, and errors."""
    script = directory / "script.py"
    script.write_text(text)
    command = [sys.executable, script, hf.settings.database, hf.settings.schema_name]
    ran = await asyncio.to_thread(forked.run, command, capture_output=True, text=True, timeout=60)
    return ran.stdout.split(), ran.stderr
