"""How the workers of one host share its slots: by turns, if all together want more than there are.

Each takes what it wants up to its own cap, as long as there is enough.

*The ring.* Who asks for more than is free waits in a ring. A slot that comes free is granted to the first of the ring,
who is woken; if it wants more than that one, it goes to the end. Who asks while others wait goes to the end, too, also
for a slot that one of its own jobs has just left: so a tenant with 100,000 jobs has a turn like any other.

*Nobody keeps the ring.* A grant that is not taken within a moment, because its worker waits for a locked table or for a
server that does not answer, goes to the next, and who has missed it to the end of the ring. Who wants nothing any more,
or closes, leaves it.

What a worker has claimed ahead counts as well, and nothing is claimed ahead while somebody waits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

GRANT_SECONDS = 0.1
"""How long a worker has to take what it was granted: longer than the rest that a claim may wait for (`plan`)."""

Later: TypeAlias = Callable[[float, Callable[[], None]], object]


class SlotShare:
    """The *slots* of one host; *later* calls a function after so many seconds, in the loop of its workers."""

    def __init__(self, slots: int, monotonic: Callable[[], float], later: Later) -> None:
        self.slots = slots
        self._monotonic = monotonic
        self._later = later
        self._held = 0
        """How many are taken or granted."""
        self._ring: dict[Share, None] = {}
        self._granted: dict[Share, None] = {}
        """Who has not taken yet what it was granted, the oldest grant first."""
        self._is_watched = False
        """Whether it is planned to look for grants that nobody has taken."""

    @property
    def free(self) -> int:
        """How many are neither taken nor granted; below zero if more was taken than there is."""
        return self.slots - self._held

    @property
    def has_hungry(self) -> bool:
        """Tell whether somebody waits for a slot."""
        return bool(self._ring)

    def join(self, wake: Callable[[], None]) -> Share:
        """Make the share of one more worker; *wake* has it ask again."""
        return Share(self, wake)

    def hold(self, number: int) -> None:
        """Count *number* more, which may be below zero, as taken or granted."""
        self._held += number

    def wait(self, share: Share) -> None:
        """Put *share*, which wants more than it has, at the end of the ring, unless it is in it."""
        self._ring.setdefault(share)

    def leave(self, share: Share) -> None:
        """Take *share* out of the ring."""
        self._ring.pop(share, None)

    def hand_out(self, asking: Share | None = None) -> None:
        """Grant what is free, round robin; wake who has been granted something, but for who is *asking* just now."""
        woken: dict[Share, None] = {}
        while self._ring and self.free > 0:
            share = next(iter(self._ring))
            del self._ring[share]
            share.grant_one()
            woken.setdefault(share)
            if share.hunger:
                self._ring[share] = None
        for share in woken:
            share.granted_at = self._monotonic()
            self._granted.pop(share, None)
            self._granted[share] = None
            if share is not asking:
                share.wake()
        self._watch()

    def has_taken(self, share: Share) -> None:
        """Take note that *share* has no grant left that it has not taken."""
        self._granted.pop(share, None)

    def _watch(self) -> None:
        """See to it that grants are looked at which nobody takes; it matters only while somebody waits."""
        if self._ring and self._granted and not self._is_watched:
            self._is_watched = True
            oldest = next(iter(self._granted))
            self._later(max(0.0, oldest.granted_at + GRANT_SECONDS - self._monotonic()), self._look)

    def _look(self) -> None:
        self._is_watched = False
        late = self._monotonic() - GRANT_SECONDS
        for share in [each for each in self._granted if each.granted_at <= late] if self._ring else ():
            share.miss()
        self.hand_out()


class Share:
    """What one worker has of its host's slots."""

    def __init__(self, slots: SlotShare, wake: Callable[[], None]) -> None:
        self._slots = slots
        self.wake = wake
        self._used = 0
        self._granted = 0
        self.granted_at = 0.0
        self.hunger = 0
        """How many more it wants than it has been granted."""

    def ask(self, used: int, wanted: int) -> int:
        """Say how many of *wanted* slots may be claimed for now, beside *used* ones; for the rest it is woken later."""
        self._note_used(used)
        if self._granted > wanted:
            self._give_back(self._granted - wanted)
        self.hunger = wanted - self._granted
        if self.hunger:
            self._slots.wait(self)
        else:
            self._slots.leave(self)
        self._slots.hand_out(self)
        return self._granted

    def report(self, used: int) -> None:
        """Take note that *used* slots are taken; what has come free is for who waits."""
        self._note_used(used)
        self._slots.hand_out()

    def spare(self, wanted: int) -> int:
        """Say how many of *wanted* may be claimed ahead: none while somebody waits for a slot.

        That may be more than there are slots: where jobs are so short that this pays, they have run within a moment.
        """
        return 0 if self._slots.has_hungry else wanted

    def take(self, number: int) -> None:
        """Take *number*, of what was granted first."""
        taken = min(number, self._granted)
        self._used += number
        self._slots.hold(number - taken)
        self._granted -= taken
        if not self._granted:
            self._slots.has_taken(self)

    def close(self) -> None:
        """Give back all that it has, and ask no more."""
        self.ask(0, 0)

    # for `SlotShare`

    def grant_one(self) -> None:
        self._granted += 1
        self.hunger -= 1
        self._slots.hold(1)

    def miss(self) -> None:
        """Lose what was granted and not taken, and wait at the end of the ring."""
        self.hunger += self._granted
        self._give_back(self._granted)
        self._slots.leave(self)
        self._slots.wait(self)

    def _note_used(self, used: int) -> None:
        self._slots.hold(used - self._used)
        self._used = used

    def _give_back(self, number: int) -> None:
        self._granted -= number
        self._slots.hold(-number)
        if not self._granted:
            self._slots.has_taken(self)
