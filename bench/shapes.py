"""What the handlers with transactions do: the user's own table and statements, and by which blocks they are run."""

from __future__ import annotations

from enum import StrEnum


class Shape(StrEnum):
    """Which blocks a handler opens."""

    PREPARE = "prepare and complete"
    """The SELECT in one transaction, the UPDATE and the end of the job in another."""
    COMPLETE = "complete"
    """The UPDATE and the end of the job."""
    ATOMIC = "atomic"
    """The SELECT, the UPDATE and the end of the job."""


TASK = "by_hand"
"""Whose jobs are done by hand."""
ACCOUNTS = 1000  # so many that two who work at once rarely want the same

TABLE = "CREATE TABLE account (id bigint PRIMARY KEY, paid bigint NOT NULL)"
FILL = f"""
    INSERT INTO account (id, paid)
    WITH RECURSIVE number(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM number WHERE id < {ACCOUNTS - 1})
    SELECT id, 0 FROM number"""
LOOK = "SELECT paid FROM account WHERE id = :account"
PAY = "UPDATE account SET paid = paid + 1 WHERE id = :account"
PAID = "SELECT CAST(sum(paid) AS bigint) FROM account"
