"""THE table: every route there is, who may use it, what it takes and what it gives.

The application, OpenAPI, docs/reference/http.md and the test of roles are made from it.
"""

from __future__ import annotations

from typing import Any

from holdfast.access import Role
from holdfast.http import (
    access,
    audit,
    bulk,
    chains,
    events,
    exports,
    health,
    inbox,
    jobs,
    lanes,
    metrics,
    openapi,
    queues,
    schedules,
    sessions,
    starts,
    stats,
    suggest,
    tasks,
    tenants,
    webhooks,
    whoami,
    workers,
)
from holdfast.http.endpoint import NOBODY, Endpoint, PageQuery
from holdfast.http.jobs import WhyBody
from holdfast.metrics import MEDIA_TYPE
from holdfast.wire.access_json import LinkObject, TokenObject
from holdfast.wire.chain_json import ChainObject
from holdfast.wire.figures_json import OverviewObject, SeriesObject
from holdfast.wire.inventory_json import LaneObject
from holdfast.wire.job_json import JobObject
from holdfast.wire.schedule_json import PreviewObject, ScheduleObject
from holdfast.wire.tenant_json import TenantObject
from holdfast.wire.webhook_json import DeliveryObject, SubscriptionObject

VIEWER, OPERATOR, ADMIN, GUEST = Role.VIEWER, Role.OPERATOR, Role.ADMIN, Role.GUEST
IDEMPOTENCY_KEY = {"Idempotency-Key": "Up to 200 characters: the same request with the same key starts nothing more."}
LAST_EVENT_ID = {"Last-Event-ID": "The last event that was received: the stream goes on behind it."}

