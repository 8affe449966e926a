"""Which of a user's statements are so short that an event loop runs them itself.

A block in an event loop has the right to write, so its statements wait for nobody, and most take some microseconds. A
hop to a thread and back takes 130. So a text that was short a few times in a thread runs in the loop from then on. One
that took long there goes back to the threads, until it has been short again. A loop that has run statements for a
while is given its turn: the next one hops.
"""

from __future__ import annotations

SHORT_SECONDS = 0.001
TIMES = 3
"""How often in a row a statement must have been short before the loop runs it."""
MOST_TEXTS = 1000
TURN_SECONDS = 0.005
"""How long a block may run statements in the loop before others in the loop get their turn."""


class StatementTimes:
    """What is known of the statements of one store, by their texts."""

    def __init__(self) -> None:
        self._short: dict[str, int] = {}

    def is_short(self, sql: str) -> bool:
        """Tell whether the loop may run *sql* itself."""
        return self._short.get(sql, 0) >= TIMES

    def note(self, sql: str, seconds: float) -> None:
        """Note how long *sql* has taken."""
        if seconds >= SHORT_SECONDS:
            self._short.pop(sql, None)
            return
        if len(self._short) >= MOST_TEXTS and sql not in self._short:
            self._short.clear()
        self._short[sql] = min(self._short.get(sql, 0) + 1, TIMES)
