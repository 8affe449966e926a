"""Scenes of schedules: several workers start their ticks while processes die, people interfere and clocks are shifted.

The first scene is a run of chance on a night on which a zone shifts its clocks: the seed draws the night, the faults,
the wishes of people and the steps of the database's clock. The others set one thing by hand, each for a wrong engine.
What every look of a worker must be, `tests/simulation/ticks.py` says at each commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

from holdfast.errors import HoldfastError
from tests.simulation.handlers import elsewhere, steady
from tests.simulation.scenes import Stage, scene
from tests.simulation.ticks import REPAIRED_MS
from tests.simulation.violations import Violation
from tests.simulation.world import World

NIGHTS = (
    ("Europe/Rome", "2026-03-29T01:00"), ("Europe/Rome", "2026-10-25T01:00"),
    ("America/New_York", "2026-03-08T07:00"), ("America/New_York", "2026-11-01T06:00"),
    ("Australia/Lord_Howe", "2026-04-04T15:00"), ("Australia/Lord_Howe", "2026-10-03T15:30"),
    ("America/Santiago", "2026-04-05T03:00"), ("America/Santiago", "2026-09-06T04:00"),
    ("Pacific/Chatham", "2026-04-04T14:00"), ("Pacific/Chatham", "2026-09-26T14:00"),
)  # fmt: skip
"""Zones, and when in UTC each shifts its clocks: by an hour, by half of one, at midnight, at a quarter to."""
SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
YEAR_2030 = round(datetime(2030, 6, 1, tzinfo=UTC).timestamp() * SECOND)
MISSED = ("one", "skip", "all")
REPAIRED_SECONDS = REPAIRED_MS / 1000
TICK_SECONDS = 10.0
"""By when a tick has its job while nothing goes wrong."""
STEPS = (-HOUR, -10 * MINUTE, -90 * SECOND, -5 * SECOND, 61 * SECOND, 10 * MINUTE, 25 * MINUTE, 30 * MINUTE, HOUR)
ROUNDS = 2
Declared: TypeAlias = dict[str, tuple[Any, dict[str, Any]]]
"""A call, and what is put beside it, by the names of schedules."""


class Night:
    """A world in which schedules have their ticks, from some minutes before a zone shifts its clocks."""

    def __init__(self, stage: Stage, zone: str = "Europe/Rome", at: str = "2026-03-29T01:00", before: int = 0) -> None:
        self.stage = stage
        self.world: World = stage.world
        self.chance = self.world.chance
        self.zone = zone
        self.shift = datetime.fromisoformat(at).replace(tzinfo=UTC)
        self.world.is_calm = True  # handlers end well, and soon
        self.world.clock_step_ms += round(self.shift.timestamp() * SECOND) - before - self.world.store_ms()
        self.is_over = False

    @property
    def schedules(self) -> Any:
        """What people have at hand."""
        return self.world.people.hf.schedules

    def put(self, name: str, call: Any = None, **options: Any) -> None:
        """Have people put a schedule."""
        self.ask(self.schedules.put(name, call or steady(n=1), **options))

    def ask(self, wish: Any) -> None:
        """Have people do something."""
        self.stage.ask(wish)

    def had(self, name: str) -> set[int]:
        """Give the times of a schedule that have had their job."""
        return self.world.checker.ticks.had[name]

    def step_clock(self, step: int) -> None:
        """Put the database's clock forward or back by *step* milliseconds."""
        self.world.step_clock(step)
        self.world.checker.ticks.clock_stepped(is_back=step < 0)

    def see_ticks_come(self, seconds: float) -> None:
        """See that, from now on, every time of every schedule has its job soon."""
        since = self.world.store_ms()
        self.stage.wait(seconds)
        upto = self.world.store_ms()
        self.stage.wait(TICK_SECONDS)
        if missing := self.world.checker.ticks.missing(since, upto):
            raise Violation(f"I-83: times of schedules have come and gone without a job: {missing}")

    def see_none_lost(self) -> None:
        """See that schedules that make up for all have had all."""
        upto = self.world.store_ms() - round(TICK_SECONDS * SECOND)
        if lost := self.world.checker.ticks.lost(upto):
            raise Violation(f'I-83: times of schedules with missed="all" are lost: {lost}')

    # a run of chance

    def wall_time(self) -> str:
        """Write, as cron, a time of day that the clock skips on this night, or shows twice."""
        zone = ZoneInfo(self.zone)
        before, after = (self.shift + timedelta(minutes=each) for each in (-1, 0))
        old = before.astimezone(zone).utcoffset() or timedelta()
        shift = (after.astimezone(zone).utcoffset() or timedelta()) - old
        shown = self.shift + old + (timedelta(minutes=10) if shift > timedelta() else shift / 2)
        return f"{shown.minute} {shown.hour} * * *"

    def declarations(self) -> Declared:
        """Draw the schedules of this night."""
        zone, missed = {"timezone": self.zone}, self.chance.choice
        hour = self.shift.astimezone(ZoneInfo(self.zone)).hour
        return {
            "fixed": (steady(n=1), {"cron": self.wall_time(), **zone, "missed": missed(MISSED)}),
            "by the clock": (steady(n=2), {"cron": "*/10 * * * *", **zone, "missed": "all"}),
            "some hours": (steady(n=3), {"cron": f"*/20 {hour},{hour - 1} * * *", **zone, "missed": missed(MISSED)}),
            "often": (elsewhere(n=4), {"every": 20, "missed": "all"}),
            "one at a time": (steady(n=5).options(unique="night", delay=40), {"every": 15, "missed": missed(MISSED)}),
            "in a lane": (steady(n=6).options(lane="a"), {"every": 30, "jitter": 10, "missed": missed(MISSED)}),
            "far": (steady(n=7), {"cron": "0 12 1 1 *", **zone}),
            "broken": (steady(n=8), {"every": 25, "missed": "all"}),
        }

    async def bad_luck(self) -> None:
        """Have processes die, stand still, and be refused, at any moment."""
        world, chance = self.world, self.chance
        faults: tuple[Callable[[], Any], ...] = (
            self.kill_one, self.kill_one, self.kill_one, world._freeze_one, world._errors, world._lost_answers,
            lambda: world.have_outage(chance.choice((1, 4, 10))),
        )  # fmt: skip
        while not self.is_over:
            await asyncio.sleep(chance.random() * 5)
            if not self.is_over:
                await chance.choice(faults)()

    async def kill_one(self) -> None:
        """Kill a process; another is born soon."""
        await self.world._kill_one()
        self.world.fate_loop.loop.call_later(self.chance.random() * 4, self.world.give_birth)

    async def meddle(self, declared: Declared) -> None:
        """Have people put, pause, resume, run and delete schedules."""
        while not self.is_over:
            await asyncio.sleep(1 + self.chance.random() * 6)
            name = self.chance.choice(list(declared))
            with suppress(HoldfastError):
                await self.wish(name, *declared[name])

    async def wish(self, name: str, call: Any, options: dict[str, Any]) -> None:
        """Have people do something to a schedule."""
        match self.chance.choice(("pause", "pause until", "resume", "resume", "run", "delete", "put", "put")):
            case "pause":
                await self.schedules.pause(name, by="ada", why="to see")
            case "pause until":
                await self.schedules.pause(name, until=self.in_seconds(self.chance.random() * 60))
            case "resume":
                await self.schedules.resume(name)
            case "run":
                await self.schedules.run(name)
            case "delete":
                await self.schedules.delete(name)
            case "put":
                await self.schedules.put(name, call, **options)

    def in_seconds(self, seconds: float) -> datetime:
        """Say when it will be so many seconds later by the database's clock."""
        return datetime.fromtimestamp(self.world.store_ms() / SECOND + seconds, UTC)

    def calm_down(self) -> None:
        """Stop the faults and the people, and have enough processes."""
        world = self.world
        self.is_over = True
        world.disk.weather.fails = world.disk.weather.lost_answers = world.disk.weather.outage_until = 0.0
        for process in world.processes:
            process.outage_until = 0.0
            process.loop.frozen_until = min(process.loop.frozen_until, world.machine.now)
        self.stage.wait(12)  # until what is under way has come to its end
        world.disk.weather.fails = world.disk.weather.lost_answers = 0.0
        for _ in range(world.most):
            world.give_birth()

    def have_trouble(self, declared: Declared, steps: Sequence[int]) -> None:
        """Let chance reign for a while, in which the clock makes *steps*."""
        self.is_over = False
        self.world.fate_loop.spawn(self.bad_luck())
        self.world.people.spawn(self.meddle(declared))
        for step in steps:
            self.stage.wait(5 + self.chance.random() * 15)
            self.step_clock(step)
        self.stage.wait(5 + self.chance.random() * 10)
        self.calm_down()