# fmt: off
ENDPOINTS: tuple[Endpoint, ...] = (
    # who asks
    Endpoint("POST", "/api/session", NOBODY, sessions.log_in, takes=sessions.Login, status=204, is_secret=True),
    Endpoint("DELETE", "/api/session", GUEST, sessions.log_out, status=204),
    # jobs
    Endpoint("GET", "/api/jobs", VIEWER, jobs.list_all, query=jobs.JobsQuery, gives=jobs.JobPage),
    Endpoint("POST", "/api/jobs", OPERATOR, starts.start, takes=starts.StartBody, gives=starts.StartedObject,
             status=201, also={200: starts.StartedObject}, problems=(404, 409), headers=IDEMPOTENCY_KEY),
    Endpoint("GET", "/api/jobs.csv", VIEWER, exports.jobs_csv, query=jobs.JobsFilter, gives=str, media="text/csv"),
    # before /{id}, which would take its word for an id
    Endpoint("POST", "/api/jobs/many", OPERATOR, starts.start_many, takes=starts.StartManyBody,
             gives=starts.StartedList, status=201, also={200: starts.StartedList}, problems=(404, 409),
             headers=IDEMPOTENCY_KEY),
    Endpoint("GET", "/api/jobs/{id}", VIEWER, jobs.read, gives=JobObject, problems=(404,)),
    Endpoint("GET", "/api/jobs/{id}/explain", VIEWER, jobs.explain, gives=jobs.ExplanationObject, problems=(404,)),
    Endpoint("GET", "/api/jobs/{id}/timeline", VIEWER, jobs.timeline, query=PageQuery, gives=jobs.HistoryPage,
             problems=(404,)),
    Endpoint("GET", "/api/jobs/{id}/attempts", VIEWER, jobs.attempts, gives=jobs.AttemptList, problems=(404,)),
    Endpoint("GET", "/api/jobs/{id}/blockers", VIEWER, jobs.blockers, gives=jobs.ChainList, problems=(404,)),
    Endpoint("GET", "/api/jobs/{id}/journal", VIEWER, jobs.journal, query=jobs.JournalQuery, gives=jobs.JournalPage,
             problems=(404,)),
    Endpoint("GET", "/api/jobs/{id}/phases/{name}/result", VIEWER, jobs.phase_result, gives=jobs.PhaseResult,
             problems=(404,)),
    Endpoint("POST", "/api/jobs/{id}/cancel", OPERATOR, jobs.cancel, takes=jobs.SteerBody, gives=jobs.Steered,
             problems=(404, 409, 412)),
    Endpoint("POST", "/api/jobs/{id}/pause", OPERATOR, jobs.pause, takes=jobs.SteerBody, gives=jobs.Steered,
             problems=(404, 409, 412)),
    Endpoint("POST", "/api/jobs/{id}/resume", OPERATOR, jobs.resume, takes=jobs.EditBody, gives=jobs.Steered,
             problems=(404, 409, 412)),
    Endpoint("POST", "/api/jobs/{id}/retry", OPERATOR, jobs.retry, takes=jobs.EditBody, gives=jobs.Steered,
             problems=(404, 409, 412)),
    Endpoint("POST", "/api/jobs/{id}/trigger", OPERATOR, jobs.trigger, takes=jobs.SteerBody, gives=jobs.Steered,
             problems=(404, 409, 412)),
    Endpoint("POST", "/api/jobs/{id}/reschedule", OPERATOR, jobs.reschedule, takes=jobs.RescheduleBody,
             gives=jobs.Steered, problems=(404, 409, 412)),
    Endpoint("POST", "/api/jobs/{id}/complete", OPERATOR, jobs.complete, takes=jobs.CompleteBody, gives=jobs.Steered,
             problems=(404, 409, 412)),
    Endpoint("POST", "/api/jobs/{id}/start-again", OPERATOR, starts.start_again, takes=jobs.SteerBody,
             gives=starts.StartedAgain, problems=(404, 409, 412)),
    Endpoint("POST", "/api/bulk", OPERATOR, bulk.act, takes=bulk.BulkBody, gives=bulk.CountedJobs | bulk.BulkAnswers,
             also={202: bulk.BulkStarted}, problems=(404, 409)),
    # chains
    Endpoint("GET", "/api/chains", VIEWER, chains.list_all, query=chains.ChainsQuery, gives=chains.ChainPage),
    Endpoint("GET", "/api/chains/{id}", GUEST, chains.read, gives=ChainObject, problems=(404,)),
    Endpoint("DELETE", "/api/chains/{id}", OPERATOR, chains.delete, query=chains.DeleteQuery,
             gives=chains.DeletedChains, problems=(404, 409)),
    Endpoint("GET", "/api/chains/{id}/jobs", GUEST, chains.list_steps, query=jobs.StepsQuery, gives=jobs.JobPage,
             problems=(404,)),
    Endpoint("GET", "/api/chains/{id}/blocked", VIEWER, chains.blocked, query=jobs.StepsQuery, gives=jobs.JobPage,
             problems=(404,)),
    Endpoint("GET", "/api/chains/{id}/export", VIEWER, exports.chain, gives=exports.ChainExport, problems=(404,)),
    Endpoint("POST", "/api/chains/{id}/links", OPERATOR, chains.link, takes=chains.LinkBody,
             gives=chains.NewLinkObject, status=201, is_secret=True, problems=(404,)),
    Endpoint("GET", "/api/links", OPERATOR, chains.list_links, query=PageQuery, gives=chains.LinkPage),
    Endpoint("DELETE", "/api/links/{id}", OPERATOR, chains.revoke_link, gives=LinkObject, problems=(404,)),
    # tasks
    Endpoint("GET", "/api/tasks", VIEWER, tasks.list_all, gives=tasks.TaskList),
    Endpoint("GET", "/api/tasks/{name}", VIEWER, tasks.read, gives=tasks.TaskWithFigures, problems=(404,)),
    # events
    Endpoint("GET", "/api/events", GUEST, events.follow, query=events.StreamQuery, gives=str,
             media="text/event-stream", problems=(404, 501), headers=LAST_EVENT_ID),
    Endpoint("GET", "/api/events.json", GUEST, events.list_all, query=events.EventsQuery, gives=events.EventList,
             problems=(404,)),
    # this API
    Endpoint("GET", "/api", GUEST, whoami.read, gives=whoami.AboutObject),
    Endpoint("GET", "/api/openapi.json", VIEWER, openapi.read, gives=dict[str, Any]),
    # queues and lanes
    Endpoint("GET", "/api/queues", VIEWER, queues.list_all, gives=queues.QueueList),
    Endpoint("GET", "/api/queue", VIEWER, queues.read, query=queues.QueueQuery, gives=queues.QueueAnswer),
    Endpoint("GET", "/api/queue/explain", VIEWER, queues.explain, query=queues.QueueQuery,
             gives=queues.QueueExplained),
    Endpoint("POST", "/api/queue/pause", OPERATOR, queues.pause, query=queues.QueueQuery,
             takes=queues.PauseQueueBody, status=204),
    Endpoint("POST", "/api/queue/resume", OPERATOR, queues.resume, query=queues.QueueQuery, takes=WhyBody,
             gives=queues.QueueResumed),
    Endpoint("GET", "/api/lanes", VIEWER, lanes.list_all, query=lanes.LanesQuery, gives=lanes.LanePage),
    Endpoint("GET", "/api/lane", VIEWER, lanes.read, query=lanes.LaneQuery, gives=LaneObject),
    Endpoint("GET", "/api/lane/jobs", VIEWER, lanes.list_jobs, query=lanes.LaneJobsQuery, gives=lanes.LaneJobsPage),
    Endpoint("POST", "/api/lane/pause", OPERATOR, lanes.pause, query=lanes.LaneQuery, takes=lanes.LaneBody,
             status=204, problems=(412,)),
    Endpoint("POST", "/api/lane/resume", OPERATOR, lanes.resume, query=lanes.LaneQuery, takes=lanes.LaneBody,
             gives=lanes.LaneResumed, problems=(412,)),
    Endpoint("POST", "/api/lane/skip", OPERATOR, lanes.skip, query=lanes.LaneQuery, takes=lanes.LaneBody,
             gives=lanes.LaneSkipped, problems=(404, 412)),
    # the whole
    Endpoint("GET", "/api/workers", VIEWER, workers.list_all, gives=workers.WorkerList),
    Endpoint("GET", "/api/inbox", VIEWER, inbox.list_all, query=inbox.InboxQuery, gives=inbox.InboxPage),
    Endpoint("GET", "/api/overview", VIEWER, stats.overview, gives=OverviewObject),
    Endpoint("GET", "/api/stats", VIEWER, stats.read, query=stats.StatsQuery, gives=SeriesObject),
    Endpoint("GET", "/api/suggest", VIEWER, suggest.read, query=suggest.SuggestQuery, gives=suggest.SuggestAnswer),
    # webhooks
    Endpoint("GET", "/api/webhooks", VIEWER, webhooks.list_all, gives=webhooks.SubscriptionList),
    Endpoint("POST", "/api/webhooks", ADMIN, webhooks.subscribe, takes=webhooks.SubscribeBody,
             gives=SubscriptionObject),
    Endpoint("GET", "/api/webhooks/{id}", VIEWER, webhooks.read, gives=SubscriptionObject, problems=(404,)),
    Endpoint("DELETE", "/api/webhooks/{id}", ADMIN, webhooks.remove, query=webhooks.RemoveWebhookQuery, status=204,
             problems=(404,)),
    Endpoint("POST", "/api/webhooks/{id}/enable", ADMIN, webhooks.enable, takes=WhyBody, gives=SubscriptionObject,
             problems=(404,)),
    Endpoint("POST", "/api/webhooks/{id}/disable", ADMIN, webhooks.disable, takes=WhyBody, gives=SubscriptionObject,
             problems=(404,)),
    Endpoint("GET", "/api/webhooks/{id}/deliveries", VIEWER, webhooks.list_own_deliveries, query=PageQuery,
             gives=webhooks.DeliveryPage, problems=(404,)),
    Endpoint("GET", "/api/deliveries", VIEWER, webhooks.list_deliveries, query=webhooks.DeliveriesQuery,
             gives=webhooks.DeliveryPage, problems=(404,)),
    Endpoint("POST", "/api/deliveries/{id}/redeliver", ADMIN, webhooks.redeliver, takes=WhyBody,
             gives=DeliveryObject, status=201, problems=(404, 409)),
    # schedules
    Endpoint("GET", "/api/schedules", VIEWER, schedules.list_all, query=PageQuery, gives=schedules.SchedulePage),
    Endpoint("GET", "/api/schedule", VIEWER, schedules.read, query=schedules.ScheduleQuery, gives=ScheduleObject,
             problems=(404,)),
    Endpoint("GET", "/api/schedule/ticks", VIEWER, schedules.list_ticks, query=schedules.TicksQuery,
             gives=schedules.TickPage, problems=(404,)),
    Endpoint("GET", "/api/schedule/preview", VIEWER, schedules.preview, query=schedules.PreviewQuery,
             gives=PreviewObject),
    Endpoint("PUT", "/api/schedule", ADMIN, schedules.put, query=schedules.ScheduleQuery,
             takes=schedules.PutScheduleBody, gives=ScheduleObject, problems=(404, 409)),
    Endpoint("DELETE", "/api/schedule", ADMIN, schedules.delete, query=schedules.DeleteScheduleQuery, status=204,
             problems=(404,)),
    Endpoint("POST", "/api/schedule/pause", OPERATOR, schedules.pause, query=schedules.ScheduleQuery,
             takes=schedules.PauseScheduleBody, gives=ScheduleObject, problems=(404,)),
    Endpoint("POST", "/api/schedule/resume", OPERATOR, schedules.resume, query=schedules.ScheduleQuery,
             takes=WhyBody, gives=schedules.ScheduleResumed, problems=(404,)),
    Endpoint("POST", "/api/schedule/run", OPERATOR, schedules.run, query=schedules.ScheduleQuery, takes=WhyBody,
             gives=schedules.ScheduleRun, status=201, also={200: schedules.ScheduleRun}, problems=(404, 409)),
    # who may do what, and who has done what
    Endpoint("GET", "/api/tokens", ADMIN, access.list_tokens, query=PageQuery, gives=access.TokenPage),
    Endpoint("POST", "/api/tokens", ADMIN, access.create_token, takes=access.CreateTokenBody, gives=access.TokenMade,
             status=201, problems=(404,), is_secret=True),
    Endpoint("DELETE", "/api/tokens/{id}", ADMIN, access.revoke_token, query=access.RevokeTokenQuery,
             gives=TokenObject, problems=(404,)),
    Endpoint("GET", "/api/audit", ADMIN, audit.list_all, query=audit.AuditSearch, gives=audit.AuditPage),
    # tenants
    Endpoint("GET", "/api/tenants", ADMIN, tenants.list_all, gives=tenants.TenantList, problems=(404,),
             in_control=True),
    Endpoint("POST", "/api/tenants", ADMIN, tenants.create, takes=tenants.CreateTenantBody, gives=TenantObject,
             status=201, problems=(404, 409), in_control=True),
    Endpoint("POST", "/api/tenants/{name}/suspend", ADMIN, tenants.suspend, takes=WhyBody, gives=TenantObject,
             problems=(404, 409), in_control=True),
    Endpoint("POST", "/api/tenants/{name}/resume", ADMIN, tenants.resume, takes=WhyBody, gives=TenantObject,
             problems=(404, 409), in_control=True),
    Endpoint("DELETE", "/api/tenants/{name}", ADMIN, tenants.drop, query=tenants.DropTenantQuery, status=204,
             problems=(404, 409), in_control=True),
    # metrics
    Endpoint("GET", "/metrics", VIEWER, metrics.read, media=MEDIA_TYPE),
    # health
    Endpoint("GET", "/healthz", NOBODY, health.live, status=204),
    Endpoint("GET", "/readyz", NOBODY, health.ready, status=204),
)
# fmt: on
