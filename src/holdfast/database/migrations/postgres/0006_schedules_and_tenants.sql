-- oldest_code: 4
-- What schedules need beyond the kernel's tables, and the registry of tenants. Older code does no harm here: it starts no
-- job by a schedule, and serves no tenant.

-- until: the end of a pause. missed: what becomes of late ticks. declared: the fingerprint of the declaration in code that
-- the row was written from; NULL if nobody declares it. trouble: why the last tick could not start its job. left_out: how
-- many late ticks started nothing, and when that was last
ALTER TABLE holdfast_schedule ADD COLUMN until bigint;
ALTER TABLE holdfast_schedule ADD COLUMN missed text NOT NULL DEFAULT 'one';
ALTER TABLE holdfast_schedule ADD COLUMN jitter_ms bigint NOT NULL DEFAULT 0;
ALTER TABLE holdfast_schedule ADD COLUMN declared text;
ALTER TABLE holdfast_schedule ADD COLUMN trouble text;
ALTER TABLE holdfast_schedule ADD COLUMN left_out bigint NOT NULL DEFAULT 0;
ALTER TABLE holdfast_schedule ADD COLUMN left_out_at bigint;
ALTER TABLE holdfast_schedule ADD COLUMN changed_at bigint;
ALTER TABLE holdfast_schedule ADD COLUMN changed_by text;
-- the pauses that end by themselves, for whoever looks after a tenant that has no worker
CREATE INDEX holdfast_schedule_until ON holdfast_schedule (until) WHERE until IS NOT NULL;

-- outcome: the tick started a chain, or met the one that holds the call's unique key; chain_id is that chain, always
ALTER TABLE holdfast_tick ADD COLUMN outcome text;
ALTER TABLE holdfast_tick ADD COLUMN done_at bigint;

-- the time of the tick that started the job
ALTER TABLE holdfast_job ADD COLUMN scheduled_at bigint;

-- the tenants, in the control place only; place: the schema, or the name of the file. trouble: why a worker leaves it out.
-- creator: which call of create() goes on with it, so that of two at once only one has made it
CREATE TABLE holdfast_tenant (
    name text COLLATE "C" PRIMARY KEY,
    place text COLLATE "C" NOT NULL UNIQUE,
    host text COLLATE "C" UNIQUE,
    state text NOT NULL,
    created_at bigint NOT NULL,
    changed_at bigint NOT NULL,
    changed_by text,
    reason text,
    trouble text,
    trouble_at bigint,
    creator text,
    CONSTRAINT holdfast_tenant_state CHECK (state IN ('creating', 'active', 'suspended', 'dropping'))
);
