"""How far the end of a worker has come; asked by all its parts, and only ever moved on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LAST_SECONDS = 4.0
"""How long after the grace time a worker has ended, whatever its handlers do."""
CLEANUP_SECONDS = 2.5
"""How much of that handlers have which were told to stop; then they are left behind."""
SPARED_SECONDS = 1.0
"""The last of them, in which what could not be written is given back."""


def grace_in_words(seconds: float | None) -> str:
    """Say how long handlers may go on once their worker drains."""
    return "as long as they need" if seconds is None else f"{seconds:g} s"


@dataclass(slots=True)
class Shutdown:
    """A worker works, then drains (claims nothing, lets run), then has its last seconds to write things down."""

    monotonic: Callable[[], float]
    is_draining: bool = False
    last_moment: float | None = None

    def begin_last_moment(self) -> None:
        self.last_moment = self.monotonic() + LAST_SECONDS - SPARED_SECONDS

    def note_end(self) -> None:
        """Leave a handler that ended late as many seconds for its end to be written as the others had."""
        if self.last_moment is not None:
            self.begin_last_moment()

    @property
    def is_over(self) -> bool:
        """Tell whether what is not written by now stays unwritten."""
        return self.last_moment is not None and self.monotonic() > self.last_moment
