"""A pytest plugin that keeps the files of tests in memory, where there is room: no commit waits for a disk there.

A test of a SQLite file takes a third of its time then, and two runs beside each other do not hold each other up. What
a passed test leaves is removed at once (`tmp_path_retention_policy`), so that little memory is needed.
"""

from __future__ import annotations

import os
import shutil

import pytest

from holdfast.testing.host import NEEDED_BYTES
from holdfast.testing.postgres import MEMORY

ROOT_VARIABLE = "PYTEST_DEBUG_TEMPROOT"


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have temporary directories made in memory, unless somebody has chosen another place."""
    is_chosen = config.getoption("basetemp") is not None or ROOT_VARIABLE in os.environ
    if not is_chosen and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > NEEDED_BYTES:
        os.environ[ROOT_VARIABLE] = str(MEMORY)
