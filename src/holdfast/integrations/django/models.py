"""Our tables as models that Django neither makes nor changes: for the admin, and for queries of your own.

They show what is stored. What happens to a job goes through Holdfast's verbs, or neither events nor workers know of it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from django.db import models

from holdfast.integrations.django.project import table
from holdfast.states import Status


class Job(models.Model):
    """A job, as it is stored; instants are milliseconds since 1970."""

    id = models.TextField(primary_key=True)
    seq = models.BigIntegerField(unique=True)
    chain_id = models.TextField()
    chain_index = models.BigIntegerField()
    task = models.TextField()
    queue = models.TextField()
    lane = models.TextField(null=True)
    priority = models.BigIntegerField()
    status = models.TextField(choices=[(str(each), str(each)) for each in Status])
    attempt = models.BigIntegerField()
    crashes = models.BigIntegerField()
    worker = models.TextField(null=True)
    reason = models.TextField(null=True)
    input = models.TextField()
    output = models.TextField(null=True)
    error = models.TextField(null=True)
    progress = models.BigIntegerField(null=True)
    message = models.TextField(null=True)
    created_at = models.BigIntegerField()
    run_at = models.BigIntegerField()
    started_at = models.BigIntegerField(null=True)
    finished_at = models.BigIntegerField(null=True)
    lease_until = models.BigIntegerField(null=True)
    closed_as = models.TextField(null=True)
    stale_at = models.BigIntegerField(null=True)
    webhook_sent = models.BigIntegerField(null=True)

    class Meta:
        """Look at the table, and change nothing."""

        managed = False
        db_table = table("job")
        default_permissions = ("view",)
        permissions = (
            ("operate", "Can start and steer jobs over HTTP"),
            ("administer", "Can do everything with jobs over HTTP"),
        )
        ordering = ("-seq",)

    def __str__(self) -> str:
        return f"{self.task} {self.id}"


class Event(models.Model):
    """A recorded fact about the job that has the number *job*."""

    seq = models.BigIntegerField(primary_key=True)
    job = models.BigIntegerField()
    name = models.TextField()
    at = models.BigIntegerField()
    attempt = models.BigIntegerField(null=True)
    facts = models.TextField(null=True)

    class Meta:
        """Look at the table, and change nothing; events are shown with their job."""

        managed = False
        db_table = table("event")
        default_permissions = ()
        ordering = ("seq",)

    def __str__(self) -> str:
        return str(self.name)


class Task(models.Model):
    """A task as its owner has written it down, for the filters of the admin."""

    name = models.TextField(primary_key=True)
    policy = models.TextField()

    class Meta:
        """Look at the table, and change nothing."""

        managed = False
        db_table = table("task")
        default_permissions = ()
        ordering = ("name",)

    def __str__(self) -> str:
        return str(self.name)

    @property
    def queue(self) -> str:
        """The queue of its jobs, unless a call says otherwise."""
        return str(json.loads(self.policy).get("queue", "default"))


def instant(milliseconds: int | None) -> datetime | None:
    """Make an aware datetime of an instant, as it is stored."""
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def readable(text: str | None) -> str:
    """Lay a stored JSON text out for people."""
    if text is None:
        return ""
    value: Any = json.loads(text)
    return json.dumps(value, indent=2, ensure_ascii=False)
