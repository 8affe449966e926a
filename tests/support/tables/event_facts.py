"""What each event tells, as the reference page says it."""

from __future__ import annotations

WHO = "`by` and `reason`, if given"
FACTS: dict[str, str] = {
    "job:enqueued": (
        "`run_at`, if it is later; `blockers`, the chains that it waits for; after `start_again`: `again`, the job "
        "that it repeats; `schedule`, the name of the one that started it; " + WHO
    ),
    "job:started": "`worker`",
    "job:progress": "`progress`, `message`; in a phase `phase` and `phase_progress`",
    "job:phase:completed": "`phase`, `progress` of the whole",
    "job:completed": "`continued`, the job that continues it, if one does; " + WHO,
    "job:failed": "`reason`, `error`; `blockers`, the chains that it failed by",
    "job:retrying": "`run_at`, the time of the next attempt; `reason`, `error`",
    "job:rescheduled": "`run_at`, unless a worker gave it back; `reason`, `error`; " + WHO,
    "job:pausing": WHO,
    "job:paused": "`reason`, `error`; " + WHO,
    "job:resumed": "`changed`, the paths of [arguments that were changed](../guides/steering.md#edit-and-retry); "
    + WHO,
    "job:cancelling": WHO,
    "job:cancelled": "`reason`, `error`; " + WHO,
    "job:blocked": "`blockers`, the chains that it still waits for",
    "job:unblocked": "`blockers`, the chains that let it go",
    "job:reaped": "`worker` that was gone; `reason`, `error`",
    "job:stale": "",
    "job:webhook:delivered": "`delivery`, the job that posted it; `event`; `subscription`, if it is for one",
    "job:webhook:failed": "`delivery`, the job that posted it; `event`; `subscription`, if it is for one; `reason`",
    "job:warning": "`error`",
    "job:journal": "`kind`, `number`: of the last entry",
    "chain:completed": "",
    "job:deleted": "`id`, `seq`, `chain_id`, `task`; `lane` and `parent`, if it had one",
    "lane:halted": "`lane`, `job` that halts it, `reason`: what it raised, or why it was paused",
    "lane:paused": "`lane`; " + WHO,
    "lane:resumed": "`lane`, `job` that halted it, if one did; " + WHO,
    "queue:paused": "`queue`; `until`, in milliseconds since 1970, if it is for a time; " + WHO,
    "queue:resumed": "`queue`; " + WHO,
}
