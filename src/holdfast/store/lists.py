"""Lists of jobs and of chains, narrowed by filters: which path each filter takes, and how it is tested on the way.

    id, chain                     unique indexes; a chain of more than 10,000 jobs: along `seq`
    parent                        its index
    running, cancelling, pausing, worker    what is leased; if that is more than 10,000 jobs: along `seq`
    failed, paused                what is stuck
    open chains                   their index
    anything else                 along `seq`

Every filter is tested, also the one that chose the path. A scalar subquery stays a probe for each row that is looked
at; EXISTS would become a join, or a hash of its whole table. Tags, errors and inputs are stored as JSON texts, and a
text that is no JSON would make PostgreSQL's functions raise: SQL looks for the words as Holdfast writes them, and
Python reads what it finds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from holdfast.database.tx import Tx
from holdfast.models import INTERNAL_QUEUE, ChainQuery, Job, JobQuery, Order, Page, Scalar, StoredChain
from holdfast.states import OPEN, TERMINAL, State
from holdfast.store import workers
from holdfast.store.reads import CHAIN, Paging, to_chain
from holdfast.store.rows import COLUMNS, FACTS, SEQ_AT, to_job
from holdfast.store.search import REACH, AlongIndex, AlongNumbers, Among, Conditions, Query, Reach, RowPath, search
from holdfast.store.stuck import stuck
from holdfast.times import EPOCH

STUCK_STATES = frozenset({State.FAILED, State.PAUSED})
LEASED_STATES = frozenset({State.RUNNING, State.CANCELLING, State.PAUSING})
DIRECTIONS: tuple[tuple[Order, Literal["ASC", "DESC"]], ...] = (("newest", "DESC"), ("oldest", "ASC"))


async def list_jobs(tx: Tx, wanted: JobQuery, paging: Paging, reach: Reach = REACH) -> Page[Job]:
    """List the jobs that fit *wanted*, by one request that looks no further than *reach*."""
    chains = await _chains_of(tx, wanted.chains)
    query = Query(
        f"SELECT {COLUMNS}, {FACTS} FROM holdfast_job WHERE true",
        "holdfast_job.seq",
        SEQ_AT,
        _job_conditions(wanted, chains),
        to_job,
        lambda job: _fits(job, wanted),
    )
    return await search(tx, query, await _job_path(tx, wanted, chains, reach), paging)


async def newest_ids(tx: Tx, wanted: JobQuery, more: Conditions, most: int, reach: Reach = REACH) -> list[UUID]:
    """Find the newest *most* jobs that fit *wanted* and the conditions *more*, no further away than *reach*."""
    text = "holdfast_job.input" if wanted.inputs else "''"  # to read what nobody asks for costs most of the time
    query = Query(
        f"SELECT holdfast_job.seq, holdfast_job.id, {text} FROM holdfast_job WHERE true",
        "holdfast_job.seq",
        0,
        [*_job_conditions(wanted, ()), *more],
        tuple,
        lambda row: not wanted.inputs or _has_inputs(row[2], wanted.inputs),
    )
    path = await _job_path(tx, wanted, (), reach)
    return [UUID(row[1]) for row in await search(tx, query, path, Paging(most, "newest", None))]


async def list_chains(tx: Tx, wanted: ChainQuery, paging: Paging, reach: Reach = REACH) -> Page[StoredChain[Any]]:
    """List the chains that fit *wanted*, by one request that looks no further than *reach*."""
    query = Query(f"{CHAIN} WHERE true", "first.seq", 7, _chain_conditions(wanted), to_chain)
    path: RowPath = AlongNumbers(reach.numbers)
    if wanted.ids:
        path = Among(await _numbers(tx, BY_ID, ids=await _chains_of(tx, wanted.ids)))
    elif _is_open(wanted):
        path = AlongIndex(OPEN_CHAINS, reach.rows)
    return await search(tx, query, path, paging)


async def _job_path(tx: Tx, wanted: JobQuery, chains: Sequence[str], reach: Reach) -> RowPath:
    """Choose the path that leads past the fewest jobs."""
    if wanted.ids:
        return Among(await _numbers(tx, BY_ID, ids=list(map(str, wanted.ids))))
    if wanted.parent is not None:
        return AlongIndex(CHILDREN, reach.rows, parent=str(wanted.parent))
    along_numbers = AlongNumbers(reach.slow_numbers if wanted.inputs or wanted.chain_tasks else reach.numbers)
    states = frozenset(wanted.states)
    if wanted.chains:
        seqs = await _numbers(tx, OF_CHAINS, chains=list(chains), most=reach.rows + 1)
    elif wanted.workers or (states and states <= LEASED_STATES):
        seqs = await _numbers(tx, LEASED, most=reach.rows + 1)
    elif states and states <= STUCK_STATES:
        return AlongIndex(STUCK[states], reach.rows)
    else:
        return along_numbers
    return along_numbers if len(seqs) > reach.rows else Among(seqs)


BY_ID = """SELECT seq FROM holdfast_job WHERE id $any(ids: text)"""
# a chain's first job has its id, and the others have an index
OF_CHAINS = """
    SELECT found.seq FROM (
        SELECT seq FROM holdfast_job WHERE id $any(chains: text) AND chain_index = 0
        UNION ALL
        SELECT seq FROM holdfast_job WHERE chain_id $any(chains: text) AND chain_index > 0) AS found
    LIMIT :most"""
# ordered, or a planner that takes most jobs for running ones reads the table
LEASED = """SELECT seq FROM holdfast_job WHERE lease_until IS NOT NULL ORDER BY lease_until LIMIT :most"""
STUCK = {
    states: {
        order: stuck(
            "holdfast_job.seq",
            "holdfast_job.seq > :low AND holdfast_job.seq < :high",
            statuses=sorted(states),
            direction=direction,
        )
        for order, direction in DIRECTIONS
    }
    for states in (frozenset({State.FAILED}), frozenset({State.PAUSED}), STUCK_STATES)
}
CHILDREN = {
    order: f"""
    SELECT seq FROM holdfast_job WHERE parent = :parent AND seq > :low AND seq < :high
    ORDER BY seq {direction} LIMIT :most"""
    for order, direction in DIRECTIONS
}
OPEN_CHAINS = {
    order: f"""
    SELECT seq FROM holdfast_job WHERE chain_index = 0 AND closed_as IS NULL AND seq > :low AND seq < :high
    ORDER BY seq {direction} LIMIT :most"""
    for order, direction in DIRECTIONS
}


async def _numbers(tx: Tx, sql: str, **values: object) -> list[int]:
    return [seq for (seq,) in await tx.fetch_all(sql, **values)]


CHAINS_OF = """SELECT chain_id FROM holdfast_job WHERE id $any(ids: text)"""


async def _chains_of(tx: Tx, ids: Sequence[UUID]) -> list[str]:
    """Give the chains that *ids*, of chains or of any of their jobs, belong to."""
    if not ids:
        return []
    return sorted({chain_id for (chain_id,) in await tx.fetch_all(CHAINS_OF, ids=list(map(str, ids)))})


WAITING = """(holdfast_job.gate = 'lane'
    OR (SELECT held.paused_at FROM holdfast_queue AS held WHERE held.name = holdfast_job.queue
        AND coalesce(held.until, $now + 1) > $now) IS NOT NULL
    OR (SELECT held.paused_at FROM holdfast_lane AS held WHERE held.key = holdfast_job.lane) IS NOT NULL)"""
DERIVED = {
    State.SCHEDULED: "(holdfast_job.status = 'pending' AND holdfast_job.run_at > $now)",
    State.WAITING: f"(holdfast_job.status = 'pending' AND holdfast_job.run_at <= $now AND {WAITING})",
    State.CANCELLING: "(holdfast_job.status = 'running' AND holdfast_job.cancel_requested_at IS NOT NULL)",
    State.PAUSING: """(holdfast_job.status = 'running' AND holdfast_job.pause_requested_at IS NOT NULL
        AND holdfast_job.cancel_requested_at IS NULL)""",
    State.CONTINUED: """(holdfast_job.status = 'completed' AND holdfast_job.stale_at IS NULL
        AND (SELECT next.seq FROM holdfast_job AS next
        WHERE next.chain_id = holdfast_job.chain_id AND next.chain_index = holdfast_job.chain_index + 1
            AND next.chain_index > 0) IS NOT NULL)""",
    State.STALE: "holdfast_job.stale_at IS NOT NULL",
}
CHAIN_TASK = """CASE WHEN holdfast_job.chain_index = 0 THEN holdfast_job.task
    ELSE (SELECT first.task FROM holdfast_job AS first WHERE first.id = holdfast_job.chain_id) END"""


def _job_conditions(wanted: JobQuery, chains: Sequence[str]) -> Conditions:
    found: Conditions = [("coalesce(holdfast_job.closed_as, '') <> 'deleted'", {})]
    if not wanted.internal and INTERNAL_QUEUE not in wanted.queues:
        found.append((f"holdfast_job.queue <> '{INTERNAL_QUEUE}'", {}))
    if wanted.parent is not None:
        found.append(("holdfast_job.parent = :parent", {"parent": str(wanted.parent)}))
    if wanted.chains:
        found.append(("holdfast_job.chain_id $any(chains: text)", {"chains": list(chains)}))
    for name, column, words in (
        ("ids", "holdfast_job.id", tuple(map(str, wanted.ids))),
        ("tasks", "holdfast_job.task", wanted.tasks),
        ("queues", "holdfast_job.queue", wanted.queues),
        ("lanes", "holdfast_job.lane", wanted.lanes),
        ("workers", "holdfast_job.worker", [name for each in wanted.workers for name in workers.names_on_rows(each)]),
        ("chain_tasks", CHAIN_TASK, wanted.chain_tasks),
    ):
        if words:
            found.append((f"{column} $any({name}: text)", {name: words}))
    if wanted.states:
        found.append((f"({' OR '.join(map(_state_condition, wanted.states))})", {}))
    found += _text_conditions(wanted)
    return found + _created("holdfast_job", wanted.created_from, wanted.created_to)


def _state_condition(state: State) -> str:
    """A stored word means its status, unless the job is stale; a derived one exactly what is shown."""
    return DERIVED.get(state) or f"(holdfast_job.status = '{state}' AND holdfast_job.stale_at IS NULL)"


def _text_conditions(wanted: JobQuery) -> Conditions:
    """Narrow down what is stored as JSON to the texts that have the words in them."""
    found: Conditions = []
    if wanted.tags:
        found.append(_has_any("tags", "tag", list(map(json.dumps, wanted.tags))))
    if wanted.errors:
        found.append(_has_any("error", "kind", list(map(json.dumps, wanted.errors))))
    for number, (path, value) in enumerate(wanted.inputs):
        found.append(_has_any("input", f"input_{number}", _members(path[-1], value)))
    return found


def _has_any(column: str, name: str, texts: Sequence[str]) -> tuple[str, dict[str, object]]:
    named = {f"{name}_{nr}": text for nr, text in enumerate(dict.fromkeys(texts))}
    return f"({' OR '.join(f'$position(holdfast_job.{column}, :{each}) > 0' for each in named)})", dict(named)


def _members(key: str, value: Scalar) -> list[str]:
    """Write *key* and *value* in all ways in which canonical JSON has a member of an object that equals it."""
    from pydantic_core import to_json  # whoever lists jobs without it needs no pydantic

    written = to_json(key).decode()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return [f"{written}:{to_json(value).decode()}"]
    return [f"{written}:{to_json(each).decode()}{end}" for each in _numbers_equal_to(value) for end in ",}"]


def _numbers_equal_to(value: float) -> list[int | float]:
    """Give the whole number and the float that JSON writes as something equal: 42 and 42.0, or 10**30 and 1e30."""
    from decimal import Decimal

    worth = Decimal(repr(value))
    equal: list[int | float] = [value, -0.0] if value == 0 else [value]
    if worth == worth.to_integral_value():
        equal.append(int(worth))
    with suppress(OverflowError):  # no float is as large
        equal += [near] if Decimal(repr(near := float(value))) == worth else []
    return list({repr(each): each for each in equal}.values())


def _fits(job: Job, wanted: JobQuery) -> bool:
    """Tell whether what SQL has only looked for as words in a text is so."""
    return (
        (not wanted.tags or not set(wanted.tags).isdisjoint(job.tags))
        and (not wanted.errors or (isinstance(job.error, dict) and job.error.get("type") in wanted.errors))
        and (not wanted.inputs or _has_inputs(job.input, wanted.inputs))
    )


def _has_inputs(text: object, wanted: Sequence[tuple[tuple[str, ...], Scalar]]) -> bool:
    from decimal import Decimal

    try:
        given = json.loads(str(text), parse_float=Decimal)
    except (ValueError, RecursionError):
        return False
    return all(_equals(_at(given, path), value) for path, value in wanted)


NOWHERE = object()


def _at(given: Any, path: Sequence[str]) -> object:
    for step in path:
        given = given.get(step, NOWHERE) if isinstance(given, dict) else NOWHERE
    return given


def _equals(found: object, value: Scalar) -> bool:
    """Compare as JSON does: numbers by what they are worth, and nothing else with anything of another kind."""
    from decimal import Decimal

    if isinstance(value, bool) or value is None:
        return found is value
    if isinstance(value, str):
        return isinstance(found, str) and found == value
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    return isinstance(found, int | Decimal) and not isinstance(found, bool) and found == exact


def _chain_conditions(wanted: ChainQuery) -> Conditions:
    found: Conditions = [("first.chain_index = 0", {}), ("coalesce(first.closed_as, '') <> 'deleted'", {})]
    if wanted.tasks:
        found.append(("first.task $any(tasks: text)", {"tasks": wanted.tasks}))
    if wanted.statuses:
        found.append(("last.status $any(statuses: text)", {"statuses": wanted.statuses}))
    if _is_open(wanted):
        found.append(("first.closed_as IS NULL", {}))
    elif wanted.is_open is False or (wanted.statuses and set(wanted.statuses) <= set(TERMINAL)):
        found.append(("first.closed_as IS NOT NULL", {}))
    if not wanted.internal:
        found.append((f"first.queue <> '{INTERNAL_QUEUE}'", {}))
    if wanted.roots_only:
        found.append(("(SELECT 1 FROM holdfast_blocker AS b WHERE b.chain_id = first.id LIMIT 1) IS NULL", {}))
    return found + _created("first", wanted.created_from, wanted.created_to)


def _is_open(wanted: ChainQuery) -> bool:
    """Tell whether only open chains can fit."""
    return bool(wanted.is_open or (wanted.statuses and set(wanted.statuses) <= set(OPEN)))


def _created(table: str, earliest: datetime | None, latest: datetime | None) -> Conditions:
    """Test a time that is stored in milliseconds: a part of one before or behind it makes no other job fit."""
    found: Conditions = []
    if earliest is not None:
        found.append((f"{table}.created_at >= :created_from", {"created_from": -_whole_milliseconds(EPOCH - earliest)}))
    if latest is not None:
        found.append((f"{table}.created_at <= :created_to", {"created_to": _whole_milliseconds(latest - EPOCH)}))
    return found


def _whole_milliseconds(since: timedelta) -> int:
    return since // timedelta(milliseconds=1)
