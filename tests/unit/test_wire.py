"""How a job is written for those outside: the same keys, in the same order, with the same values, to the byte."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, get_args, get_type_hints, is_typeddict
from uuid import UUID

import pytest
from pydantic_core import to_json

from holdfast import Event, Job, State, Status
from holdfast.events.sse_stream import MOST_VARIANTS, _written
from holdfast.models import JobError, JobEvent, Phase, PhaseStatus
from holdfast.store.rows import COLUMNS, to_job
from holdfast.wire.job_json import event_object, job_object
from holdfast.wire.redaction import Redaction
from tests.unit.test_webhook_body import AT, JOB, text

FULL = replace(
    JOB,
    lane="ada",
    priority=-3,
    tags=("ä", 'q"'),
    status=Status.FAILED,
    state=State.STALE,
    crashes=2,
    interrupted=1,
    worker="worker-1",
    lease_until=AT,
    reason="lost",
    output=None,
    error={"type": "Lost", "message": "x"},
    message="half",
    webhook="https://example.org",
    started_at=None,
    stale_at=AT + timedelta(days=1),
    webhook_sent=False,
    attempts=3,
    parent=UUID(int=9),
    scheduled_at=AT,
    phases=(Phase(name="a", status=PhaseStatus.FAILED, message="m", error={"type": "E"}, finished_at=AT),),
    state_tag="failed/1/cd810519",
)
OPEN = replace(JOB, status=Status.RUNNING, state=State.CANCELLING, phases=(), finished_at=None, tags=())

FULL_TEXT = (
    '{"id":"00000000-0000-0000-0000-000000000001","chain_id":"00000000-0000-0000-0000-000000000001","chain_index":0,'
    '"parent":"00000000-0000-0000-0000-000000000009","task":"greet","queue":"default","lane":"ada","priority":-3,"tags":["ä","q\\""],"status":"failed",'
    '"state":"stale","outcome":"failed","run_at":"2026-01-02T03:04:05.678Z",'
    '"scheduled_at":"2026-01-02T03:04:05.678Z","attempt":1,"used":1,"attempts":3,"crashes":2,'
    '"interrupted":1,"worker":"worker-1","reason":"lost","input":{"name":"Ada"},"output":null,'
    '"error":{"type":"Lost","message":"x"},"current_phase":"greet","progress":100,"message":"half",'
    '"phases":[{"name":"a","status":"failed","progress":0,"message":"m","error":{"type":"E"},"started_at":null,'
    '"finished_at":"2026-01-02T03:04:05.678Z"}],"open_blockers":0,"webhook_sent":false,"completed_by":"worker-1",'
    '"created_at":"2026-01-02T03:04:05.678Z","started_at":null,"finished_at":"2026-01-02T03:04:05.678Z",'
    '"stale_at":"2026-01-03T03:04:05.678Z","version":3,"state_tag":"failed/1/cd810519"}'
)
OPEN_TEXT = (
    '{"id":"00000000-0000-0000-0000-000000000001","chain_id":"00000000-0000-0000-0000-000000000001","chain_index":0,'
    '"parent":null,"task":"greet","queue":"default","lane":null,"priority":0,"tags":[],"status":"running","state":"cancelling",'
    '"outcome":null,"run_at":"2026-01-02T03:04:05.678Z",'
    '"scheduled_at":null,"attempt":1,"used":1,"attempts":null,"crashes":0,"interrupted":0,'
    '"worker":null,"reason":null,"input":{"name":"Ada"},"output":"Hello, Ada","error":null,"current_phase":"greet",'
    '"progress":100,"message":null,"phases":[],"open_blockers":0,"webhook_sent":null,"completed_by":"worker-1",'
    '"created_at":"2026-01-02T03:04:05.678Z","started_at":"2026-01-02T03:04:05.678Z","finished_at":null,'
    '"stale_at":null,"version":3,"state_tag":""}'
)


@pytest.mark.parametrize(("job", "written"), [(FULL, FULL_TEXT), (OPEN, OPEN_TEXT)])
def test_a_job_is_written_as_it_always_was(job: Job, written: str) -> None:
    assert to_json(job_object(job)).decode() == written
    assert json.dumps(job_object(job), ensure_ascii=False, separators=(",", ":")) == written


def test_a_webhook_holds_the_same_text() -> None:
    head = (
        '{"type":"job:completed","timestamp":"2026-01-02T03:04:05.678Z","data":{"event":"job:completed",'
        '"status":"failed","attempt":1,"version":3,"facts":{},"omitted":[],"job":'
    )

    assert text(FULL) == f"{head}{FULL_TEXT}}}}}"


def test_a_server_sent_event_holds_the_same_text() -> None:
    event = JobEvent(name="job:failed", at=AT, job=FULL, status=Status.FAILED, version=3, attempt=1, cursor="c5")

    assert _written(event).decode() == (
        'event: job:failed\nid: c5\ndata: {"event":"job:failed","at":"2026-01-02T03:04:05.678Z","status":"failed",'
        f'"version":3,"attempt":1,"facts":{{}},"job":{FULL_TEXT},"omitted":[]}}\n\n'
    )


def test_a_brief_event_has_no_payloads_and_of_errors_what_they_say() -> None:
    said: JobError = {"type": "E", "message": "m", "attempt": 1, "worker": "w"}
    error: JobError = {**said, "traceback": "t", "attributes": {"a": 1}}
    event = JobEvent(name="job:failed", at=AT, job=replace(FULL, error=error), facts={"error": error}, cursor="c5")

    whole, brief = event_object(event), event_object(event, brief=True)

    assert brief["facts"] == {"error": said}
    assert brief["job"] == whole["job"] | {"input": None, "output": None, "error": said}
    assert event.job.error == error


def test_a_stored_value_that_is_no_json_is_hidden_for_nobody_can_tell_what_is_in_it() -> None:
    job = replace(FULL, input='{"password": "x', output='"a text"')

    shown = job_object(job, Redaction())

    assert (shown["input"], shown["output"]) == ("•••", "a text")
    assert job_object(job)["input"] == job.input


def test_each_way_of_showing_an_event_is_kept_and_not_mixed_up() -> None:
    event = JobEvent(name="job:failed", at=AT, job=FULL, cursor="c5")
    ways = [(None, False), (None, True), (Redaction(), False), (Redaction(payloads=False), False)]
    ways += [(Redaction(keys=(str(number),)), False) for number in range(20)]

    first = [_written(event, redaction, brief=brief) for redaction, brief in ways]

    assert [_written(event, redaction, brief=brief) for redaction, brief in ways] == first
    assert first[0] != first[1]
    assert len(event._written or {}) == MOST_VARIANTS


def test_a_message_says_how_many_it_stands_for() -> None:
    event = Event(name="job:deleted", at=AT, deleted_job_id=UUID(int=5), cursor="c5")

    data = _written(event, merged=3).decode().split("data: ")[1]

    assert json.loads(data)["merged"] == 3
    assert "merged" not in _written(event).decode()


def test_of_a_deleted_job_its_id_is_told() -> None:
    event = Event(name="job:deleted", at=AT, deleted_job_id=UUID(int=5))

    assert event_object(event) == {
        "event": "job:deleted",
        "at": "2026-01-02T03:04:05.678Z",
        "deletedJobId": "00000000-0000-0000-0000-000000000005",
    }


# ---- and how it was read

ID = "00000000-0000-0000-0000-000000000001"
MS = 1_767_323_045_678
STORED: dict[str, Any] = {
    "seq": 7, "id": ID, "chain_id": ID, "chain_index": 0, "task": "greet", "queue": "default", "lane": "ada",
    "priority": -3, "tags": '["ä","q\\""]', "status": "failed", "gate": None, "run_at": MS, "attempt": 1, "used": 1,
    "crashes": 2, "interrupted": 1, "worker": "worker-1", "lease_until": MS, "cancel_requested_at": None,
    "pause_requested_at": None, "reason": "lost", "input": '{"name":"Ada"}', "output": None,
    "error": '{"type":"Lost","message":"x"}', "current_phase": "greet", "progress": 100, "message": "half",
    "open_blockers": 0, "on_blocker_failure": "fail", "webhook": "https://example.org", "completed_by": "worker-1",
    "created_at": MS, "started_at": None, "finished_at": MS, "stale_at": MS + 86_400_000, "version": 3,
    "webhook_sent": 0,
    "attempts": 3, "parent": "00000000-0000-0000-0000-000000000009", "scheduled_at": 1_767_323_045_678,
}  # fmt: skip
FACTS = {"now": MS, "queue_paused": None, "lane_paused": None, "continued": None, "phases": None}


def row_of(**columns: Any) -> tuple[Any, ...]:
    """Give a row as the store would read it, by the names of its columns."""
    names = [name.strip().removeprefix("holdfast_job.") for name in COLUMNS.split(",")]
    return (*(({**STORED, **columns})[name] for name in names), *FACTS.values())


def test_a_row_is_read_by_the_names_of_its_columns() -> None:
    assert to_job(row_of()) == replace(FULL, phases=(), state_tag="failed/1/cd810519")


@pytest.mark.parametrize("is_full", [True, False])
def test_every_field_of_a_job_that_was_read_has_the_type_that_it_declares(is_full: bool) -> None:
    nothing = (
        {}
        if is_full
        else dict.fromkeys(
            (
                "tags",
                "webhook",
                "webhook_sent",
                "lease_until",
                "error",
                "stale_at",
                "attempts",
                "parent",
                "scheduled_at",
            )
        )
    )
    job = to_job(row_of(**nothing))

    for field in fields(Job):
        kind = get_type_hints(Job)[field.name]
        kinds = [getattr(each, "__origin__", each) for each in get_args(kind) or [kind]]
        kinds = [dict if is_typeddict(each) else each for each in kinds]  # it is one when it is read
        value = getattr(job, field.name)
        assert kind is Any or type(value) in kinds or value in kinds or isinstance(value, tuple), field.name


@pytest.mark.parametrize(
    ("columns", "state"),
    [
        ({"status": "pending", "stale_at": None, "run_at": MS + 1}, State.SCHEDULED),
        ({"status": "pending", "stale_at": None, "gate": "lane"}, State.WAITING),
        ({"status": "running", "stale_at": None, "cancel_requested_at": 1}, State.CANCELLING),
        ({"status": "running", "stale_at": None, "pause_requested_at": 1}, State.PAUSING),
        ({"status": "failed"}, State.STALE),
        ({"status": "failed", "stale_at": None}, State.FAILED),
    ],
)
def test_the_state_that_is_shown_is_derived_from_the_columns(columns: dict[str, Any], state: State) -> None:
    assert to_job(row_of(**columns)).state is state
