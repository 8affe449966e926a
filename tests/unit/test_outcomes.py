"""What an attempt comes to: delays, verdicts, and errors that can be written down whatever they do (I-41, I-42)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from random import Random
from typing import Any
from uuid import UUID

import pytest

from holdfast.errors import InvalidInput, InvalidSettings
from holdfast.models import RunningJob
from holdfast.outcomes import (
    ATTRIBUTES_LENGTH,
    LONGEST_DELAY,
    MESSAGE_LENGTH,
    MOST_ATTRIBUTES,
    TRACE_LENGTH,
    Facts,
    Fail,
    Kind,
    Outcome,
    Pause,
    Reschedule,
    Retry,
    describe,
    judge,
    lost,
)
from holdfast.times import LATEST

FIRST = Facts(attempt=1, used=1, worker="worker-1")
ATTEMPTS = [1, 2, 3, 10, 63, 64, 65, 100, 1023, 1024, 1025, 10**6, 10**9]


def delays(retry: Retry, *attempts: int) -> list[float]:
    return [retry.delay(attempt, OSError(), Random(1)) for attempt in attempts]


def judged(error: BaseException, retry: Retry | None = None, facts: Facts = FIRST) -> Outcome:
    return judge(error, facts, retry or Retry(), Random(1))


# ---- delays


@pytest.mark.source("PQ-30", "JC-37")
def test_by_default_the_delay_doubles_from_10_to_300_seconds() -> None:
    assert delays(Retry(jitter=0), 1, 2, 3, 4, 5, 6, 7) == [10, 20, 40, 80, 160, 300, 300]


@pytest.mark.source("PQ-30")
def test_a_linear_delay_grows_by_the_first() -> None:
    assert delays(Retry(backoff="linear", first=3, maximum=10, jitter=0), 1, 2, 3, 4) == [3, 6, 9, 10]


@pytest.mark.source("PQ-30")
def test_a_fixed_delay_stays() -> None:
    assert delays(Retry(backoff="fixed", first=7, jitter=0), 1, 5, 10**9) == [7, 7, 7]


def test_a_function_gets_the_attempt_and_the_error() -> None:
    def backoff(attempt: int, error: BaseException) -> float:
        return attempt * len(str(error))

    assert Retry(backoff=backoff).delay(3, OSError("four"), Random(1)) == 12


@pytest.mark.parametrize(("given", "taken"), [(-5.0, 0.0), (1e300, LONGEST_DELAY), (float("inf"), LONGEST_DELAY)])
def test_what_a_function_gives_is_kept_within_bounds(given: float, taken: float) -> None:
    assert Retry(backoff=lambda attempt, error: given).delay(1, OSError(), Random(1)) == taken


@pytest.mark.parametrize("backoff", ["fixed", "linear", "exponential"])
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_every_delay_lies_between_the_first_and_the_maximum(backoff: Any, attempt: int) -> None:
    """F-42."""
    retry = Retry(backoff=backoff, first=10, maximum=300, jitter=1)

    spread = [retry.delay(attempt, OSError(), Random(seed)) for seed in range(50)]

    assert 10 <= min(spread) <= max(spread) <= 300


@pytest.mark.source("DF-17")
@pytest.mark.parametrize("backoff", ["fixed", "linear", "exponential"])
@pytest.mark.parametrize(("first", "maximum", "jitter"), [(10, 300, 0.1), (10, 300, 1), (10, 10.5, 0.1), (60, 90, 0.5)])
def test_jitter_spreads_inside_the_bounds_and_gathers_at_none(
    backoff: Any, first: float, maximum: float, jitter: float
) -> None:
    retry = Retry(backoff=backoff, first=first, maximum=maximum, jitter=jitter)

    for attempt in (1, 2, 5, 6, 20):
        spread = [retry.delay(attempt, OSError(), Random(seed)) for seed in range(500)]

        assert first <= min(spread) <= max(spread) <= maximum
        assert len(set(spread)) == len(spread)


def test_jitter_is_as_wide_at_a_bound_as_between_them() -> None:
    retry = Retry(jitter=0.1)

    widths = {}
    for attempt in (1, 2, 6):
        spread = [retry.delay(attempt, OSError(), Random(seed)) for seed in range(2_000)]
        widths[attempt] = round(min(spread)), round(max(spread))

    assert widths == {1: (10, 12), 2: (18, 22), 6: (240, 300)}


def test_jitter_has_no_room_between_equal_bounds() -> None:
    assert delays(Retry(first=60, maximum=60, jitter=0.5), 1, 2, 9) == [60, 60, 60]


def test_jitter_spreads_the_delays() -> None:
    retry = Retry(jitter=0.5)

    assert len({retry.delay(4, OSError(), Random(seed)) for seed in range(20)}) == 20


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": -1},
        {"first": -1},
        {"first": 400},
        {"factor": 0.5},
        {"jitter": 2},
        {"jitter": -0.1},
        {"factor": float("nan")},
        {"attempts": "3"},
        {"attempts": 2.5},
        {"attempts": True},
        {"first": "3"},
        {"maximum": None},
        {"jitter": False},
        {"backoff": "x"},
        {"backoff": ["fixed"]},
        {"backoff": None},
        {"fail_on": "ValueError"},
        {"pause_on": {OSError}},
        {"retry_on": int},
    ],
)
def test_a_policy_that_cannot_work_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        Retry(**wrong)


# ---- verdicts


@pytest.mark.source("PQ-16")
def test_an_error_is_tried_again_while_attempts_are_left() -> None:
    outcome = judged(OSError("away"), Retry(attempts=3, jitter=0), Facts(attempt=7, used=2, worker="w"))

    assert (outcome.kind, outcome.delay_ms) == (Kind.RETRY, 20_000)


@pytest.mark.source("PQ-7")
def test_the_first_run_counts_as_an_attempt() -> None:
    outcomes = [judged(OSError(), Retry(attempts=3), Facts(n, n, "w")) for n in (1, 2, 3)]

    assert [outcome.kind for outcome in outcomes] == [Kind.RETRY, Kind.RETRY, Kind.FAIL]
    assert outcomes[2].reason == "attempts used up"


@pytest.mark.source("TQ-29")
def test_never_runs_once() -> None:
    assert judged(OSError(), Retry.never()).kind is Kind.FAIL


@pytest.mark.source("JC-4")
def test_without_a_number_it_goes_on_for_ever() -> None:
    assert judged(OSError(), Retry(attempts=None), Facts(10**9, 10**9, "w")).kind is Kind.RETRY


@pytest.mark.parametrize(
    ("retry", "error", "kind"),
    [
        (Retry(fail_on=ValueError), ValueError(), Kind.FAIL),
        (Retry(fail_on=ValueError), UnicodeError(), Kind.FAIL),
        (Retry(fail_on=ValueError), OSError(), Kind.RETRY),
        (Retry(fail_on=(ValueError, KeyError)), KeyError(), Kind.FAIL),
        (Retry(fail_on=lambda error: "gone" in str(error)), OSError("gone"), Kind.FAIL),
        (Retry(fail_on=lambda error: "gone" in str(error)), OSError("back soon"), Kind.RETRY),
        (Retry(pause_on=PermissionError), PermissionError("sign in"), Kind.PAUSE),
        (Retry(pause_on=OSError, fail_on=OSError), OSError(), Kind.PAUSE),
        (Retry(retry_on=OSError), OSError(), Kind.RETRY),
        (Retry(retry_on=OSError), ValueError(), Kind.FAIL),
        (Retry(retry_on=()), OSError(), Kind.FAIL),
        (Retry.never(), OSError(), Kind.FAIL),
        (Retry(attempts=1, pause_on=OSError), OSError(), Kind.PAUSE),
    ],
)
def test_an_error_is_classified_by_its_type_or_a_predicate(retry: Retry, error: Exception, kind: Kind) -> None:
    assert judged(error, retry).kind is kind


@pytest.mark.parametrize(
    "retry",
    [
        Retry(backoff=lambda attempt, error: 1 / 0),
        Retry(fail_on=lambda error: 1 / 0),  # type: ignore[arg-type, return-value]
    ],
)
def test_a_policy_that_raises_fails_the_job_and_says_so(retry: Retry) -> None:
    outcome = judged(OSError(), retry)

    assert (outcome.kind, outcome.reason) == (Kind.FAIL, "the retry policy itself raised")
    assert "ZeroDivisionError" in (outcome.error or "")


def test_a_function_that_gives_no_number_fails_the_job() -> None:
    assert judged(OSError(), Retry(backoff=lambda attempt, error: float("nan"))).kind is Kind.FAIL


# ---- what a handler raises to steer


def test_fail_ends_the_job_whatever_attempts_are_left() -> None:
    outcome = judged(Fail("no such user"))

    assert (outcome.kind, outcome.reason) == (Kind.FAIL, "no such user")


@pytest.mark.source("TQ-21")
def test_pause_waits_for_people() -> None:
    assert judged(Pause("sign in first")) == Outcome(Kind.PAUSE, reason="sign in first")


@pytest.mark.parametrize(
    ("after", "milliseconds"),
    [(60, 60_000), (0.5, 500), (timedelta(hours=1), 3_600_000), (-5, 0), (10**12, round(LONGEST_DELAY * 1000))],
)
def test_reschedule_runs_again_after_a_while(after: Any, milliseconds: int) -> None:
    assert judged(Reschedule(after=after)) == Outcome(Kind.RESCHEDULE, delay_ms=milliseconds)


def test_reschedule_runs_again_at_a_time() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)

    assert judged(Reschedule(at=at)).run_at_ms == round(at.timestamp() * 1000)


@pytest.mark.source("DF-36", "JC-92")
def test_reschedule_refuses_a_time_without_a_time_zone() -> None:
    with pytest.raises(InvalidInput, match="timezone-aware"):
        Reschedule(at=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point


@pytest.mark.parametrize("at", [datetime(9999, 12, 31, tzinfo=UTC), datetime.max.replace(tzinfo=UTC), LATEST])
def test_reschedule_refuses_a_time_that_never_comes(at: datetime) -> None:
    with pytest.raises(InvalidInput, match="before the year 2200"):
        Reschedule(at=at)


@pytest.mark.source("JC-38")
def test_reschedule_keeps_the_error_that_it_was_raised_from() -> None:
    later = Reschedule(after=60)
    later.__cause__ = OSError("429: slow down")

    error = json.loads(judged(later).error or "")

    assert (error["type"], error["message"], error["attempt"]) == ("OSError", "429: slow down", 1)


@pytest.mark.parametrize("given", [{}, {"after": 1, "at": datetime(2030, 1, 1, tzinfo=UTC)}])
def test_reschedule_takes_one_time(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings):
        Reschedule(**given)


# ---- what a policy sees of the job

RUNNING = RunningJob(
    id=UUID(int=1), chain_id=UUID(int=1), chain_index=0, task="charge", queue="vip", lane=None, attempt=1, used=1,
    crashes=0,
)  # fmt: skip


@pytest.mark.source("PQ-29")
@pytest.mark.parametrize(
    ("retry", "kind"),
    [
        (Retry(fail_on=lambda error, job: job.queue == "vip"), Kind.FAIL),
        (Retry(fail_on=lambda error, job: job.queue == "other"), Kind.RETRY),
        (Retry(pause_on=[ValueError, lambda error, job: job.task == "charge"]), Kind.PAUSE),
        (Retry(retry_on=lambda error, job: job.used < 1), Kind.FAIL),
        (Retry(fail_on=lambda error, codes=(1, 2): codes == (1, 2)), Kind.FAIL),
        (Retry(fail_on=lambda *every: len(every) == 1), Kind.FAIL),
    ],
)
def test_a_predicate_with_a_second_parameter_gets_the_job(retry: Retry, kind: Kind) -> None:
    assert judged(OSError(), retry, FIRST._replace(job=RUNNING)).kind is kind


@pytest.mark.source("PQ-29")
def test_a_backoff_function_with_a_third_parameter_gets_the_job() -> None:
    retry = Retry(backoff=lambda attempt, error, job: 3.0 if job.queue == "vip" else 30.0)

    assert judged(OSError(), retry, FIRST._replace(job=RUNNING)).delay_ms == 3_000


# ---- a worker that is gone


@pytest.mark.parametrize(
    ("crashes", "on_lost", "has_attempts", "kind", "reason"),
    [
        (0, "retry", True, Kind.LOST, "lost"),
        (1, "retry", True, Kind.LOST, "lost"),
        (2, "retry", True, Kind.FAIL, "poison"),
        (0, "retry", False, Kind.FAIL, "attempts used up"),
        (0, "fail", True, Kind.FAIL, "lost"),
        (0, "pause", True, Kind.PAUSE, "lost"),
        (0, "pause", False, Kind.PAUSE, "lost"),
        (2, "pause", True, Kind.FAIL, "poison"),
        (9, "fail", True, Kind.FAIL, "poison"),
    ],
)
def test_what_a_loss_comes_to(crashes: int, on_lost: str, has_attempts: bool, kind: Kind, reason: str) -> None:
    outcome = lost(crashes, on_lost, "gone", Facts(3, 2, "worker-1"), has_attempts=has_attempts)

    assert (outcome.kind, outcome.reason, outcome.is_crash) == (kind, reason, True)
    assert json.loads(outcome.error or "") == {"type": "Lost", "message": "gone", "attempt": 3, "worker": "worker-1"}


@pytest.mark.parametrize(("on_lost", "kind"), [("retry", Kind.LOST), ("fail", Kind.FAIL), ("pause", Kind.PAUSE)])
def test_who_is_not_blamed_is_lost_by_its_policy_and_has_not_crashed(on_lost: str, kind: Kind) -> None:
    outcome = lost(2, on_lost, "gone", Facts(3, 2, "worker-1"), is_blamed=False)

    assert (outcome.kind, outcome.reason, outcome.is_crash) == (kind, "lost", False)


# ---- errors as they are written down


class Refused(Exception):
    """An error with facts of its own, as clients of HTTP have it."""

    def __init__(self, **facts: Any) -> None:
        super().__init__("refused")
        self.__dict__ |= facts


def attributes(error: BaseException) -> Any:
    return json.loads(describe(error, FIRST)).get("attributes")


@pytest.mark.source("JC-98")
def test_an_error_keeps_its_own_plain_attributes() -> None:
    error = Refused(status=HTTPStatus.TOO_MANY_REQUESTS, code="slow_down", wait=1.5, is_final=False, body=None)

    assert attributes(error) == {"status": 429, "code": "slow_down", "wait": 1.5, "is_final": False, "body": None}


@pytest.mark.parametrize(
    "facts",
    [
        {"_secret": "x"},
        {"response": object()},
        {"codes": [1, 2]},
        {"share": float("nan")},
        {"wait": float("inf")},
        {"huge": 10**5_000},
        {"long": "x" * 10_000, "_": 1},
    ],
)
def test_an_attribute_that_is_private_not_plain_or_too_long_is_left_out(facts: dict[str, Any]) -> None:
    assert attributes(Refused(**facts, code=7)) == {"code": 7}


def test_the_attributes_of_an_error_are_bounded() -> None:
    many = attributes(Refused(**{f"n{number}": number for number in range(1_000)}))
    long = attributes(Refused(**{f"t{number}": "x" * 500 for number in range(10)}))

    assert len(many) == MOST_ATTRIBUTES
    assert len(json.dumps(long)) <= ATTRIBUTES_LENGTH


def test_attributes_are_texts_that_databases_keep() -> None:
    (name,) = attributes(Refused(**{"a\x00\ud800": "b\x00\ud800"})).items()

    assert all(each.isprintable() for each in name)


class Hostile(Exception):
    """An error that does not tell its attributes."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise KeyboardInterrupt


