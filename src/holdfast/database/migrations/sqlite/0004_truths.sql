-- oldest_code: 4
-- Events that still have to become webhook deliveries wait in the outbox. Older code would make deliveries beside it.

-- one row for each event of a job that somebody may want, whatever the number of receivers; written with the event, and
-- deleted in the commit that makes its deliveries. It outlives its job: what a body needs then stands here
CREATE TABLE holdfast_outbox (
    seq integer PRIMARY KEY AUTOINCREMENT,
    job bigint NOT NULL,
    event text NOT NULL,
    at bigint NOT NULL,
    status text,
    version bigint,
    attempt bigint,
    facts text,
    error text,
    id text NOT NULL,
    chain_id text NOT NULL,
    chain_index bigint NOT NULL,
    task text NOT NULL,
    queue text NOT NULL,
    tags text,
    webhook text,
    created_at bigint NOT NULL,
    subscribed bigint
);
CREATE INDEX holdfast_outbox_job ON "holdfast_outbox" (job, seq);

-- the job's own budget, which goes before that of its task; NULL leaves it to the task
ALTER TABLE holdfast_job ADD COLUMN attempts bigint;
-- when the attempt before the last claim began: that claim has put its own time into started_at
ALTER TABLE holdfast_job ADD COLUMN last_attempt_at bigint;

-- the host, port and path that a delivery goes to; NULL: a release before this one has made it
ALTER TABLE holdfast_delivery ADD COLUMN receiver text;

-- a subscription that has a name is updated by whoever subscribes under it again
ALTER TABLE holdfast_subscription ADD COLUMN name text;
CREATE UNIQUE INDEX holdfast_subscription_name ON "holdfast_subscription" (name) WHERE name IS NOT NULL;

-- since when a subscription is told of what it is told of now; NULL: since it was made. It grows from one to the next
ALTER TABLE holdfast_subscription ADD COLUMN active_since bigint;

-- the job that started this one, so that the children of a fan-out can be listed and followed; NULL for most
ALTER TABLE holdfast_job ADD COLUMN parent text;
CREATE INDEX holdfast_job_parent ON "holdfast_job" (parent, seq) WHERE parent IS NOT NULL;

-- a phase that runs is called as a job that does
UPDATE holdfast_phase SET status = 'running' WHERE status = 'active';
