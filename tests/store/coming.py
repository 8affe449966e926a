"""Statements of the next issue, in the shape that keeps its index; the engine's own constants will take their place.

PERFORMANCE.md says how the shapes were found. On PostgreSQL a claim merges over the worker's tasks: first it looks
how many of each are next, locking nothing, then it takes that many of each. SQLite does it by a small statement a task.
"""

from __future__ import annotations

from holdfast.states import Change, guard

CLAIM_FROM = """
    SELECT next.seq, next.task, next.sort_key FROM $list(given: queue text, task text, most bigint)
    CROSS JOIN LATERAL (
        SELECT ready.seq, ready.task, ready.sort_key FROM holdfast_job AS ready
        WHERE ready.queue = given.queue AND ready.task = given.task AND ready.gate = 'ready'
            AND ready.sort_key >= :floor
        ORDER BY ready.sort_key, ready.seq LIMIT given.most {lock}) AS next
    WHERE (SELECT 1 FROM holdfast_queue AS held
        WHERE held.name = given.queue AND held.paused_at IS NOT NULL) IS NULL"""
LOOK = CLAIM_FROM.format(lock="") + " ORDER BY next.sort_key, next.seq LIMIT :most"
CLAIM = f"""
    UPDATE holdfast_job SET status = 'running', gate = NULL, attempt = attempt + 1, nonce = :nonce, worker = :worker,
        lease_until = $now + 30000, lease_ms = 30000, started_at = $now
    WHERE seq = ANY(ARRAY(SELECT picked.seq FROM ({CLAIM_FROM.format(lock="$skip_locked")}) AS picked))
        AND {guard(Change.CLAIM)}
    RETURNING seq"""
LOOK_BY_TASK = """
    SELECT seq, sort_key FROM holdfast_job
    WHERE queue = :queue AND task = :task AND gate = 'ready' AND sort_key >= :floor
    ORDER BY sort_key, seq LIMIT :most"""
CLAIM_BY_SEQ = f"""
    UPDATE holdfast_job SET status = 'running', gate = NULL, attempt = attempt + 1, nonce = :nonce, worker = :worker,
        lease_until = $now + 30000, lease_ms = 30000, started_at = $now
    WHERE seq $any(seqs: bigint) AND {guard(Change.CLAIM)}
    RETURNING seq"""
ARRIVALS = """
    SELECT seq, status, lane, place FROM holdfast_job
    WHERE queue = :queue AND gate = 'arrival' AND wake_at <= $now
    ORDER BY wake_at, seq LIMIT :most $skip_locked"""
LANE_HEAD = """
    SELECT given.lane, (SELECT head.seq FROM holdfast_job AS head WHERE head.lane = given.lane AND head.head = 1)
    FROM $list(given: lane text)"""
LANE_NEXT = """
    SELECT given.lane, (SELECT next.seq FROM holdfast_job AS next
        WHERE next.lane = given.lane AND next.gate = 'lane' ORDER BY next.place LIMIT 1)
    FROM $list(given: lane text)"""
EXPIRED = """
    SELECT seq, attempt, crashes FROM holdfast_job
    WHERE lease_until < $now ORDER BY lease_until LIMIT :most $skip_locked"""
RETENTION = """
    SELECT seq FROM holdfast_job
    WHERE closed_at < :before
        AND (SELECT 1 FROM holdfast_blocker AS waiting
            WHERE waiting.chain_id = holdfast_job.id AND waiting.state = 'armed' LIMIT 1) IS NULL
    ORDER BY closed_at LIMIT :most $skip_locked"""
DEPENDENTS = """
    SELECT job, chain_id FROM holdfast_blocker WHERE chain_id $any(chains: text) AND state = 'armed' LIMIT :most"""
TIMELINE = """SELECT seq, name, at FROM holdfast_event WHERE job = :job ORDER BY seq LIMIT :most"""
NEW_EVENTS = """
    SELECT seq, job, name FROM holdfast_event WHERE xid >= :xmax
    UNION ALL SELECT seq, job, name FROM holdfast_event WHERE xid $any(in_progress: bigint)"""
NEW_EVENTS_BY_SEQ = """SELECT seq, job, name FROM holdfast_event WHERE seq > :after ORDER BY seq LIMIT :most"""
COMPLETE = f"""
    UPDATE holdfast_job
    SET status = 'completed', output = given.output, finished_at = $now, closed_as = 'completed', closed_at = $now,
        worker = NULL, lease_until = NULL, version = version + 1
    FROM $list(given: job bigint, attempt bigint, nonce text, output text)
    WHERE holdfast_job.seq = given.job AND holdfast_job.attempt = given.attempt AND holdfast_job.nonce = given.nonce
        AND {guard(Change.COMPLETE)}
    RETURNING holdfast_job.seq"""
