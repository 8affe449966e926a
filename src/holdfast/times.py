"""Instants as people give them, read as the store keeps them: milliseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from holdfast.errors import InvalidInput, got

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(2200, 1, 1, tzinfo=UTC)
"""The first instant that is refused: a time beyond it is a mistake, or means never, which `paused=True` says."""
EARLIEST_MS = -62_135_596_800_000
"""The beginning of the year 1; an instant of another zone may be hours before it, and cannot be read back as UTC."""


def milliseconds_of(value: object, name: str, instead: str = "") -> int:
    """Read a timezone-aware datetime before the year 2200; raise `InvalidInput` for anything else.

    *instead* is what else the caller may write. The zone of this process is never taken for it: whoever
    reads the time next may be in another.
    """
    option = name.rpartition(".")[2]
    if not isinstance(value, datetime) or value.utcoffset() is None:
        advice = "add a tzinfo" if isinstance(value, datetime) else "write datetime.now(UTC), plus or minus a timedelta"
        other = f", or {instead}" if instead else ""
        raise InvalidInput(f"{option} must be a timezone-aware datetime, {got(value)}; {advice}{other}", name)
    if value >= LATEST:
        held = "to hold a job back until somebody resumes it, use paused=True or pause it"
        advice = held if instead else "give an earlier one, or leave it out"
        raise InvalidInput(f"{option} must be before the year {LATEST.year}, got {value}; {advice}", name)
    return max((value - EPOCH) // timedelta(milliseconds=1), EARLIEST_MS)


def instant_text(instant: datetime | None) -> str | None:
    """Write an instant, or None."""
    return None if instant is None else instant.isoformat("T", "milliseconds").replace("+00:00", "Z")
