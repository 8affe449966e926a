"""Play seeds again: `python -m tests.simulation SEED [SECONDS [FAULT,…]]` tells how it went, and what led to it."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import pytest

from tests.simulation.world import FAULTS, SAFETY_SECONDS, cut_the_log_early, make_template, play


def main(seed: str, seconds: str = str(SAFETY_SECONDS), faults: str = ",".join(FAULTS)) -> None:
    """Play one seed and print its history."""
    logging.disable(logging.CRITICAL)
    cut_the_log_early(pytest.MonkeyPatch())
    with tempfile.TemporaryDirectory() as folder:
        template = make_template(Path(folder))
        wanted = FAULTS if faults == ",".join(FAULTS) else faults.split(",")
        outcome = play(int(seed), Path(folder), template, float(seconds), wanted)
    print("\n".join(outcome.history))
    print(outcome.reached)
    print(outcome.violation or "nothing that must never be")


main(*sys.argv[1:])
