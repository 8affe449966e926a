"""What the three programs share: where the database is, how tasks are tried."""

from __future__ import annotations

import os
from typing import Any

from holdfast.outcomes import Retry

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
