-- oldest_code: 2
-- Phases, readers of the log, webhooks, retention. Older code would complete jobs here and send none of their webhooks.

-- history = 0: the task keeps no events; webhook_sent: NULL before the first delivery has ended, then 1 or 0 by the last
ALTER TABLE holdfast_job ADD COLUMN history bigint NOT NULL DEFAULT 1;
ALTER TABLE holdfast_job ADD COLUMN webhook_sent bigint;

-- what retention goes through: closed chains by task and outcome, which have their own times, then what it has marked
DROP INDEX "holdfast_job_closed";
CREATE INDEX holdfast_job_ended ON "holdfast_job" (task, closed_as, closed_at)
    WHERE closed_at IS NOT NULL AND stale_at IS NULL;
CREATE INDEX holdfast_job_stale ON "holdfast_job" (task, closed_as, stale_at)
    WHERE closed_at IS NOT NULL AND stale_at IS NOT NULL;

-- job delivers an event of target; subscription is NULL if the target itself names the address
CREATE TABLE holdfast_delivery (
    job integer PRIMARY KEY,
    target bigint NOT NULL,
    event text NOT NULL,
    subscription text
);
CREATE INDEX holdfast_delivery_target ON "holdfast_delivery" (target);
