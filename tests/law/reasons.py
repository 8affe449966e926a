"""What holds of every explanation, whatever the moment: it has a reason, in its order, that fits the job's status."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.explanations import CODES

ORDER = list(CODES)
ENDS = ("completed", "failed", "cancelled")
ALONE = {"running", "stopping", "ended", "not_committed"}
"""The codes that a job which waits cannot have."""


def wrong_reasons(status: str, codes: Sequence[str]) -> str | None:
    """Say what is wrong with the *codes* that explain a job in *status*; None if nothing is. I-86."""
    if not codes:
        return f"a {status} job has no reason"
    if unknown := [each for each in codes if each not in ORDER]:
        return f"{unknown} are no codes"
    wanted = _first_codes(status)
    if wanted and codes[0] not in wanted:
        return f"a {status} job is explained by {codes[0]} first"
    if not wanted and (wrong := [each for each in codes if each in ALONE or each == "paused" or each == "blocked"]):
        return f"a {status} job is explained by {wrong}"
    if status not in (*ENDS, "running") and sorted(codes, key=ORDER.index) != list(codes):
        return f"{list(codes)} are not in the order in which the engine meets them"
    return None


def _first_codes(status: str) -> tuple[str, ...]:
    """Name the codes one of which explains a job in *status* before all others; none for one that is pending."""
    if status == "running":
        return ("running", "stopping")
    return {"paused": ("paused",), "blocked": ("blocked",), "pending": ()}.get(status, ("ended",))
