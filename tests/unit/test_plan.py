"""What a loop of a worker does next, as a table: how the worker stands, and the step that follows."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from holdfast.worker.claiming.plan import (
    AGAIN_SECONDS,
    ClaimFor,
    Exchange,
    Finish,
    GiveBack,
    Look,
    Resolve,
    Situation,
    Sleep,
    Step,
    next_step,
)  # fmt: skip

IDLE = Situation(concurrency=100, free=100, look_seconds=2.0, poll_seconds=2.0)
HUNGRY = replace(IDLE, is_hungry=True, is_quiet=False)
FULL = replace(IDLE, free=0, is_at_work=True)
DRAINING = replace(IDLE, free=0, is_draining=True)

TABLE: dict[str, tuple[Situation, Step]] = {
    "nothing to do: it listens until the next look": (IDLE, Sleep(2.0, for_hints=True)),
    "it is time to look": (replace(IDLE, look_seconds=0.0), Look(100)),
    "it is time to look, and the other loop claims": (replace(IDLE, look_seconds=0.0, is_quiet=False), Sleep(2.0)),
    "too many hints come, whoever claims": (
        replace(IDLE, look_seconds=0, is_quiet=False, is_disturbed=True),
        Look(100),
    ),
    "something may be there": (HUNGRY, Exchange(100)),
    "something may be there, and all slots are taken": (replace(HUNGRY, free=0), Sleep(2.0)),
    "no slot is free: not even a look": (replace(FULL, look_seconds=0.0), Sleep(2.0)),
    "no slot is free, and a child is idle: it listens": (replace(FULL, beside_seconds=0.0), Sleep(2.0, for_hints=True)),
    "no slot is free, a child is idle, and a hint has come": (
        replace(FULL, look_seconds=0.0, beside_seconds=0.0),
        Look(0),
    ),
    "it was looked for children just now": (replace(FULL, look_seconds=0.0, beside_seconds=0.3), Sleep(0.3)),
    "a child is idle, and the other loop claims": (
        replace(FULL, look_seconds=0.0, beside_seconds=0.0, is_quiet=False),
        Sleep(2.0),
    ),
    "something has ended": (replace(FULL, has_ends=True), Exchange(0)),
    "something has ended, and slots are free": (replace(IDLE, has_ends=True), Exchange(100)),
    "what has ended waits for a renewal": (replace(FULL, has_withheld=True), Sleep(2.0)),
    "few slots are free, and the last claim was just now": (
        replace(HUNGRY, free=5, rest_seconds=0.004),
        Sleep(0.004),
    ),
    "few slots are free, and the rest is over": (replace(HUNGRY, free=5), Exchange(5)),
    "many slots are free: it does not rest": (replace(HUNGRY, free=26, rest_seconds=0.004), Exchange(26)),
    "ends are written down without rest": (replace(HUNGRY, free=5, rest_seconds=1, has_ends=True), Exchange(5)),
    "jobs are short: it claims ahead": (replace(HUNGRY, free=5, ahead=300, rest_seconds=1), Exchange(5, 300)),
    "jobs are short, and no slot is free": (replace(HUNGRY, free=0, ahead=300), Exchange(0, 300)),
    "half of what was claimed ahead is there": (replace(HUNGRY, free=0, ahead=100, waiting=100), Exchange(0, 100)),
    "more than half of what was claimed ahead is there": (replace(HUNGRY, free=0, ahead=99, waiting=101), Sleep(2.0)),
    "rows should say that their handlers have begun": (replace(FULL, mark_seconds=0.0), Exchange(0)),
    "rows should say so soon": (replace(FULL, mark_seconds=0.5), Sleep(0.5)),
    "what was claimed ahead has waited for too long": (replace(FULL, waiting=9, stale_seconds=0.0), GiveBack()),
    "it will have soon": (replace(FULL, waiting=9, stale_seconds=0.2), Sleep(0.2)),
    "the answer to a claim was lost": (replace(HUNGRY, unknown_seconds=0.0), Resolve()),
    "it was looked for just now": (replace(FULL, unknown_seconds=0.25), Sleep(0.25)),
    "a group has room": (replace(HUNGRY, groups=(0, 4)), ClaimFor(1, 4)),
    "two groups have room": (replace(HUNGRY, groups=(2, 4)), ClaimFor(0, 2)),
    "two groups have room, and the first had its turn": (
        replace(HUNGRY, groups=(2, 4), last_group=0),
        ClaimFor(1, 4),
    ),
    "two groups have room, and the last had its turn": (
        replace(HUNGRY, groups=(2, 4), last_group=1),
        ClaimFor(0, 2),
    ),
    "a group has room, and it is the others' turn": (
        replace(HUNGRY, groups=(2,), was_for_group=True),
        Exchange(100),
    ),
    "a group has room again, and nothing else is to be done": (
        replace(FULL, groups=(2,), was_for_group=True),
        ClaimFor(0, 2),
    ),
    "it drains, and all is written": (DRAINING, Finish()),
    "it drains, and something runs": (replace(DRAINING, is_at_work=True), Sleep(AGAIN_SECONDS)),
    "it drains, and something is to be written": (replace(DRAINING, has_ends=True), Exchange(0)),
    "it drains, and what ended waits for a renewal": (replace(DRAINING, has_withheld=True), Sleep(AGAIN_SECONDS)),
    "it drains, and claims nothing": (replace(DRAINING, free=9, ahead=9, is_hungry=True, has_ends=True), Exchange(0)),
    "it drains, and an answer is lost": (replace(DRAINING, unknown_seconds=0.0), Resolve()),
    "it drains, and its last moment is over": (replace(DRAINING, has_ends=True, is_over=True), Finish()),
    "its last moment is over, and something runs": (
        replace(DRAINING, has_withheld=True, is_over=True, is_at_work=True),
        Sleep(AGAIN_SECONDS),
    ),
}


@pytest.mark.source("PQ-22")
@pytest.mark.parametrize(("now", "step"), TABLE.values(), ids=TABLE)
def test_what_comes_next(now: Situation, step: Step) -> None:
    assert next_step(now) == step


FLAGS = (
    "has_ends", "has_withheld", "is_hungry", "is_quiet", "is_disturbed", "is_draining", "is_over", "is_at_work",
    "was_for_group",
)  # fmt: skip


@pytest.fixture(scope="module")
def every_situation() -> list[Situation]:
    """Make 110,592 situations: too many to be made while tests are collected."""
    return [
        replace(
            IDLE,
            free=free,
            ahead=ahead,
            beside_seconds=beside,
            mark_seconds=mark,
            unknown_seconds=unknown,
            groups=(group,),
            **dict(zip(FLAGS, flags, strict=True)),
        )
        for free, ahead, beside, group in product((0, 5, 100), (0, 300), (None, 0.3), (0, 2))
        for mark, unknown in product((None, 0.5, 0.0), (None, 0.25, 0.0))
        for flags in product((False, True), repeat=len(FLAGS))
    ]


def test_whatever_the_situation_it_claims_no_more_than_there_is_room_for_and_nothing_while_it_drains(
    every_situation: list[Situation],
) -> None:
    for now in every_situation:
        match next_step(now):
            case Exchange(free, ahead):
                assert (free, ahead) <= ((0, 0) if now.is_draining else (now.free, now.ahead)), now
            case Look(free):
                assert not now.is_draining
                assert 0 < free <= now.free, now


def test_whatever_the_situation_what_may_be_written_is_written_before_it_sleeps_or_finishes(
    every_situation: list[Situation],
) -> None:
    for now in every_situation:
        match next_step(now):
            case Sleep():
                assert not now.has_ends, now
            case Finish():
                assert now.is_draining, now
                assert not now.is_at_work, now
                assert now.is_over or not (now.has_ends or now.has_withheld or now.unknown_seconds is not None), now


def test_whatever_the_situation_no_sleep_is_without_an_end(every_situation: list[Situation]) -> None:
    for now in every_situation:
        if isinstance(step := next_step(now), Sleep):
            assert 0 <= step.seconds <= now.poll_seconds, now
            listens = now.is_quiet and now.free and not now.is_draining
            assert step.for_hints == bool(listens or (now.is_quiet and _only_beside(now))), now


def _only_beside(now: Situation) -> bool:
    """Tell whether there is room beside the slots of handlers, and nothing to claim for these."""
    is_hungry = now.is_hungry and now.free + now.ahead > 0 and not now.is_draining
    return now.beside_seconds is not None and not is_hungry
