"""Explanations as they are written for those outside."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from starlette.routing import compile_path

from holdfast.explanations import REQUESTS, BackingOff, Blocked, Ended, OpenBlocker, Paused, Reason, Remedy
from holdfast.http.endpoints import ENDPOINTS
from holdfast.states import Status
from holdfast.wire.explanation_json import ReasonObject, reason_object
from holdfast.wire.redaction import Redaction

ID = UUID("0198c0de-0000-7000-8000-000000000001")
AT = datetime(2026, 5, 4, 12, tzinfo=UTC)
ERROR = {"type": "Boom", "message": "canary", "attempt": 1, "worker": "w"}

REASONS: list[Reason] = [
    Paused(ID, "ada", "later", AT),
    Blocked((OpenBlocker(ID, "greet", Status.FAILED),), 1),
    BackingOff(ID, AT, 1, ERROR),  # type: ignore[arg-type]
    Ended(ID, Status.FAILED, None, "canary", ERROR, AT),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("reason", REASONS, ids=lambda each: each.code)
def test_a_reason_is_plain_json_as_its_model_describes_it(reason: Reason) -> None:
    written = reason_object(reason, Redaction())

    assert ReasonObject.model_validate(written).model_dump() == written
    assert json.loads(json.dumps(written)) == written


@pytest.mark.parametrize("reason", REASONS, ids=lambda each: each.code)
def test_who_may_not_see_errors_is_told_none_in_words_either(reason: Reason) -> None:
    assert "canary" not in json.dumps(reason_object(reason, Redaction(payloads=False)))


@pytest.mark.parametrize("verb", sorted(REQUESTS))
def test_each_remedy_is_a_request_of_the_table(verb: str) -> None:
    remedy = Remedy(verb, "a b/c" if "." in verb else str(ID), {"task": "greet"})  # type: ignore[arg-type]
    request = remedy.request

    assert request is not None
    path = request.path.partition("?")[0]
    fitting = [each for each in ENDPOINTS if each.method == request.method and compile_path(each.path)[0].match(path)]
    assert len(fitting) == 1


def test_for_a_worker_there_is_no_request() -> None:
    remedy = Remedy("worker", "default")

    assert remedy.request is None
