"""What stands in a child for the leases and the reports that its worker keeps."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.store.jobs.claiming import ProgressReport, Token
from holdfast.worker.children import proxies
from holdfast.worker.children.messages import REPORT
from holdfast.worker.children.proxies import JobsOfChild, ProgressOfChild

TOKEN = Token(7, 2, "nonce")
FIRST, SECOND = ProgressReport(TOKEN, 10, None), ProgressReport(TOKEN, 20, None)


class Worker:
    """Hears what a child says, and has the time."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.later: list[Callable[[], None]] = []
        self.now = 100.0

    def say(self, message: str, **facts: object) -> None:
        """Remember it."""
        self.heard.append((message, facts))

    def soon(self, call: Callable[[], None]) -> None:
        """Stand in for the loop, in which nobody waits for a job."""
        raise AssertionError(f"{call} was not awaited")


@pytest.fixture
def worker() -> Worker:
    return Worker()


@pytest.fixture
def jobs(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> JobsOfChild:
    """The third job has begun; its lease is late at 110 and fenced at 112."""
    monkeypatch.setattr(proxies, "CATCH_UP_SECONDS", 0)
    made = JobsOfChild(worker.say, lambda: worker.now, worker.soon)
    begin(made, 3, (110.0, 112.0))
    return made


def begin(jobs: JobsOfChild, number: int, until: tuple[float, float] | None) -> None:
    """Have a job that the worker has sent begin."""
    jobs.add({"number": number, "lease": until})
    assert jobs.begin(number) is not None


@pytest.fixture
def progress(worker: Worker) -> ProgressOfChild:
    made = ProgressOfChild(worker.say, worker.later.append)
    made.begin(TOKEN)
    return made


def test_nothing_is_completed_once_the_lease_may_be_over(worker: Worker, jobs: JobsOfChild) -> None:
    worker.now = 109.9
    assert jobs.may_complete(TOKEN)

    worker.now = 110.0
    assert not jobs.may_complete(TOKEN)


def test_a_renewal_moves_both_instants(worker: Worker, jobs: JobsOfChild) -> None:
    jobs.renew(3, (120.0, 122.0))

    worker.now = 119.0
    assert jobs.may_complete(TOKEN)
    assert jobs.seconds == 3.0


def test_a_renewal_of_another_job_is_not_for_this_one(worker: Worker, jobs: JobsOfChild) -> None:
    jobs.renew(2, (120.0, 122.0))

    worker.now = 111.0
    assert not jobs.may_complete(TOKEN)


def test_a_lease_that_is_not_kept_any_more_completes_nothing(worker: Worker, jobs: JobsOfChild) -> None:
    begin(jobs, 4, None)

    assert not jobs.may_complete(TOKEN)


def take(progress: ProgressOfChild, report: ProgressReport, *, at_once: bool) -> Future[bool] | None:
    """Report something, by a handler that runs."""
    return progress.take(report, at_once, lambda: False)


def test_who_has_completed_its_job_is_stopped_by_no_lease(worker: Worker, jobs: JobsOfChild) -> None:
    jobs.drop(TOKEN)
    jobs.renew(3, (120.0, 122.0))

    assert jobs.seconds is None
    assert worker.heard == [("completed", {})]


def test_a_report_goes_to_the_worker_and_is_unwritten_until_that_says_otherwise(
    worker: Worker, progress: ProgressOfChild
) -> None:
    take(progress, FIRST, at_once=False)
    take(progress, SECOND, at_once=False)
    worker.later.pop()()

    progress.written(FIRST)
    assert progress.unwritten(TOKEN) == [SECOND]
    progress.written(SECOND)
    assert progress.unwritten(TOKEN) == []
    assert [REPORT.validate_python(facts["report"]) for _, facts in worker.heard] == [FIRST, SECOND]


def test_who_wants_it_written_at_once_hears_when_it_is(worker: Worker, progress: ProgressOfChild) -> None:
    written = take(progress, FIRST, at_once=True)
    assert written is not None
    assert not written.done()

    progress.answered(worker.heard[0][1]["number"], True)

    assert written.result(timeout=0) is True


@pytest.mark.parametrize("end", ["give_up", "forget"])
def test_nobody_waits_for_a_report_of_a_handler_that_is_to_stop(progress: ProgressOfChild, end: str) -> None:
    written = take(progress, FIRST, at_once=True)
    assert written is not None

    if end == "forget":
        progress.forget([TOKEN])
    else:
        progress.give_up(TOKEN)

    assert written.result(timeout=0) is False


def test_what_is_said_after_the_end_goes_nowhere(worker: Worker, progress: ProgressOfChild) -> None:
    progress.forget([TOKEN])

    written = take(progress, FIRST, at_once=True)

    assert written is not None
    assert written.result(timeout=0) is False
    assert worker.heard == []


def test_a_phase_has_the_reports_held_until_none_is_under_way(worker: Worker, progress: ProgressOfChild) -> None:
    take(progress, FIRST, at_once=False)
    resting = progress.hold(TOKEN)
    assert not resting.done()
    progress.answered(worker.heard[-1][1]["number"], True)
    progress.release(TOKEN, is_written=True)

    assert resting.result(timeout=0) is True
    assert progress.unwritten(TOKEN) == []
    assert worker.heard[-1] == ("release", {"is_written": True})


def reports(worker: Worker) -> list[ProgressReport]:
    """Give the reports that the worker has heard."""
    return [REPORT.validate_python(facts["report"]) for said, facts in worker.heard if said == "report"]


def test_a_chatty_handler_tells_the_worker_the_first_and_then_the_last_of_each_rest(
    worker: Worker, progress: ProgressOfChild
) -> None:
    for percent in range(100):
        take(progress, ProgressReport(TOKEN, percent, None), at_once=False)
    before = [each.percent for each in reports(worker)]
    worker.later.pop()()
    worker.later.pop()()

    assert before == [0]
    assert [each.percent for each in reports(worker)] == [0, 99]
    assert worker.later == []


def test_the_last_report_is_told_before_the_end(worker: Worker, progress: ProgressOfChild) -> None:
    take(progress, FIRST, at_once=False)
    take(progress, SECOND, at_once=False)

    progress.end(TOKEN)
    worker.later.pop()()

    assert reports(worker) == [FIRST, SECOND]


def test_what_a_phase_has_written_is_not_told_again(worker: Worker, progress: ProgressOfChild) -> None:
    take(progress, FIRST, at_once=False)
    take(progress, SECOND, at_once=False)

    progress.release(TOKEN, is_written=True)
    worker.later.pop()()

    assert reports(worker) == [FIRST]


def test_who_stood_still_waits_once_for_what_its_worker_says(worker: Worker, jobs: JobsOfChild) -> None:
    worker.now = 200.0

    assert jobs.spare(2.0)
    assert jobs.seconds == 2.0
    assert not jobs.spare(2.0)
    assert not jobs.may_complete(TOKEN)


def test_who_is_late_hears_what_it_was_told_meanwhile(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxies, "CATCH_UP_SECONDS", 60)
    jobs = JobsOfChild(worker.say, lambda: worker.now, worker.soon)
    begin(jobs, 3, (110.0, 112.0))
    worker.now = 115.0

    with ThreadPoolExecutor() as threads:
        may_complete = threads.submit(jobs.may_complete, TOKEN)
        jobs.renew(3, (120.0, 122.0))

        assert may_complete.result(timeout=60)
