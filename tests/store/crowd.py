"""Hundreds of thousands of rows of every kind, and the regimes in which a planner may meet them (GUARANTEES I-72).

Raw SQL fills the tables here, and only here: it is for tests of the planner, which need a crowd within seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from uuid import UUID

from holdfast.database.tx import Tx, drive

MIXED = 100_000
IN_FRONT = 100_000
TINY = 40
CYCLE = 20


class Regime(StrEnum):
    """What the planner knows of the tables."""

    NEVER = "never analysed"
    EMPTY = "analysed empty"
    FINISHED = "mostly finished"
    FRESH = "fresh"
    TINY = "prepared while tiny"


def job_id(number: int) -> UUID:
    """Give the id of job *number*."""
    return UUID(f"00000000-0000-7000-8000-{number:012}")


SERIES = "WITH RECURSIVE series(n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM series WHERE n < {last})"
# a row's kind repeats every {cycle} rows; beyond the first twenty of a cycle all are completed
KINDS = """
    , kinds AS (SELECT n, CASE WHEN n % {cycle} < 20 THEN n % {cycle} ELSE 0 END AS kind FROM series)"""
FIRST_OF_CHAIN = "CASE WHEN kind BETWEEN 16 AND 19 THEN n - kind + 15 ELSE n END"


def sql_id(number: str) -> str:
    """Write the id of job *number*, an SQL expression, in the words of both databases."""
    return f"'00000000-0000-7000-8000-' || substr(CAST(1000000000000 + {number} AS text), 2)"


FILL_JOBS = f"""
    INSERT INTO holdfast_job (seq, id, chain_id, chain_index, task, queue, lane, status, gate, wake_at, sort_key,
        place, head, run_at, attempt, nonce, worker, lease_until, lease_ms, input, created_at, finished_at, closed_as,
        closed_at, stale_at, unique_key, parent)
    {SERIES}{KINDS}
    SELECT n, {sql_id("n")}, {sql_id(FIRST_OF_CHAIN)}, CASE WHEN kind BETWEEN 16 AND 19 THEN kind - 15 ELSE 0 END,
        'task-' || (n / 20 % 10), CASE WHEN n / 20 % 4 = 0 THEN 'mails' ELSE 'default' END,
        CASE kind WHEN 10 THEN 'lane-' || (n / 20 % 500) WHEN 11 THEN 'head-' || n END,
        CASE WHEN kind <= 3 OR kind BETWEEN 15 AND 18 THEN 'completed' WHEN kind = 4 THEN 'failed'
            WHEN kind = 5 THEN 'cancelled' WHEN kind = 12 THEN 'blocked' WHEN kind = 13 THEN 'running'
            WHEN kind = 14 THEN 'paused' ELSE 'pending' END,
        CASE WHEN kind IN (6, 7, 11, 19) THEN 'ready' WHEN kind IN (8, 9) THEN 'arrival' WHEN kind = 10 THEN 'lane' END,
        CASE kind WHEN 8 THEN $now + 1000000 + n WHEN 9 THEN n END,
        CASE WHEN kind IN (6, 7, 10, 11, 19) THEN n END, CASE WHEN kind IN (10, 11) THEN n END,
        CASE kind WHEN 11 THEN 1 ELSE 0 END,
        n, CASE kind WHEN 13 THEN 1 ELSE 0 END, CASE kind WHEN 13 THEN 'nonce' END,
        CASE kind WHEN 13 THEN 'worker' END,
        CASE kind WHEN 13 THEN CASE n / 20 % 50 WHEN 0 THEN n ELSE $now + 1000000 + n END END,
        CASE kind WHEN 13 THEN 30000 END,
        '{{{{}}}}', n, CASE WHEN kind <= 5 THEN n END,
        CASE WHEN kind <= 3 THEN 'completed' WHEN kind = 4 THEN 'failed' WHEN kind = 5 THEN 'cancelled' END,
        CASE WHEN kind <= 5 THEN n END, CASE WHEN kind IN (2, 3) THEN n END, CASE kind WHEN 7 THEN 'key-' || n END,
        CASE WHEN kind IN (0, 6) THEN {sql_id("n - n % 2000")} END
    FROM kinds"""
FILL_BLOCKERS = f"""
    INSERT INTO holdfast_blocker (job, position, chain_id, state)
    {SERIES}{KINDS} SELECT n, 0, {sql_id("n - 6")}, 'armed' FROM kinds WHERE kind = 12
    UNION ALL SELECT n, 1, {sql_id("n - 12")}, 'released' FROM kinds WHERE kind IN (0, 1, 2, 12)"""
FILL_UNIQUE = f"""
    INSERT INTO holdfast_unique (task, key, turn, chain_id, scope, until)
    {SERIES}{KINDS} SELECT 'task-' || (n / 20 % 10), 'key-' || n, 0, {sql_id("n")}, 'open', NULL FROM kinds
    WHERE kind IN (0, 1, 2, 3, 7)"""
FILL_PHASES = f"""
    INSERT INTO holdfast_phase (job, position, name, status)
    {SERIES}{KINDS} SELECT n, 0, 'only', 'completed' FROM kinds"""
FILL_JOURNALS = f"""
    INSERT INTO holdfast_journal (job, number, attempt, kind, at, body, total, logs)
    {SERIES} SELECT n - n % 10, n % 10 + 1, 1, CASE n % 2 WHEN 0 THEN 'log' ELSE 'said' END, n, '1', n % 10, n % 10
    FROM series"""
FILL_EVENTS = f"""
    INSERT INTO holdfast_event (job, name, at, status, version, attempt)
    {SERIES} SELECT n, 'job:enqueued', n, 'pending', 1, 0 FROM series"""
FILL_DELETED = f"""
    INSERT INTO holdfast_event (job, name, at) {SERIES} SELECT 0, 'job:deleted', n FROM series WHERE n % 20 = 0"""
FILL_DELIVERIES = f"""
    INSERT INTO holdfast_delivery (job, target, event, subscription)
    {SERIES} SELECT n, n - n % 5, 'job:completed', CASE n % 2 WHEN 0 THEN {sql_id("1")} END FROM series"""
FILL_OUTBOX = f"""
    INSERT INTO holdfast_outbox (job, event, at, id, chain_id, chain_index, task, queue, created_at)
    {SERIES} SELECT n, 'job:completed', n, {sql_id("n")}, {sql_id("n")}, 0, 'task-1', 'default', n FROM series"""
# most are folded; what is not, samples and what is of all time are few
FILL_TALLIES = f"""
    INSERT INTO holdfast_tally (width, at, queue, task, source, gauge)
    {SERIES}, widths AS (SELECT n, CASE n / 5 % 100 WHEN 0 THEN -10 WHEN 1 THEN 0 WHEN 2 THEN -1
            ELSE CASE n / 5 % 3 WHEN 0 THEN 10 WHEN 1 THEN 60 ELSE 3600 END END AS width
        FROM series WHERE n % 5 = 0)
    SELECT width, n, 'default', 'task-' || n, CASE width WHEN -10 THEN 'worker' ELSE '' END,
        CASE width WHEN -1 THEN '{{{{}}}}' END
    FROM widths"""
FILL_FRONT = f"""
    INSERT INTO holdfast_job (seq, id, chain_id, task, queue, status, gate, sort_key, run_at, input, created_at)
    {SERIES} SELECT n, {sql_id("n")}, {sql_id("n")},
        CASE WHEN n % 2 = 0 THEN 'unknown' ELSE 'task-1' END, CASE WHEN n % 2 = 0 THEN 'default' ELSE 'paused' END,
        'pending', 'ready', n - 10000000, n, '{{{{}}}}', n
    FROM series"""
FILL_SETTINGS = """INSERT INTO holdfast_queue (name, paused_at) VALUES ('paused', 1), ('default', NULL)"""
FILL_TASKS = f"""
    INSERT INTO holdfast_task (name, version, policy, input_schema, output_schema, updated_at)
    {SERIES} SELECT 'task-' || n, '1', '{{{{}}}}', '{{{{}}}}', '{{{{}}}}', 0 FROM series"""
FILL_SUBSCRIPTIONS = f"""
    INSERT INTO holdfast_subscription (id, url, events, created_at)
    VALUES ({sql_id("1")}, 'https://example.com', '["job:completed"]', 0)"""
FILL_LANES = f"""
    INSERT INTO holdfast_lane (key, places, paused_at)
    {SERIES} SELECT 'row-' || n, 1, CASE WHEN n % 1000 = 0 THEN n END FROM series"""
FILL_SCHEDULES = f"""
    INSERT INTO holdfast_schedule (name, task, input, options, rule, next_at, paused_at, created_at)
    {SERIES} SELECT 'schedule-' || n, 'task-1', '{{{{}}}}', '{{{{}}}}', '{{{{}}}}', $now + 1000000 + n,
        CASE n % 100 WHEN 0 THEN n END, n
    FROM series WHERE n % 10 = 0"""
FILL_TICKS = f"""
    INSERT INTO holdfast_tick (schedule, at, chain_id, outcome, done_at)
    {SERIES} SELECT 'schedule-' || (n - n % 200), n, {sql_id("n")}, 'started', n FROM series"""
# links for many customers of many tenants, all expired long since, and a few tokens between them
FILL_TOKENS = f"""
    INSERT INTO holdfast_token (id, hash, name, role, tenant, chain, created_at, expires_at, revoked_at)
    {SERIES} SELECT {sql_id("n")}, 'hash-' || n, 'name', CASE n % 2000 WHEN 0 THEN 'viewer' ELSE 'guest' END,
        'tenant-' || (n % 10000), CASE WHEN n % 2000 > 0 THEN {sql_id("n")} END, n, CASE WHEN n % 2000 > 0 THEN n END,
        CASE n % 100 WHEN 60 THEN n END
    FROM series WHERE n % 20 = 0"""
FILL_SESSIONS = f"""
    INSERT INTO holdfast_session (hash, token, created_at, seen_at)
    {SERIES} SELECT 'session-' || n, {sql_id("n")}, n, n FROM series WHERE n % 20 = 0"""
FILL_AUDIT = f"""
    INSERT INTO holdfast_audit (id, at, who, action, subject)
    {SERIES} SELECT 'audit-' || n, $now - 100000000 + n, 'person-' || (n % 7), 'cancel', {sql_id("n")}
    FROM series WHERE n % 5 = 0"""
PER_JOB = (
    FILL_JOBS, FILL_BLOCKERS, FILL_UNIQUE, FILL_PHASES, FILL_JOURNALS, FILL_EVENTS, FILL_DELETED, FILL_DELIVERIES,
    FILL_OUTBOX, FILL_TALLIES, FILL_SCHEDULES, FILL_TICKS, FILL_TOKENS, FILL_SESSIONS,
    FILL_AUDIT,
)  # fmt: skip


def fill(tx: Tx, first: int, last: int, *, cycle: int = CYCLE) -> None:
    """Insert jobs *first* to *last*, of every kind, with what belongs to them."""
    for sql in (*PER_JOB, FILL_LANES):
        drive(tx.execute(sql.format(first=first, last=last, cycle=cycle)))


def fill_front(tx: Tx) -> None:
    """Put due jobs in front of all others: as many of a task that nobody knows as of a queue that is paused."""
    drive(tx.execute(FILL_FRONT.format(first=MIXED + 1, last=MIXED + 2 * IN_FRONT)))


def fill_settings(tx: Tx) -> None:
    """Write down the tasks and the paused queue."""
    drive(tx.execute(FILL_SETTINGS))
    drive(tx.execute(FILL_SUBSCRIPTIONS))
    drive(tx.execute(FILL_TASKS.format(first=0, last=99)))


def bring_into(regime: Regime, tx: Tx, analyze: Callable[[], None], prepare: Callable[[], None]) -> None:
    """Fill empty tables so that the planner stands in *regime*; *prepare* is called while they are tiny."""
    fill_settings(tx)
    match regime:
        case Regime.NEVER:
            fill(tx, 1, MIXED)
            fill_front(tx)
        case Regime.EMPTY:
            analyze()
            fill(tx, 1, MIXED)
            fill_front(tx)
        case Regime.FINISHED:
            fill(tx, 1, MIXED, cycle=50 * CYCLE)
            analyze()
        case Regime.FRESH:
            fill(tx, 1, MIXED)
            fill_front(tx)
            analyze()
        case Regime.TINY:
            fill(tx, 1, TINY)
            prepare()
            fill(tx, TINY + 1, MIXED)
            fill_front(tx)
