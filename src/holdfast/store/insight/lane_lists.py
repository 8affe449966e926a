"""Lists of lanes, those first that need somebody: halted ones, then paused ones, then the rest; and a lane's jobs.

A list goes through three stages, each along an index: what is stuck and a head, the lanes that are paused, and all
lanes by their keys. A request looks at 10,000 lanes at most; then its page is short, and the cursor goes on.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import NamedTuple

from holdfast.database.tx import Tx
from holdfast.errors import UsageError
from holdfast.inventory import LANE_STATES, LaneState
from holdfast.models import Job, LaneInfo, Page
from holdfast.store import lanes
from holdfast.store.reads import Paging, read_cursor, write_cursor
from holdfast.store.rows import COLUMNS, FACTS, to_job
from holdfast.store.stuck import HALTING, stuck
from holdfast.texts import UNSTORABLE
from holdfast.unreadable import readable

MOST_LOOKED = 10_000
"""How many lanes one request looks at."""

AT_ONCE = 500
"""How many of them one statement looks at, once the first ones did not fill the page."""

MOST_BEHIND = 100
"""How far the jobs behind a head are counted, for each lane of a list."""

HALTED = stuck("holdfast_job.seq, holdfast_job.lane", "holdfast_job.seq > CAST(:after AS bigint)", heads=[HALTING])
PAUSED = """
    SELECT key, key FROM holdfast_lane WHERE paused_at IS NOT NULL AND key > :after ORDER BY key LIMIT :most"""
ALL = """SELECT key, key FROM holdfast_lane WHERE key > :after ORDER BY key LIMIT :most"""
STAGES: dict[LaneState, str] = {"halted": HALTED, "paused": PAUSED, "moving": ALL}


class LanePlace(NamedTuple):
    """Where a list of lanes stands: in which stage, and behind which number or key."""

    stage: LaneState
    after: int | str

    @property
    def text(self) -> str:
        """It as a cursor."""
        return base64.urlsafe_b64encode(json.dumps(["lanes", *self]).encode()).decode().rstrip("=")

    @classmethod
    def begin(cls, stage: LaneState) -> LanePlace:
        """Give the begin of a stage."""
        return cls(stage, 0 if stage == "halted" else "")

    @classmethod
    def read(cls, cursor: str) -> LanePlace:
        """Read a cursor, or raise `UsageError`."""
        try:
            kind, stage, after = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
            number = stage == "halted" and type(after) is int and 0 <= after < 2**63
            key = stage in ("paused", "moving") and isinstance(after, str) and not UNSTORABLE.search(after)
            if kind == "lanes" and (number or key):
                return cls(stage, after)
        except (binascii.Error, ValueError, TypeError, RecursionError):
            pass
        raise UsageError("this cursor is not one of a list of lanes; take next_cursor of the page before")


async def list_lanes(
    tx: Tx, state: LaneState | None, prefix: str, paging: Paging, most_looked: int = MOST_LOOKED
) -> Page[LaneInfo]:
    """List the lanes in *state* whose keys begin with *prefix*; look at *most_looked* of them, and no more."""
    stages = LANE_STATES if state is None else (state,)
    place = LanePlace.begin(stages[0]) if paging.cursor is None else LanePlace.read(paging.cursor)
    if place.stage not in stages:
        raise UsageError("this cursor is one of a list of lanes in another state; take next_cursor of the page before")
    found: list[tuple[LanePlace, LaneInfo]] = []
    batch = paging.limit + 1
    while len(found) <= paging.limit and most_looked > 0:
        looked = await _look(tx, place, prefix, min(batch, most_looked), paging.limit)
        infos = [each for each in await _infos(tx, list(looked.fitting)) if _belongs(each, place.stage, state)]
        found += [(looked.fitting[each.key], each) for each in infos]
        most_looked -= looked.lanes
        batch = AT_ONCE
        if not looked.is_end:
            place = looked.last
        elif place.stage == stages[-1]:
            return _page(found, paging.limit, None)
        else:
            place = LanePlace.begin(stages[stages.index(place.stage) + 1])
    return _page(found, paging.limit, place)


class Looked(NamedTuple):
    """What one statement found of a stage: the lanes that fit, and how far it came."""

    fitting: dict[str, LanePlace]
    last: LanePlace
    lanes: int
    is_end: bool


async def _look(tx: Tx, place: LanePlace, prefix: str, most: int, limit: int) -> Looked:
    """Look at *most* lanes behind *place*, until more than *limit* fit."""
    rows = await tx.fetch_all(STAGES[place.stage], after=place.after, most=most)
    fitting: dict[str, LanePlace] = {}
    count = 0
    for count, (after, key) in enumerate(rows, 1):  # noqa: B007 - how many were looked at
        place = place._replace(after=after)
        if key.startswith(prefix):
            fitting[key] = place
        if len(fitting) > limit:
            break
    return Looked(fitting, place, count, is_end=count == len(rows) < most)


async def _infos(tx: Tx, keys: list[str]) -> list[LaneInfo]:
    return readable(await lanes.lane_infos(tx, keys, MOST_BEHIND), lambda told: told())


def _belongs(lane: LaneInfo, stage: LaneState, asked: LaneState | None) -> bool:
    """Tell whether a lane that a stage has found is shown there, and in no stage before."""
    match stage:
        case "halted":
            return lane.halted_by is not None
        case "paused":
            return lane.paused_at is not None and (asked is not None or lane.halted_by is None)
        case "moving":
            return lane.is_moving


def _page(found: list[tuple[LanePlace, LaneInfo]], limit: int, place: LanePlace | None) -> Page[LaneInfo]:
    if len(found) > limit:
        place = found[limit - 1][0]
    return Page(tuple(lane for _, lane in found[:limit]), None if place is None else place.text)


HEAD = f"""SELECT {COLUMNS}, {FACTS}, holdfast_job.place FROM holdfast_job WHERE lane = :key AND head = 1"""
STANDING = f"""
    SELECT {COLUMNS}, {FACTS}, holdfast_job.place FROM holdfast_job
    WHERE lane = :key AND gate = 'lane' AND place > :after ORDER BY place LIMIT :most"""


async def list_lane_jobs(tx: Tx, key: str, paging: Paging) -> Page[Job]:
    """List the jobs that stand in lane *key*: its head, and those behind it by their places."""
    after = 0 if paging.cursor is None else read_cursor(paging.cursor, "places")
    head = await tx.fetch_all(HEAD, key=key) if paging.cursor is None else []
    rows = [*head, *await tx.fetch_all(STANDING, key=key, after=after, most=paging.limit + 1 - len(head))]
    shown = rows[: paging.limit]
    jobs = tuple(readable(shown, lambda row: to_job(row[:-1])))
    return Page(jobs, write_cursor("places", shown[-1][-1] or 0) if len(rows) > len(shown) else None)
