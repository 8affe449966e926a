-- oldest_code: 4
-- Journals, figures, and an index for what needs a person. Code of step 4 does no harm here: it writes none of these.

-- failed and paused jobs, for lists and the inbox; those that halt a lane (head = 1) stand together. A job that succeeds
-- never enters it
CREATE INDEX holdfast_job_stuck ON holdfast_job (head, status, seq)
    WHERE status IN ('failed', 'paused') AND stale_at IS NULL;

-- the lanes that somebody has paused, which are few, for lists of lanes
CREATE INDEX holdfast_lane_paused ON holdfast_lane (key) WHERE paused_at IS NOT NULL;

-- what a handler writes down under its token, in order; it outlives attempts, and goes with its job or by its own age.
-- total, logs: the bytes of all bodies up to this one but log lines, and how many log lines there were, so that the
-- limits of a job need neither a sum nor a count
CREATE TABLE holdfast_journal (
    job bigint NOT NULL,
    number bigint NOT NULL,
    attempt bigint NOT NULL,
    kind text NOT NULL,
    at bigint NOT NULL,
    body text NOT NULL,
    total bigint NOT NULL,
    logs bigint NOT NULL,
    PRIMARY KEY (job, number)
);
CREATE INDEX holdfast_journal_at ON holdfast_journal (at, job);

-- width: the seconds of an interval that begins at "at"; 0: since the beginning; -10: 10 seconds, not folded yet; -1: a
-- sample of how things stand, which only these rows have in "gauge". source: who counts, '' once it is folded
CREATE TABLE holdfast_tally (
    width bigint NOT NULL,
    at bigint NOT NULL,
    queue text NOT NULL,
    task text NOT NULL,
    source text NOT NULL,
    started bigint NOT NULL DEFAULT 0,
    completed bigint NOT NULL DEFAULT 0,
    failed bigint NOT NULL DEFAULT 0,
    retried bigint NOT NULL DEFAULT 0,
    lost bigint NOT NULL DEFAULT 0,
    paused bigint NOT NULL DEFAULT 0,
    cancelled bigint NOT NULL DEFAULT 0,
    wait text,
    run text,
    gauge text,
    PRIMARY KEY (width, at, queue, task, source)
);

-- whoever folds figures locks this row; there from the beginning, for whoever inserts it has the others wait
INSERT INTO holdfast_meta (key, value) VALUES ('figures', '');
