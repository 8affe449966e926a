"""Every line that Holdfast logs: its name, its level, and the sentence with its facts.

The name never changes its meaning, so programs can match it; the sentence is for people and may be improved. `say` in
`logging` writes a line, and `docs/reference/logs.md` is generated from this table.
"""

from __future__ import annotations

from logging import DEBUG, ERROR, INFO, WARNING
from typing import NamedTuple


class LogEvent(NamedTuple):
    """One kind of line: *sentence* has its facts as `%(name)s`; *otherwise* are the levels that it may also have."""

    level: int
    sentence: str
    otherwise: tuple[int, ...] = ()


EVENTS: dict[str, LogEvent] = {
    # jobs
    "attempt_failed": LogEvent(
        WARNING,
        "Attempt %(attempt)s of job %(job)s (task %(task)s) failed: %(error)s; it runs again in %(seconds)s s",
        otherwise=(DEBUG,),
    ),
    "job_failed": LogEvent(
        ERROR, "Job %(job)s (task %(task)s) failed for good in attempt %(attempt)s (%(reason)s): %(error)s"
    ),
    "webhook_failed": LogEvent(
        ERROR,
        "The webhook %(job)s, which tells %(receiver)s of %(told)s of job %(about)s, failed for good in attempt "
        "%(attempt)s (%(reason)s): %(error)s; `holdfast webhooks redeliver %(job)s` sends it again",
    ),
    "job_paused": LogEvent(
        WARNING, "Job %(job)s (task %(task)s) is paused after attempt %(attempt)s until somebody resumes it: %(reason)s"
    ),
    "job_not_begun": LogEvent(
        ERROR, "Job %(job)s (task %(task)s) could not be started: %(error)s; it is tried again in a moment"
    ),
    "handler_raised_after_completion": LogEvent(
        WARNING,
        "The handler of job %(job)s (task %(task)s) raised an error after its block had completed the job: %(error)s; "
        "the job stays completed",
    ),
    "warning_not_written": LogEvent(
        WARNING, "The warning of job %(job)s could not be written to its history: %(reason)s"
    ),
    "outcome_cannot_be_written": LogEvent(
        ERROR, "The result of attempt %(attempt)s of a job could not be written: %(reason)s; the job fails instead"
    ),
    "jobs_not_settled": LogEvent(
        ERROR,
        "The worker stops and could not write the results of %(jobs)s jobs; it gave back %(given_back)s of them, and "
        "the others run again when their leases expire",
    ),
    "handler_does_not_stop": LogEvent(
        WARNING,
        "The handler of job %(job)s (task %(task)s) was asked to stop %(seconds)s s ago (%(reason)s) and still runs",
    ),
    "handler_left_behind": LogEvent(
        WARNING,
        "The handler of job %(job)s (task %(task)s) did not stop in time; the worker ends without it and leaves "
        "the job to other workers",
    ),
    "schedule_in_trouble": LogEvent(
        ERROR,
        "Schedule %(schedule)s cannot start its call of task %(task)s: %(reason)s; it tries again at its next time",
    ),
    "ticks_left_out": LogEvent(
        WARNING,
        "Schedule %(schedule)s left out %(ticks)s ticks that were more than a minute late; its option missed= says "
        "which of them still start a job",
    ),
    "schedules_repaired": LogEvent(
        INFO, "Set %(schedules)s schedules to their next time again, after a pause or a change of the database's clock"
    ),
    "ticks_failed": LogEvent(
        ERROR, "The worker could not look after schedules: %(reason)s; it tries again in a moment", otherwise=(DEBUG,)
    ),
    "jobs_taken_back": LogEvent(INFO, "Took back %(jobs)s jobs of workers that died or lost their leases"),
    # the worker
    "worker_started": LogEvent(
        INFO,
        "Worker %(worker)s (pid %(pid)s, Holdfast %(version)s) started on %(database)s: %(slots)s slots, queues "
        "%(queues)s, tasks %(tasks)s",
        otherwise=(DEBUG,),
    ),
    "host_started": LogEvent(
        INFO,
        "Worker %(worker)s (pid %(pid)s, Holdfast %(version)s) started for tenants %(tenants)s on %(database)s: "
        "%(slots)s slots, queues %(queues)s",
    ),
    "tenants_unknown": LogEvent(
        WARNING, "There is no tenant %(tenants)s; the worker serves such a tenant as soon as it is created"
    ),
    "tenant_served": LogEvent(DEBUG, "Tenant %(tenant)s has work; worker %(worker)s serves it"),
    "tenant_left_out": LogEvent(
        WARNING, "Tenant %(tenant)s cannot be served: %(reason)s; the worker tries again every minute"
    ),
    "tenant_served_again": LogEvent(WARNING, "Tenant %(tenant)s can be served again, after %(seconds)s s"),
    "tenant_not_marked": LogEvent(
        DEBUG, "Tenant %(tenant)s cannot be told that somebody waits for its jobs: %(reason)s; the worker polls it"
    ),
    "worker_has_no_tasks": LogEvent(
        WARNING,
        "Worker %(worker)s has no tasks, so it runs no jobs; import the modules that register your tasks before it "
        "starts",
    ),
    "worker_serves_no_tenants": LogEvent(
        WARNING,
        "Worker %(worker)s serves the jobs of the control place alone; to serve tenants, start one with --tenant '*=1' "
        "(hf.worker(tenants={'*': 1}))",
    ),
    "schedules_not_served": LogEvent(
        WARNING,
        "A schedule of the control place is due since %(seconds)s s, and no worker starts its job: this one serves "
        "tenants alone; declare the schedule with tenants=True, or start another worker without --tenant",
    ),
    "tasks_registered_late": LogEvent(
        WARNING,
        "Tasks were registered after the worker started, and it does not run them: %(tasks)s; register tasks before "
        "the worker starts, e.g. import their modules there",
    ),
    "jobs_not_served": LogEvent(
        WARNING, "Jobs of task %(task)s wait in queue %(queue)s, and no worker runs them: %(advice)s"
    ),
    "worker_drains": LogEvent(
        INFO,
        "Worker %(worker)s stops: it claims no more jobs; the %(running)s that run may take %(grace)s",
        otherwise=(DEBUG,),
    ),
    "worker_stopped": LogEvent(
        INFO, "Worker %(worker)s stopped; handlers that still run: %(left)s", otherwise=(DEBUG,)
    ),
    "worker_leaves": LogEvent(
        WARNING, "A second signal came: the worker ends at once with exit code %(code)s; others take its jobs over"
    ),
    "worker_ended": LogEvent(INFO, "The worker process %(pid)s ends with exit code %(code)s"),
    "worker_broke": LogEvent(ERROR, "The worker broke: %(error)s; the application goes on without it"),
    "worker_gives_up": LogEvent(
        ERROR, "The worker ends: for %(seconds)s s this process has lacked memory or file descriptors: %(reason)s"
    ),
    "worker_store_trouble": LogEvent(
        WARNING, "The worker cannot use the database: %(reason)s; it keeps trying", otherwise=(DEBUG,)
    ),
    "worker_store_answers": LogEvent(WARNING, "The worker can use the database again, after %(seconds)s s"),
    "exchange_not_answered": LogEvent(
        WARNING,
        "The database did not confirm the results of %(jobs)s jobs (%(bytes)s bytes) within %(seconds)s s: %(reason)s; "
        "the worker sends fewer at once and tries again",
    ),
    "leases_not_renewed": LogEvent(WARNING, "The leases of running jobs cannot be renewed: %(reason)s"),
    "leases_renewed_again": LogEvent(WARNING, "The leases of running jobs are renewed again"),
    "leases_given_up": LogEvent(
        WARNING, "The leases of %(jobs)s running jobs may be over; the worker interrupts their handlers"
    ),
    "leases_were_lost": LogEvent(
        WARNING,
        "Other workers took over %(jobs)s jobs of this worker because it did not renew their leases in time; that no "
        "longer counts as a crash",
    ),
    "no_proof_of_life": LogEvent(
        WARNING,
        "The worker cannot lock a file beside the database: %(reason)s; if it dies, its jobs wait until their leases "
        "expire",
    ),
    "workers_found_dead": LogEvent(WARNING, "Workers died: %(workers)s; took back %(jobs)s jobs of theirs"),
    "event_loop_blocked": LogEvent(
        WARNING, "The event loop has been blocked for %(seconds)s s by %(by)s; meanwhile no other handler runs"
    ),
    "event_loop_answers": LogEvent(WARNING, "The event loop responds again, after %(seconds)s s"),
    "progress_not_written": LogEvent(DEBUG, "Progress of %(jobs)s jobs could not be written: %(reason)s"),
    "journal_not_written": LogEvent(DEBUG, "Log lines of a job could not be written to its journal: %(reason)s"),
    # what a worker does beside its jobs
    "figures_not_written": LogEvent(
        ERROR, "Figures could not be written or folded: %(reason)s; Holdfast tries again in seconds", otherwise=(DEBUG,)
    ),
    "upkeep_failed": LogEvent(
        ERROR,
        "Taking back jobs of dead workers failed: %(reason)s; Holdfast tries again in seconds",
        otherwise=(DEBUG,),
    ),
    "database_clock_jumped": LogEvent(WARNING, "The clock of the database jumped by %(seconds)s s"),
    "webhook_receiver_silent": LogEvent(
        WARNING,
        "The webhook receiver %(receiver)s does not answer; it gets one post at a time until it does, and its other "
        "deliveries wait",
    ),
    "webhook_receiver_answers": LogEvent(
        INFO, "The webhook receiver %(receiver)s answers again, after %(seconds)s s; its deliveries go out"
    ),
    "webhooks_need_the_extra": LogEvent(
        WARNING, "The setting webhook is given, and this worker cannot deliver webhooks: %(advice)s"
    ),
    "webhooks_not_delivered": LogEvent(WARNING, "Webhooks wait, and this worker cannot deliver them: %(advice)s"),
    "deliveries_not_made": LogEvent(
        ERROR, "Making webhook deliveries failed: %(reason)s; the worker tries again soon", otherwise=(DEBUG,)
    ),
    "retention_passed": LogEvent(
        INFO,
        "Retention marked %(stale)s chains as stale, deleted %(deleted)s chains and trimmed %(trimmed)s events",
    ),
    "retention_failed": LogEvent(
        ERROR, "Retention failed: %(reason)s; it is tried again in minutes", otherwise=(DEBUG,)
    ),
    "retention_hook_failed": LogEvent(
        WARNING, "The %(stage)s hook of job %(job)s (task %(task)s) raised %(error)s; it is called again later"
    ),
    "retention_hook_hangs": LogEvent(
        WARNING, "The %(stage)s hook of job %(job)s (task %(task)s) has not returned for %(seconds)s s"
    ),
    "keys_not_swept": LogEvent(DEBUG, "Old unique keys were not removed this time: %(reason)s"),
    # child processes
    "child_not_started": LogEvent(
        ERROR,
        "A child process could not be started: %(reason)s; it is tried again in %(again_in)s s",
        otherwise=(INFO,),
    ),
    "children_start_again": LogEvent(WARNING, "Child processes start again, after %(failures)s failures"),
    "child_says_nothing": LogEvent(
        ERROR, "Child process %(pid)s has not finished its imports within %(seconds)s s; the worker kills it"
    ),
    "child_lacks_task": LogEvent(
        ERROR,
        "A child process does not know task %(task)s: %(app)s does not register it there; import its module when "
        "%(app)s is imported",
    ),
    "child_recycled": LogEvent(
        INFO, "Child process %(pid)s is replaced after %(jobs)s jobs, at %(megabytes)s megabytes"
    ),
    "child_died": LogEvent(WARNING, "The child process of job %(job)s (task %(task)s) %(how)s", otherwise=(INFO,)),
    "child_killed": LogEvent(
        WARNING,
        "The handler of job %(job)s (task %(task)s) did not stop (%(reason)s); the worker kills child process %(pid)s",
    ),
    "idle_child_died": LogEvent(WARNING, "Child process %(pid)s %(how)s; it had no job"),
    "child_not_understood": LogEvent(
        ERROR, "Child process %(pid)s sent something unreadable: %(reason)s; the worker kills it"
    ),
    # the worker command and its supervisor
    "process_health": LogEvent(INFO, "Health: %(health)s"),
    "supervisor_started": LogEvent(INFO, "Supervisor %(pid)s starts %(processes)s worker processes"),
    "supervisor_replaces": LogEvent(INFO, "The supervisor replaces %(processes)s worker processes, one by one"),
    "supervisor_drains": LogEvent(INFO, "The supervisor stops its workers and gives running jobs %(grace)s s"),
    "supervisor_leaves": LogEvent(
        WARNING, "A second signal came: the supervisor kills its workers and ends with exit code %(code)s"
    ),
    "supervisor_ended": LogEvent(INFO, "The supervisor ends with exit code %(code)s"),
    "supervisor_gone": LogEvent(WARNING, "The supervisor of this worker process is gone; the worker stops"),
    "process_started": LogEvent(INFO, "Started worker process %(number)s, pid %(pid)s"),
    "process_not_started": LogEvent(ERROR, "Worker process %(number)s could not be started: %(reason)s"),
    "process_ended": LogEvent(INFO, "Worker process %(number)s, pid %(pid)s, has ended: %(how)s", otherwise=(WARNING,)),
    "process_starts_again": LogEvent(INFO, "Worker process %(number)s starts again in %(seconds)s s"),
    "process_does_not_end": LogEvent(
        ERROR, "Worker process %(number)s, pid %(pid)s, has not ended in time; the supervisor kills it"
    ),
    "log_format_not_used": LogEvent(
        WARNING, "--log-format %(format)s has no effect: the application has set up logging by itself"
    ),
    "health_file_not_written": LogEvent(WARNING, "The health file %(path)s cannot be written: %(reason)s"),
    "health_file_not_removed": LogEvent(WARNING, "The health file %(path)s cannot be removed: %(reason)s"),
    # the database
    "database_unavailable": LogEvent(WARNING, "The database does not respond: %(reason)s"),
    "database_available": LogEvent(WARNING, "The database responds again, after %(seconds)s s"),
    "migration_waits": LogEvent(
        WARNING,
        "The migration waits for a transaction of pid %(pid)s on the server, open for %(age)s; other programs go on "
        "meanwhile, and the migration tries again in seconds",
    ),
    "hints_lost": LogEvent(
        WARNING, "Notifications of PostgreSQL do not arrive: %(reason)s; Holdfast polls until they do"
    ),
    "hints_again": LogEvent(WARNING, "Notifications of PostgreSQL arrive again, after %(failures)s failures"),
    "sqlite_opened": LogEvent(INFO, "Opened the database file %(path)s with SQLite %(version)s"),
    "sqlite_created": LogEvent(
        INFO,
        "Created the database file %(path)s with SQLite %(version)s, because there was none; if your jobs are in "
        "another file, give its absolute path",
    ),
    "sqlite_log_too_long": LogEvent(
        WARNING,
        "The write-ahead log %(path)s has grown to %(bytes)s bytes because a transaction that reads stays open; end "
        "it, or the file grows until the disk is full",
    ),
    "sqlite_log_short_again": LogEvent(WARNING, "The write-ahead log %(path)s is short again"),
    "sqlite_log_not_emptied": LogEvent(DEBUG, "The write-ahead log could not be emptied this time: %(reason)s"),
    "row_unreadable": LogEvent(
        WARNING, "Left out row %(row)s of %(table)s, which this release cannot read: %(reason)s"
    ),
    # events, waiting, and the parts of other frameworks
    "reader_fails": LogEvent(WARNING, "The %(reader)s of this process cannot read the database: %(reason)s"),
    "reader_works_again": LogEvent(WARNING, "The %(reader)s of this process can read the database again"),
    "listener_failed": LogEvent(ERROR, "Listener %(listener)s raised %(error)s at the event %(heard)s"),
    "listener_missed_events": LogEvent(
        WARNING, "Listener %(listener)s missed events: %(reason)s; it goes on with new events"
    ),
    "listener_cancelled": LogEvent(
        WARNING, "Listener %(listener)s did not finish its last call when Holdfast closed; the call is cancelled"
    ),
    "listener_still_runs": LogEvent(
        WARNING, "Listener %(listener)s did not finish its last call when Holdfast closed, and still runs"
    ),
    "step_failed": LogEvent(ERROR, "Background work of Holdfast (%(part)s) failed: %(reason)s; it goes on"),
    "event_stream_broke_off": LogEvent(
        WARNING, "A stream of events ended: %(reason)s; its client can connect again and go on"
    ),
    "http_request_failed": LogEvent(
        ERROR, "The HTTP request %(request)s could not be answered: %(error)s; its client was told to look here"
    ),
    "use_not_noted": LogEvent(
        WARNING, "It could not be written down that a token or a session is used: %(reason)s; it is good all the same"
    ),
    "on_commit_hook_failed": LogEvent(ERROR, "A function given to on_commit() raised %(error)s; the job is completed"),
    # tests of crashes
    "crash_point_set": LogEvent(
        WARNING, "HOLDFAST_CRASH is set: pass %(passes)s of the fault point %(point)s will %(mode)s"
    ),
    "crash_point_reached": LogEvent(WARNING, "The fault point %(point)s is reached: %(mode)s"),
}
