"""Jobs in Django's admin: to be looked at, by whoever has the right to view them, and not to be changed.

Nothing here counts or sorts a table of millions of jobs: the list goes by the order in which they came, a page knows of
no more than a thousand further ones, and the filters offer what the tasks say of themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.utils.functional import cached_property
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from holdfast.integrations.django.models import Event, Job, Task, instant, readable
from holdfast.integrations.django.project import alias

MOST_COUNTED = 1_000
MOST_EVENTS = 200


class NearPaginator(Paginator):
    """Pages that do not know how many there are in all, if that is more than a thousand jobs."""

    @cached_property
    def count(self) -> int:
        """Count, and stop soon."""
        return int(self.object_list[:MOST_COUNTED].count())


class TaskFilter(admin.SimpleListFilter):
    """Jobs of one task."""

    title = "task"
    parameter_name = "task"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """Offer the tasks that have been written down."""
        return [(each, each) for each in _tasks().values_list("name", flat=True)]

    def queryset(self, request: Any, queryset: QuerySet) -> QuerySet:
        """Choose by the task's name."""
        return queryset.filter(task=self.value()) if self.value() else queryset


class QueueFilter(admin.SimpleListFilter):
    """Jobs of one queue."""

    title = "queue"
    parameter_name = "queue"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        """Offer the queues that tasks name."""
        return [(each, each) for each in sorted({"default", *(task.queue for task in _tasks())})]

    def queryset(self, request: Any, queryset: QuerySet) -> QuerySet:
        """Choose by the queue's name."""
        return queryset.filter(queue=self.value()) if self.value() else queryset


@admin.register(Job)
class JobAdmin(admin.ModelAdmin):
    """Lists jobs, and shows one with all that happened to it."""

    list_display = ("id", "task", "queue", "status", "attempt", "created", "finished")
    list_filter = ("status", TaskFilter, QueueFilter)
    search_fields = ("id",)
    search_help_text = "The id of a job or of a chain"
    sortable_by = ()
    list_per_page = 50
    paginator = NearPaginator
    show_full_result_count = False
    actions = None
    fieldsets = (
        (None, {"fields": ("id", "task", "status", "reason", "attempt", "crashes", "worker")}),
        ("Place", {"fields": ("chain_id", "chain_index", "queue", "lane", "priority")}),
        ("Times", {"fields": ("created", "runs", "started", "finished", "stale", "leased")}),
        ("Values", {"fields": ("progress", "message", "given", "came_out", "errors", "delivered")}),
        ("History", {"fields": ("timeline",)}),
    )

    def get_queryset(self, request: Any) -> QuerySet:
        """Read from the database that HOLDFAST names, and leave out what is deleted."""
        return Job.objects.using(alias()).exclude(closed_as="deleted")

    def get_search_results(self, request: Any, queryset: QuerySet, search_term: str) -> tuple[QuerySet, bool]:
        """Find a job, or the jobs of a chain, by an id; both have an index."""
        wanted = search_term.strip().lower()
        if not wanted:
            return queryset, False
        return queryset.filter(Q(id=wanted) | Q(chain_id=wanted, chain_index__gt=0)), False

    def get_readonly_fields(self, request: Any, obj: Any = None) -> Sequence[str]:
        """Show every field, and let none be changed."""
        return [name for _, section in self.fieldsets for name in section["fields"]]

    def has_add_permission(self, request: Any) -> bool:
        """Let nobody make a job here: it would have no event."""
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Let nobody change one."""
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Let nobody delete one."""
        return False

    @admin.display(description="created")
    def created(self, job: Any) -> datetime | None:
        """When it was started by its caller."""
        return instant(job.created_at)

    @admin.display(description="runs at")
    def runs(self, job: Any) -> datetime | None:
        """When it is, or was, due."""
        return instant(job.run_at)

    @admin.display(description="begun")
    def started(self, job: Any) -> datetime | None:
        """When its last attempt began."""
        return instant(job.started_at)

    @admin.display(description="finished")
    def finished(self, job: Any) -> datetime | None:
        """When it ended."""
        return instant(job.finished_at)

    @admin.display(description="stale since")
    def stale(self, job: Any) -> datetime | None:
        """When retention marked it, to be deleted later."""
        return instant(job.stale_at)

    @admin.display(description="leased until")
    def leased(self, job: Any) -> datetime | None:
        """Until when its worker has it."""
        return instant(job.lease_until)

    @admin.display(description="input")
    def given(self, job: Any) -> SafeString:
        """Its arguments."""
        return _laid_out(job.input)

    @admin.display(description="output")
    def came_out(self, job: Any) -> SafeString:
        """What it completed with."""
        return _laid_out(job.output)

    @admin.display(description="error")
    def errors(self, job: Any) -> SafeString:
        """What was raised last."""
        return _laid_out(job.error)

    @admin.display(description="webhook delivered", boolean=True)
    def delivered(self, job: Any) -> bool | None:
        """Whether the last webhook that ended for it was delivered."""
        return None if job.webhook_sent is None else bool(job.webhook_sent)

    @admin.display(description="events")
    def timeline(self, job: Any) -> SafeString:
        """What happened to it, the newest last."""
        latest = Event.objects.using(alias()).filter(job=job.seq).order_by("-seq")[:MOST_EVENTS]
        rows = format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td></tr>", _lines(reversed(latest)))
        return format_html("<table>{}</table>", rows)


def _tasks() -> QuerySet:
    return Task.objects.using(alias())


def _laid_out(text: str | None) -> SafeString:
    return format_html("<pre>{}</pre>", readable(text))


def _lines(events: Iterator[Any]) -> Iterator[tuple[str, str, str]]:
    for each in events:
        at = instant(each.at)
        yield (at.isoformat(" ", "milliseconds") if at else "", each.name, each.facts or "")
