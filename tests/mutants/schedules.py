"""Wrong engines of schedules: ticks, late times, pauses, steps of the clock. Most are caught by the simulation.

What a mutant is, `tests/mutants/__init__.py` says.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.database.tx import Tx
from holdfast.errors import Unavailable
from holdfast.schedule_rules import times_in
from holdfast.store import schedules
from tests.mutants import change_sql, mutant, race
from tests.mutants.races import LATE
from tests.mutants.simulation import here
from tests.simulation import schedule_scenes as scenes
from tests.store import test_schedule_races


@mutant("`next_at` set, tick in another commit", "I-83", scene=scenes.processes_die_while_they_start_ticks)
def _(patch: pytest.MonkeyPatch) -> None:
    start, tick = schedules._start, schedules.tick
    owed: dict[Any, list[Any]] = {}

    async def put_off(tx: Tx, plans: Any) -> int:
        owed.setdefault(here(), []).extend(plans)
        return 0

    async def pay(tx: Tx, *args: Any) -> Any:
        await start(tx, owed.pop(here(), []))
        return await tick(tx, *args)

    patch.setattr(schedules, "_start", put_off)
    patch.setattr(schedules, "tick", pay)


@mutant("no tick key; `next_at` alone decides", "I-83", scene=scenes.the_clock_runs_ahead_and_is_put_right)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, schedules, "TICK", "DO NOTHING", "DO UPDATE SET chain_id = excluded.chain_id")


@mutant("`next_at` believed after a clock step", "I-83", scene=scenes.the_clock_visits_another_year)
def _(patch: pytest.MonkeyPatch) -> None:
    wrong: Any = schedules.ScheduleStanding.__dict__["is_wrong"].fget
    patch.setattr(
        schedules.ScheduleStanding, "is_wrong", property(lambda self: self.paused_at is not None and wrong(self))
    )


@mutant("late ticks of a paused schedule started", "I-83", scene=scenes.a_schedule_is_resumed_after_a_while)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, schedules, "RESUME", "next_at = given.next_at", "next_at = holdfast_schedule.next_at")


@mutant("what came before the repair is passed over", "I-83", scene=scenes.the_clock_visits_another_year)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedules.ScheduleStanding, "since", property(lambda self: self.now))


@mutant("times that are left out get ticks", "I-83", scene=scenes.nobody_is_there_for_ten_minutes)
def _(patch: pytest.MonkeyPatch) -> None:
    start = schedules._start
    sql = "INSERT INTO holdfast_tick (schedule, at, outcome) VALUES (:schedule, :at, 'started') ON CONFLICT DO NOTHING"

    async def write_all(tx: Tx, plans: Any) -> int:
        for each in plans:
            row = each.row
            for at in times_in(schedules._rule_of(row), row.next_at, row.now, 1_000).last:
                if at not in each.starts:
                    await tx.execute(sql, schedule=row.name, at=at)
        return await start(tx, plans)

    patch.setattr(schedules, "_start", write_all)


@mutant("only the newest of the times that are due is started", "I-83", scene=scenes.nobody_is_there_for_ten_minutes)
def _(patch: pytest.MonkeyPatch) -> None:
    plan = schedules._plan

    def plan_one(*args: Any) -> Any:
        made = plan(*args)
        return replace(made, starts=dict(list(made.starts.items())[-1:]))

    patch.setattr(schedules, "_plan", plan_one)


@mutant("due by the worker's own clock", "I-83", scene=scenes.a_zone_shifts_its_clocks_at_night)
def _(patch: pytest.MonkeyPatch) -> None:
    of = schedules._Row.of

    def by_own_clock(row: Any) -> Any:
        return of(row)._replace(now=here().runtime.wall_ms())

    patch.setattr(schedules._Row, "of", staticmethod(by_own_clock))


@mutant("one bad schedule fails those beside it", "I-84", scene=scenes.one_schedule_cannot_start)
def _(patch: pytest.MonkeyPatch) -> None:
    plan = schedules._plan

    def plan_or_raise(*args: Any) -> Any:
        made = plan(*args)
        if made.trouble is not None:
            raise Unavailable(made.trouble)
        return made

    patch.setattr(schedules, "_plan", plan_or_raise)


@mutant("a schedule in trouble stays due", "I-84", scene=scenes.one_schedule_cannot_start)
def _(patch: pytest.MonkeyPatch) -> None:
    move_on = schedules._move_on

    async def leave(tx: Tx, plans: Any) -> None:
        await move_on(tx, [each for each in plans if each.trouble is None])

    patch.setattr(schedules, "_move_on", leave)


@mutant("a pause never ends by itself", "I-83", scene=scenes.a_schedule_is_resumed_after_a_while)
def _(patch: pytest.MonkeyPatch) -> None:
    wrong: Any = schedules.ScheduleStanding.__dict__["is_wrong"].fget
    patch.setattr(schedules.ScheduleStanding, "is_wrong", property(lambda self: self.paused_at is None and wrong(self)))


@mutant("a schedule that was put is never looked for", "I-83", scene=scenes.nobody_is_there_for_ten_minutes)
def _(patch: pytest.MonkeyPatch) -> None:
    async def find_none(tx: Tx) -> Any:
        return schedules.NextTick(None)

    patch.setattr(schedules, "earliest", find_none)


@race(
    "due schedules read without a lock †",
    "I-83",
    test_schedule_races.test_a_schedule_that_another_worker_has_taken_up_is_passed_over,
    LATE,
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, schedules, "DUE", "$skip_locked", "")


@race(
    "due schedules waited for †",
    "I-84",
    test_schedule_races.test_a_schedule_that_a_person_has_locked_holds_up_no_other,
    LATE,
)
def _(patch: pytest.MonkeyPatch) -> None:
    change_sql(patch, schedules, "DUE", "$skip_locked", "$locked")
