"""kill -9 at every crash point of a worker whose handlers write by an object mapper inside `complete()`.

At the commit of the object mapper's own transaction also what else may happen: its connections are cut, something
raises, the process stands still until its lease is over.
"""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from holdfast.crashpoints import POINTS, VARIABLE
from holdfast.store.tx import Tx
from tests.acceptance.crash_cases import PROVIDED, cases, places
from tests.acceptance.paying.surroundings import CREATE
from tests.acceptance.play import REACHED, let_leases_be_over, rob, trapped
from tests.acceptance.processes import until
from tests.acceptance.scene import Scene, WorkerProcess

UNTOLD = "complete.after_delivery"  # nobody subscribes here; `test_crash_points` has the walk with webhooks
PASSED = [
    each for each in POINTS if each.partition(".")[0] in ("admit", "claim", "prepare", "complete") and each != UNTOLD
]
WHILE_WAITING = ["renew.before", "renew.after", "progress.after_commit"]  # passed while a handler takes its time
COMMITS = ["provided.before_commit:1", "provided.after_commit:1"]  # of `prepare()`, the first block
COMPLETIONS = ["provided.before_commit:2", "provided.after_commit:2"]
AT_THE_END = "shutdown.after_stop_claim"
ON_THE_WAY = [*PASSED, *WHILE_WAITING, *COMMITS, *COMPLETIONS, AT_THE_END]
PROGRAMS = (
    ("postgres", "with_sqlalchemy_async"),
    ("sqlite", "with_sqlalchemy"),
    ("postgres", "with_django"),
    ("sqlite", "with_django"),
)
# what takes part in every run, not only in the long one
ALWAYS = {
    ("postgres", "with_sqlalchemy_async", "provided.after_commit:2"),
    ("sqlite", "with_sqlalchemy", "complete.after_event"),
    ("postgres", "with_django", "provided.after_commit:2"),
}


class Number(BaseModel):
    """What `pay` is started with."""

    number: int


DROP = "DROP TABLE IF EXISTS shop_order"
TAKE_ORDERS = "INSERT INTO shop_order (number, amount, times_paid, receipts) VALUES (1, 50, 0, 0), (2, 70, 0, 0)"
PAID = "SELECT number, times_paid, receipts FROM shop_order ORDER BY number"
COMPLETED = "SELECT input, task FROM holdfast_job WHERE status = 'completed'"


@dataclass(frozen=True)
class Shop:
    """Orders that are paid by jobs of *program*, each of which leaves the receipt to a second one."""

    stage: Scene
    program: str

    @property
    def app(self) -> str:
        """The place of the program's Holdfast."""
        return f"tests.acceptance.paying.{self.program}:hf"

    def open(self) -> None:
        """Take two orders, and have them paid, one after the other."""
        pay = self.stage.hf.declare("pay", Number, int)
        self.stage.hf.store.run_sync(take_orders)
        (first,) = self.stage.start(pay(number=1).options(lane="till"))
        self.stage.start(pay(number=2).options(lane="till", blockers=[first]))

    def worker(self, **environment: str) -> WorkerProcess:
        """Start a worker, which may die at any moment."""
        return self.stage.worker(waits=False, app=self.app, **environment)

    def paid(self) -> list[tuple[int, int, int]]:
        """Tell for each order how often it was paid, and how many receipts it has."""
        return [(number, paid, receipts) for number, paid, receipts in self.stage.rows(PAID)]

    def completed(self) -> list[tuple[int, int, int]]:
        """Tell the same by the jobs that are completed."""
        done = [(json.loads(given)["number"], task) for given, task in self.stage.rows(COMPLETED)]
        return [(number, done.count((number, "pay")), done.count((number, "write_receipt"))) for number in (1, 2)]


async def take_orders(tx: Tx) -> None:
    for sql in (DROP, CREATE, TAKE_ORDERS):
        await tx.execute(sql)


KILLED = [(*program, point) for program in PROGRAMS for point in ON_THE_WAY]
DISTURBED = [
    (database, program, f"{point}:{number}", mode)
    for database, program in PROGRAMS
    for of, point, mode in cases(PROVIDED)
    for number in (1, 2)
    if of == database and mode != "kill" and program != "with_django"
]
CASES = [*((*case, "kill") for case in KILLED), *DISTURBED]
"""Database, program, point, mode."""


@pytest.mark.parametrize(("stage_database", "program", "point"), places(KILLED, ALWAYS), indirect=["stage_database"])
def test_what_the_orm_wrote_and_the_completion_are_there_both_or_neither(
    stage: Scene, program: str, point: str
) -> None:
    """Q-07."""
    shop = Shop(stage, program)
    shop.open()
    if point not in WHILE_WAITING:
        stage.open()

    worker = shop.worker(**{VARIABLE: point})
    if point == AT_THE_END:
        stop_when_all_is_paid(shop, worker)
    assert worker.exit_code(60) == -signal.SIGKILL, worker.said

    assert REACHED in worker.said
    assert shop.paid() == shop.completed()

    stage.open()
    let_leases_be_over(stage)
    shop.worker()
    stage.until_all("completed", 60)

    assert shop.paid() == shop.completed() == [(1, 1, 1), (2, 1, 1)]
    stage.assert_each_completed_once()


@pytest.mark.parametrize(
    ("stage_database", "program", "point", "mode"), places(DISTURBED, ()), indirect=["stage_database"]
)
def test_a_commit_of_the_orm_that_is_disturbed_is_made_once(stage: Scene, program: str, point: str, mode: str) -> None:
    """F-03, F-15, I-55: the worker itself goes on."""
    shop = Shop(stage, program)
    shop.open()
    stage.open()

    worker = shop.worker(**trapped(f"{point}:{mode}"))
    until(lambda: REACHED in worker.said and (mode != "stop" or worker.is_stopped), "the point is reached", 60)
    if worker.is_stopped:
        rob(worker, stage, app=shop.app)
    stage.until_all("completed", 60)

    assert shop.paid() == shop.completed() == [(1, 1, 1), (2, 1, 1)]
    stage.assert_each_completed_once()


def stop_when_all_is_paid(shop: Shop, worker: WorkerProcess) -> None:
    until(lambda: shop.paid() == [(1, 1, 1), (2, 1, 1)] or not worker.is_alive, "all is paid", 60)
    worker.send(signal.SIGTERM)
