"""What a webhook says: its envelope, its schema, and what is left out of it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from holdfast import Job, State, Status
from holdfast.models import Phase, PhaseStatus
from holdfast.wire.webhook_body import MOST_BYTES, WebhookBody, body, webhook_schema

AT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
JOB = Job(
    id=UUID(int=1),
    seq=7,
    chain_id=UUID(int=1),
    chain_index=0,
    task="greet",
    queue="default",
    lane=None,
    priority=0,
    tags=("ä",),
    status=Status.COMPLETED,
    state=State.COMPLETED,
    run_at=AT,
    attempt=1,
    used=1,
    crashes=0,
    interrupted=0,
    worker=None,
    lease_until=None,
    reason=None,
    input='{"name":"Ada"}',
    output='"Hello, Ada"',
    error=None,
    current_phase="greet",
    progress=100,
    message=None,
    open_blockers=0,
    on_blocker_failure="fail",
    webhook=None,
    completed_by="worker-1",
    created_at=AT,
    started_at=AT,
    finished_at=AT,
    stale_at=None,
    version=3,
    phases=(Phase(name="greet", status=PhaseStatus.COMPLETED, progress=100, result="secret", started_at=AT),),
)


def text(job: Job = JOB, facts: str | None = None) -> str:
    """Write a body."""
    at = "2026-01-02T03:04:05.678Z"
    return body("job:completed", at, job, status=job.status, attempt=1, version=3, facts=facts)


def test_the_envelope_is_that_of_standard_webhooks() -> None:
    posted = json.loads(text(facts='{"continued":"x"}'))

    assert list(posted) == ["type", "timestamp", "data"]
    assert (posted["type"], posted["timestamp"]) == ("job:completed", "2026-01-02T03:04:05.678Z")
    assert {**posted["data"], "job": None} == {
        "event": "job:completed",
        "status": "completed",
        "attempt": 1,
        "version": 3,
        "facts": {"continued": "x"},
        "omitted": [],
        "job": None,
    }


def test_the_schema_says_all_that_is_posted_and_no_more() -> None:
    posted = json.loads(text())

    assert WebhookBody.model_validate(posted, strict=True).model_dump() == posted


def test_every_field_is_required_and_more_may_come() -> None:
    definitions: list[dict[str, Any]] = [webhook_schema(), *webhook_schema()["$defs"].values()]

    assert all(each["required"] == list(each["properties"]) for each in definitions)
    assert all("additionalProperties" not in each for each in definitions)


def test_results_of_phases_are_not_told() -> None:
    assert "secret" not in text()


@pytest.mark.parametrize("name", ["input", "output"])
def test_the_last_byte_that_fits_is_told(name: str) -> None:
    rest = len(text(replace(JOB, **{name: '""'})).encode())
    fitting = "ä" * ((MOST_BYTES - rest) // 2)

    told = json.loads(text(replace(JOB, **{name: json.dumps(fitting)})))["data"]
    too_long = text(replace(JOB, **{name: json.dumps(fitting + "ä")}))

    assert (told["job"][name], told["omitted"]) == (fitting, [])
    left = json.loads(too_long)["data"]
    assert (left["job"]["input"], left["job"]["output"], left["omitted"]) == (None, None, ["input", "output"])
    assert len(too_long) < MOST_BYTES


def test_a_job_of_many_talkative_phases_is_told_without_them() -> None:
    phases = [
        Phase(name=str(each), status=PhaseStatus.COMPLETED, progress=100, message="ä" * 500) for each in range(99)
    ]
    too_long = text(replace(JOB, phases=tuple(phases)))

    data = WebhookBody.model_validate_json(too_long).data
    assert (data.omitted, data.job.phases) == (["input", "output", "phases"], [])
    assert len(too_long.encode()) < MOST_BYTES
