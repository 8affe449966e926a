"""What the three programs share: where the database is, the gate that a handler waits for, how tasks are tried."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from holdfast.outcomes import Retry
from tests.acceptance.jobs_of_tests import PLACE

TASK: dict[str, Any] = {"lease": 1.0, "retry": Retry(first=0.05, maximum=0.05, jitter=0)}

CREATE = """
    CREATE TABLE shop_order (
        number integer PRIMARY KEY,
        amount integer NOT NULL,
        times_paid integer NOT NULL,
        receipts integer NOT NULL
    )"""


def database() -> str:
    """The address of the database, or the path of its file."""
    return os.environ["HOLDFAST_DATABASE"]


def is_open() -> bool:
    """Tell whether the test lets handlers go on."""
    return Path(os.environ[PLACE], "gate").exists()