def draw_steps(night: Night) -> Sequence[int]:
    """Draw what the clock does in one round: a step, or a visit to 2030."""
    if night.chance.random() < 0.2:
        away = YEAR_2030 - night.world.store_ms()
        return away, -away
    return (night.chance.choice(STEPS),)


@scene
def a_zone_shifts_its_clocks_at_night(stage: Stage) -> None:
    """I-83, I-84: every tick has one job, and none is lost; what cannot start delays no other."""
    zone, at = NIGHTS[stage.world.seed % len(NIGHTS)]
    night = Night(stage, zone, at, before=stage.world.chance.choice((20, 35)) * MINUTE)
    declared = night.declarations()
    stage.give_birth(*(night.chance.choice((1, 2, 3)) for _ in range(night.chance.choice((2, 3, 4)))))
    for name, (call, options) in declared.items():
        night.put(name, call, **options)
    del declared["broken"]
    break_schedule(stage, "broken")
    for number in range(ROUNDS):
        night.have_trouble(declared, draw_steps(night) if number else (25 * MINUTE,))
        stage.wait(REPAIRED_SECONDS)
        night.see_ticks_come(40)
    night.see_none_lost()


def break_schedule(stage: Stage, name: str, column: str = "task", value: str = "nobody") -> None:
    """Have a schedule name a task that nobody knows, or an input that does not fit."""
    connection = stage.world.connect()
    connection.execute(f"UPDATE holdfast_schedule SET {column} = ? WHERE name = ?", (value, name))
    connection.close()
    stage.world.disk.committed(stage.world.people)


