-- oldest_code: 1
-- The whole schema; docs/internals/schema.md says of every column and index which statement uses it.
-- No foreign keys: a caller's INSERT would hold a lock on an engine's row for as long as its transaction is open.
-- Instants are milliseconds since 1970, UTC, by the database's clock; ids and JSON are text.

CREATE TABLE holdfast_job (
    seq integer PRIMARY KEY AUTOINCREMENT,
    id text NOT NULL UNIQUE,
    chain_id text NOT NULL,
    chain_index bigint NOT NULL DEFAULT 0,
    task text NOT NULL,
    queue text NOT NULL,
    lane text,
    priority bigint NOT NULL DEFAULT 0,
    tags text,
    status text NOT NULL,
    gate text,
    wake_at bigint,
    sort_key bigint,
    place bigint,
    head bigint NOT NULL DEFAULT 0,
    open_blockers bigint NOT NULL DEFAULT 0,
    run_at bigint NOT NULL,
    attempt bigint NOT NULL DEFAULT 0,
    used bigint NOT NULL DEFAULT 0,
    crashes bigint NOT NULL DEFAULT 0,
    interrupted bigint NOT NULL DEFAULT 0,
    nonce text,
    worker text,
    lease_until bigint,
    lease_ms bigint,
    cancel_requested_at bigint,
    pause_requested_at bigint,
    reason text,
    input text NOT NULL,
    output text,
    error text,
    current_phase text,
    progress bigint,
    message text,
    webhook text,
    trace text,
    completed_by text,
    created_at bigint NOT NULL,
    started_at bigint,
    finished_at bigint,
    stale_at bigint,
    version bigint NOT NULL DEFAULT 1,
    on_blocker_failure text NOT NULL DEFAULT 'fail',
    closed_as text,
    closed_at bigint,
    watched bigint NOT NULL DEFAULT 0,
    unique_key text,
    CONSTRAINT holdfast_job_status CHECK (
        status IN ('blocked', 'pending', 'running', 'paused', 'completed', 'failed', 'cancelled')),
    CONSTRAINT holdfast_job_gate CHECK (gate IS NULL OR gate IN ('ready', 'arrival', 'lane')),
    CONSTRAINT holdfast_job_lease CHECK ((status = 'running') = (lease_until IS NOT NULL)),
    CONSTRAINT holdfast_job_worker CHECK ((status = 'running') = (worker IS NOT NULL)),
    CONSTRAINT holdfast_job_token CHECK (
        status <> 'running' OR (attempt >= 1 AND nonce IS NOT NULL AND lease_ms IS NOT NULL AND gate IS NULL)),
    CONSTRAINT holdfast_job_closed CHECK ((closed_as IS NULL) = (closed_at IS NULL))
);
CREATE INDEX holdfast_job_ready ON "holdfast_job" (queue, task, sort_key, seq) WHERE gate = 'ready';
CREATE INDEX holdfast_job_arrival ON "holdfast_job" (queue, wake_at, seq) WHERE gate = 'arrival';
CREATE INDEX holdfast_job_lane ON "holdfast_job" (lane, place) WHERE gate = 'lane';
CREATE UNIQUE INDEX holdfast_job_head ON "holdfast_job" (lane) WHERE head = 1;
CREATE INDEX holdfast_job_leased ON "holdfast_job" (lease_until) WHERE lease_until IS NOT NULL;
CREATE UNIQUE INDEX holdfast_job_chain ON "holdfast_job" (chain_id, chain_index) WHERE chain_index > 0;
CREATE INDEX holdfast_job_closed ON "holdfast_job" (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX holdfast_job_open ON "holdfast_job" (seq) WHERE chain_index = 0 AND closed_as IS NULL;

CREATE TABLE holdfast_phase (
    job bigint NOT NULL,
    position bigint NOT NULL,
    name text NOT NULL,
    status text NOT NULL,
    progress bigint,
    message text,
    result text,
    error text,
    started_at bigint,
    finished_at bigint,
    PRIMARY KEY (job, position)
);

-- state: NULL until admission has looked, then armed, then released or failed; once, by this flag, not by a counter
CREATE TABLE holdfast_blocker (
    job bigint NOT NULL,
    position bigint NOT NULL,
    chain_id text NOT NULL,
    state text,
    PRIMARY KEY (job, position)
);
CREATE INDEX holdfast_blocker_chain ON "holdfast_blocker" (chain_id, job);

-- the rows of a key are its turns 0, 1, …; the highest one holds it while "until" is NULL or to come
CREATE TABLE holdfast_unique (
    task text NOT NULL,
    key text NOT NULL,
    turn bigint NOT NULL,
    chain_id text NOT NULL,
    scope text NOT NULL,
    until bigint,
    PRIMARY KEY (task, key, turn)
);

CREATE TABLE holdfast_lane (
    key text PRIMARY KEY,
    places bigint NOT NULL DEFAULT 0,
    paused_at bigint,
    paused_by text,
    reason text,
    until bigint
);

CREATE TABLE holdfast_queue (
    name text PRIMARY KEY,
    paused_at bigint,
    paused_by text,
    reason text,
    until bigint
);

CREATE TABLE holdfast_task (
    name text PRIMARY KEY,
    version text NOT NULL,
    policy text NOT NULL,
    input_schema text NOT NULL,
    output_schema text NOT NULL,
    updated_at bigint NOT NULL
);

-- job = 0: about no job that still exists (deleted ones, lanes, queues)
CREATE TABLE holdfast_event (
    seq integer PRIMARY KEY AUTOINCREMENT,
    job bigint NOT NULL,
    name text NOT NULL,
    at bigint NOT NULL,
    status text,
    version bigint,
    attempt bigint,
    facts text
);
CREATE INDEX holdfast_event_job ON "holdfast_event" (job);

CREATE TABLE holdfast_subscription (
    id text PRIMARY KEY,
    url text NOT NULL,
    events text NOT NULL,
    tasks text,
    secrets text,
    disabled_at bigint,
    reason text,
    created_at bigint NOT NULL,
    created_by text
);

CREATE TABLE holdfast_schedule (
    name text PRIMARY KEY,
    task text NOT NULL,
    input text NOT NULL,
    options text NOT NULL,
    rule text NOT NULL,
    next_at bigint,
    paused_at bigint,
    paused_by text,
    reason text,
    created_at bigint NOT NULL
);
CREATE INDEX holdfast_schedule_next ON "holdfast_schedule" (next_at) WHERE paused_at IS NULL;

CREATE TABLE holdfast_tick (
    schedule text NOT NULL,
    at bigint NOT NULL,
    chain_id text,
    PRIMARY KEY (schedule, at)
);

CREATE TABLE holdfast_worker (
    id text PRIMARY KEY,
    name text,
    host text,
    pid bigint,
    facts text NOT NULL,
    started_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    asleep_at bigint,
    lock_path text,
    lock_device bigint,
    lock_inode bigint
);

CREATE TABLE holdfast_audit (
    seq integer PRIMARY KEY AUTOINCREMENT,
    at bigint NOT NULL,
    who text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    why text,
    facts text
);

CREATE TABLE holdfast_token (
    id text PRIMARY KEY,
    hash text NOT NULL UNIQUE,
    role text NOT NULL,
    name text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint
);

-- for people at a prompt: the same rows with times that can be read; quoted, so that no schema is put in front: a view
-- that names its own could not be attached under another name
CREATE VIEW holdfast_jobs AS
SELECT seq, id, chain_id, chain_index, task, queue, lane, priority, status, gate, attempt, used, crashes, worker,
    strftime('%Y-%m-%d %H:%M:%fZ', run_at / 1000.0, 'unixepoch') AS run_at,
    strftime('%Y-%m-%d %H:%M:%fZ', lease_until / 1000.0, 'unixepoch') AS lease_until,
    strftime('%Y-%m-%d %H:%M:%fZ', created_at / 1000.0, 'unixepoch') AS created_at,
    strftime('%Y-%m-%d %H:%M:%fZ', started_at / 1000.0, 'unixepoch') AS started_at,
    strftime('%Y-%m-%d %H:%M:%fZ', finished_at / 1000.0, 'unixepoch') AS finished_at,
    strftime('%Y-%m-%d %H:%M:%fZ', closed_at / 1000.0, 'unixepoch') AS closed_at,
    closed_as, reason, progress, message, input, output, error
FROM "holdfast_job";

-- by this a caller's connection is known to lead here
INSERT INTO holdfast_meta (key, value)
VALUES ('identity', lower(hex(randomblob(16))));