def test_an_error_without_attributes_that_can_be_read_is_written_as_well() -> None:
    error = json.loads(describe(Hostile("no"), FIRST))

    assert (error["type"], error["message"], "attributes" in error) == ("Hostile", "no", False)


class Odd(Exception):
    """An error whose text is whatever it was made with, or raises."""

    def __init__(self, text: Any) -> None:
        super().__init__()
        self._text = text

    def __str__(self) -> str:
        if isinstance(self._text, BaseException):
            raise self._text
        return self._text  # type: ignore[no-any-return]


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001 - for its traceback
        return caught


def test_an_error_is_written_with_type_message_traceback_attempt_and_worker() -> None:
    found = json.loads(describe(raised(OSError("away")), Facts(3, 2, "worker-7")))

    assert (found["type"], found["message"], found["attempt"], found["worker"]) == ("OSError", "away", 3, "worker-7")
    assert "in raised" in found["traceback"]


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\udfff tail", "\U0001f600 fine", ""])
def test_any_text_survives_as_json_that_databases_keep(text: str) -> None:
    """I-07."""
    written = describe(raised(Odd(text)), FIRST)

    assert "\0" not in written
    assert "\\u0000" not in written.replace("\\\\u0000", "")
    written.encode()
    json.dumps(json.loads(written), ensure_ascii=False).encode()


@pytest.mark.parametrize("text", [RuntimeError("no text"), KeyboardInterrupt(), 7])
def test_a_text_that_cannot_be_had_is_said_so(text: Any) -> None:
    found = json.loads(describe(raised(Odd(text)), FIRST))

    assert found["message"] == "(its text cannot be had)"
    assert found["type"] == "Odd"


def test_a_text_of_100_megabytes_is_cut() -> None:
    """F-47, I-07."""
    found = json.loads(describe(raised(Odd("x" * 100_000_000)), FIRST))

    assert len(found["message"]) == MESSAGE_LENGTH
    assert len(found["traceback"]) <= TRACE_LENGTH


def test_a_deep_recursion_has_a_short_traceback() -> None:
    """F-47."""

    def deeper(n: int) -> None:
        deeper(n + 1)

    with pytest.raises(RecursionError) as caught:
        deeper(0)
    found = json.loads(describe(caught.value, FIRST))

    assert found["type"] == "RecursionError"
    assert len(found["traceback"]) <= TRACE_LENGTH


def test_the_end_of_a_long_traceback_is_what_is_kept() -> None:
    found = json.loads(describe(raised(OSError("the point " * 2000)), FIRST))

    assert "OSError" in found["traceback"]
