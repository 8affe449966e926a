"""What tests share in which something happens to a real worker at a crash point."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, TypeAlias

from holdfast import Holdfast
from holdfast.errors import Busy
from holdfast.fault_points import VARIABLE
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene, WorkerProcess

REACHED = " is reached: "  # of the fault point; a program that has set up no logging prints no more than the sentence
POLLING = ("--poll", "0.5")  # what a cut transaction lets go, nobody is told of
Tables: TypeAlias = dict[str, list[tuple[Any, ...]]]


def trapped(trap: str) -> dict[str, str]:
    """Name the settings with which the trap is set."""
    # the server cuts a transaction that has stood still for twice the deadline
    patience = {"HOLDFAST_DEADLINE_SECONDS": "1"} if trap.endswith(":stop") else {}
    return {VARIABLE: trap, **patience}


def rob(zombie: WorkerProcess, stage: Scene, **options: Any) -> None:
    """Have another worker complete every job while *zombie* stands still; let that go on, and end, and change nothing.

    On SQLite it may have the right to write: then it only goes on.
    """
    if refusal(stage):
        zombie.send(signal.SIGCONT)
        return
    until(lambda: stage.age_leases() == 0, "its leases are over", 30)
    stage.worker(*POLLING, waits=False, **options)
    stage.until_all("completed", 60)
    before = tables(stage)

    zombie.send(signal.SIGCONT)
    zombie.send(signal.SIGTERM)
    zombie.exit_code()

    assert tables(stage) == before, "it changed something that was no longer its own"


def refusal(stage: Scene) -> str:
    """Say how others are kept from writing, if they are, by who stands still; on PostgreSQL they never are."""
    if stage.hf.store.database == "postgres":
        return ""
    with Holdfast(stage.hf.settings.database, deadline_seconds=0.5).sync as person:
        try:
            person.queue("nobody").resume()
        except Busy as busy:
            return str(busy)
    return ""


def let_leases_be_over(stage: Scene) -> None:
    """Have nobody wait for the lease of who is dead; on SQLite the lock of a worker proves that at once."""
    if stage.hf.store.database == "postgres":
        stage.age_leases()


def until_on_stage(stage: Scene, condition: Callable[[], bool], what: str) -> None:
    """Wait until *condition* holds; else tell all that is known."""
    try:
        until(condition, what, 60)
    except AssertionError as error:
        raise AssertionError(f"{error}; they are {stage.statuses()}; {stage.logs()}") from None


NAMES = ("job", "event", "lane", "queue", "unique", "blocker", "phase", "delivery", "outbox", "subscription", "meta")


def tables(stage: Scene) -> Tables:
    """Read all that is written about jobs, and whatever else a verb may write."""
    return {name: sorted(stage.rows(f"SELECT * FROM holdfast_{name}"), key=repr) for name in NAMES}
