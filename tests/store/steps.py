"""Brings the tables of a bare transaction to a step of the schema."""

from __future__ import annotations

from holdfast.database import migrations
from holdfast.database.tx import Tx, drive


def take_steps(tx: Tx, last: int | None = None) -> None:
    """Take every step, or those up to *last*, in the one transaction."""
    while drive(migrations.step(tx, tx.database, last)) is not None:
        pass