@scene
def processes_die_while_they_start_ticks(stage: Stage) -> None:
    """I-83: a tick and its job are one commit, so that a crash leaves both or neither."""
    night = Night(stage)
    stage.give_birth(1, 1)
    night.put("often", every=5, missed="all")
    for _ in range(6):
        to_tick = 5 - night.world.store_ms() % (5 * SECOND) / SECOND
        stage.wait(to_tick + night.chance.random() * 0.2)
        night.world.kill(night.chance.choice(night.world.processes))
        night.world.give_birth(1)
    night.see_ticks_come(20)
    night.see_none_lost()


@scene
def nobody_is_there_for_ten_minutes(stage: Stage) -> None:
    """I-83: of the times that are found late one starts its job, or none, or each; the others are counted."""
    night = Night(stage)
    for missed in MISSED:
        night.put(missed, every=30, missed=missed)
    stage.wait(2)
    night.step_clock(10 * MINUTE + 7 * SECOND)
    stage.give_birth(1, 1)
    stage.wait(TICK_SECONDS)
    found = {missed: len(night.had(missed)) for missed in MISSED}
    if found != {"one": 3, "skip": 2, "all": 20}:
        raise Violation(f"I-83: ten minutes late, schedules started {found} jobs")
    night.see_ticks_come(60)
    night.see_none_lost()


@scene
def the_clock_runs_ahead_and_is_put_right(stage: Stage) -> None:
    """I-83: a time that has had its job early has had it; what was left out comes when it is time."""
    night = Night(stage)
    stage.give_birth(1)
    for missed in MISSED:
        night.put(missed, every=20, missed=missed)
    stage.wait(25)
    night.step_clock(3 * MINUTE)
    stage.wait(TICK_SECONDS)
    night.step_clock(-3 * MINUTE)
    night.see_ticks_come(REPAIRED_SECONDS + 150)
    night.see_none_lost()


@scene
def the_clock_visits_another_year(stage: Stage) -> None:
    """I-83: ticks go on when it is back."""
    night = Night(stage)
    stage.give_birth(1, 1)
    night.put("often", every=20)
    night.put("by the clock", cron="* * * * *", missed="all")
    stage.wait(25)
    away = YEAR_2030 - night.world.store_ms()
    night.step_clock(away)
    stage.wait(13)
    night.step_clock(-away)  # two seconds before the next time
    night.see_ticks_come(REPAIRED_SECONDS + 45)


@scene
def a_schedule_is_resumed_after_a_while(stage: Stage) -> None:
    """I-83: paused, it starts nothing, and what would have come meanwhile it does not make up for."""
    night = Night(stage)
    stage.give_birth(1)
    for name in ("paused", "until"):
        night.put(name, every=10, missed="all")
    stage.wait(15)
    night.ask(night.schedules.pause("paused"))
    night.ask(night.schedules.pause("until", until=night.in_seconds(100)))
    had = {name: len(night.had(name)) for name in ("paused", "until")}
    stage.wait(95)
    if had != {name: len(night.had(name)) for name in had}:
        raise Violation("I-83: a paused schedule started a job")
    night.ask(night.schedules.resume("paused"))
    stage.wait(REPAIRED_SECONDS)
    night.see_ticks_come(30)
    night.see_none_lost()


@scene
def one_schedule_cannot_start(stage: Stage) -> None:
    """I-84: it is written down why, and no other is late by it."""
    night = Night(stage)
    for name in ("a", "b", "c", "d"):
        night.put(name, every=10, missed="all")
    break_schedule(stage, "a")
    break_schedule(stage, "c", "input", '{"n": "no number"}')
    stage.give_birth(1, 1)
    stage.wait(12)
    night.see_ticks_come(30)
    night.see_none_lost()
    troubled = {name for name, each in night.world.checker.ticks.known.items() if each.row.trouble is not None}
    if troubled != {"a", "c"}:
        raise Violation(f"I-84: {troubled} are in trouble")
