"""What one of a worker's loops does next: a pure function of how the worker stands.

A loop asks for the next step, carries it out and asks again; it keeps nothing in mind. The steps, in the order in which
they come before each other:

    Finish      the worker drains, and all it had is written down, or its last moment is over
    Resolve     the answer to a claim was lost: read whether it has happened
    GiveBack    what was claimed ahead has waited for too long: give it back, another worker may have a slot
    ClaimFor    a group of slots beside those of the handlers has room, and something may be there for it
    Exchange    write down what has ended, and claim for the slots that are free, in one transaction
    Look        nothing runs that would claim, and a hint has come, or it is time: read whether there is something to do
    Sleep       until something ends, a hint comes, or it is time

*Beside the handlers.* While all their slots are taken, a child process may be idle: then hints are listened to for it,
and it is looked for its work alone, twice a second at most.

*Who claims.* Both loops may write down ends, each what it finds. A claim reserves the slots that it is for, so that the
other loop claims for what comes free after it. While a claim is under way, or is wanted, nobody looks: the claim tells.

*By turns.* Nobody can keep another waiting: after a claim for a group comes an exchange, if there is one to make, and
then the next group has its turn.

*Rest.* Handlers that end their jobs by blocks leave nothing to write down, and end one by one: to claim for each would
be a transaction for each. So while most slots are at work, and nothing is to be written down, the next claim waits as
long as the last one took: meanwhile more slots come free, and at most half of the time goes by in claims. In the same
way jobs that were claimed ahead are used up by half before more are claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

MOST_AT_WORK = 0.75
"""Of the slots; if fewer are, no claim waits for more to come free."""
AGAIN_SECONDS = 1.0
"""Until a worker that drains looks whether its last moment is over."""


@dataclass(frozen=True, slots=True)
class Situation:
    """How a worker stands, as far as it decides what a loop does next."""

    concurrency: int
    free: int = 0
    """How many slots of handlers may be claimed for."""
    ahead: int = 0
    """How many further jobs may be claimed that wait for a slot."""
    waiting: int = 0
    """How many of these there are."""
    is_at_work: bool = False
    """Something runs, waits to begin, or is being claimed."""
    has_ends: bool = False
    """There is something to write down, and it may be."""
    has_withheld: bool = False
    """There is more, which may not yet."""
    groups: tuple[int, ...] = ()
    """For how many slots of each group may be claimed; none unless something may be there for it."""
    last_group: int = -1
    """For which of them was claimed last."""
    beside_seconds: float | None = None
    """How long until work is looked for that takes no slot of handlers; None if there is no room for any."""
    was_for_group: bool = False
    """The last step of this loop was for such a group."""
    is_hungry: bool = False
    """Something may be there for the slots of handlers."""
    rest_seconds: float = 0.0
    """How long the next claim is to wait, if most slots are at work."""
    is_quiet: bool = True
    """No claim is under way, and none that could be made is wanted before a hint, or the next look."""
    is_disturbed: bool = False
    """So many hints come that it is better to say that none are wanted."""
    look_seconds: float = 0.0
    """How long until the next look."""
    poll_seconds: float = 0.0
    mark_seconds: float | None = None
    """How long until rows should say that their handlers have begun; None if all do."""
    stale_seconds: float | None = None
    """How long until what was claimed ahead is given back; None if nothing waits, or a slot is free for it."""
    unknown_seconds: float | None = None
    """How long until the lost answers to claims are to be looked for; None if none was lost."""
    is_draining: bool = False
    is_over: bool = False
    """What is not written by now stays unwritten."""


@dataclass(frozen=True, slots=True)
class Finish:
    """Be done."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Read what became of claims whose answers were lost."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give back what was claimed ahead and has waited for too long."""


@dataclass(frozen=True, slots=True)
class ClaimFor:
    """Claim up to *most* for the slots of one *group*, by its number."""

    group: int
    most: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """Write down what has ended, and claim: up to *free* to begin, and up to *ahead* to wait."""

    free: int
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """Claim up to *free* if a hint has come, and read whether there is more to do, of what there is room for."""

    free: int


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait until woken, *seconds* at most; *for_hints*: a hint is to wake us, too."""

    seconds: float
    for_hints: bool = False


Step: TypeAlias = Finish | Resolve | GiveBack | ClaimFor | Exchange | Look | Sleep


def next_step(now: Situation) -> Step:
    has_unwritten = now.has_ends or now.has_withheld or now.unknown_seconds is not None
    if now.is_draining and not now.is_at_work and (now.is_over or not has_unwritten):
        return Finish()
    if _is_due(now.unknown_seconds):
        return Resolve()
    if _is_due(now.stale_seconds):
        return GiveBack()
    free, ahead = (0, 0) if now.is_draining else (now.free, now.ahead if now.waiting <= now.ahead else 0)
    wants_exchange = now.has_ends or (now.is_hungry and free + ahead > 0 and _rest_seconds(now, free, ahead) <= 0)
    if any(now.groups) and not (now.was_for_group and wants_exchange):
        turns = [(number <= now.last_group, number) for number, most in enumerate(now.groups) if most]
        _, number = min(turns)
        return ClaimFor(number, now.groups[number])
    if wants_exchange:
        return Exchange(free, ahead)
    if _is_due(now.mark_seconds):
        return Exchange(0)
    has_room = free or (_is_due(now.beside_seconds) and not now.is_draining)
    if has_room and now.look_seconds <= 0 and (now.is_quiet or now.is_disturbed):
        return Look(free)
    return _sleep(now, free, ahead)


def _is_due(seconds: float | None) -> bool:
    return seconds is not None and seconds <= 0


def _rest_seconds(now: Situation, free: int, ahead: int) -> float:
    """Say how long the next claim is to wait; not at all where many slots are free, or some are claimed ahead."""
    return 0.0 if ahead or free > now.concurrency * (1 - MOST_AT_WORK) else now.rest_seconds


def _sleep(now: Situation, free: int, ahead: int) -> Sleep:
    """Wait until an attempt has ended, a hint has come, or it is time to look; without any free slot it never is."""
    seconds, for_hints = now.poll_seconds, False
    if free and now.is_quiet:  # else the other loop claims, and looks when it has
        seconds, for_hints = now.look_seconds, True
    elif free + ahead and now.is_hungry:
        seconds = _rest_seconds(now, free, ahead)
    elif now.beside_seconds is not None and now.is_quiet:
        for_hints = now.look_seconds > 0  # else one has come, and is as good as heard
        seconds = now.look_seconds if for_hints else now.beside_seconds
    due = (now.mark_seconds, now.stale_seconds, now.unknown_seconds)
    bounds = [each for each in due if each is not None]
    if now.is_draining:
        bounds.append(min(now.poll_seconds, AGAIN_SECONDS))
    return Sleep(max(0.0, min(seconds, *bounds)) if bounds else seconds, for_hints)
