"""Wrong audits: each is ours with one rule of the row and its commit taken away."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from holdfast.client.acting import ACTS, ActingRunner, ActingStore, Deed
from holdfast.store import audit
from tests.mutants import wrong_worker
from tests.store import test_audit


@wrong_worker(
    "row of the audit written behind the commit of the act",
    "S-27",
    test_audit.test_the_row_is_there_if_and_only_if_the_act_was_committed,
    "assert",
    point="after_commit",
)
def _(patch: pytest.MonkeyPatch) -> None:
    async def run(self: ActingStore, operation: Any, *args: Any, **kwargs: Any) -> Any:
        answer = await self.plain.run(operation, *args, **kwargs)
        await self.plain.run(audit.write, audit.NewAuditEntry("behind", "ann", operation.__name__, "x"))
        return answer

    patch.setattr(ActingRunner, "run", run)


@wrong_worker(
    "row of the audit written before the act",
    "S-27",
    test_audit.test_the_row_is_there_if_and_only_if_the_act_was_committed,
    "assert",
    point="before_commit",
)
def _(patch: pytest.MonkeyPatch) -> None:
    async def run(self: ActingStore, operation: Any, *args: Any, **kwargs: Any) -> Any:
        await self.plain.run(audit.write, audit.NewAuditEntry("before", "ann", "cancel", "x"))
        return await self.plain.run(operation, *args, **kwargs)

    patch.setattr(ActingRunner, "run", run)


@wrong_worker(
    "id of a row of the audit made by the transaction that writes it",
    "S-27",
    test_audit.test_a_commit_that_is_repeated_writes_one_row,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    write = audit.write
    patch.setattr(audit, "write", lambda tx, entry: write(tx, entry._replace(id=str(uuid4()))))


@wrong_worker(
    "row for an act that has changed nothing",
    "S-27",
    test_audit.test_an_act_that_changes_nothing_leaves_no_row,
    "assert",
)
def _(patch: pytest.MonkeyPatch) -> None:
    for operation, act in ACTS.items():
        patch.setitem(ACTS, operation, act._replace(tell=_always))


def _always(*_: object) -> Deed:
    return Deed("x")
