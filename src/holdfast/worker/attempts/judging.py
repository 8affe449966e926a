"""What an attempt comes to that did not return: by what was raised, or by why it was stopped; for every runner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast
from uuid import UUID

from holdfast.models import JobError, RunningJob
from holdfast.outcomes import Facts, Fail, Kind, Outcome, Retry, crashed, describe, judge
from holdfast.store.jobs.claiming import Claimed
from holdfast.store.rows import maybe_instant
from holdfast.tasks.task import Task
from holdfast.unreadable import object_of
from holdfast.worker.attempts.aborts import AbortReason


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges one attempt of *job*, by the policy of its task."""

    job: Claimed
    task: Task[..., Any]
    worker: str
    chance: Random

    def raised(self, error: BaseException) -> Outcome:
        """Say what the attempt comes to that ends in *error*."""
        facts = self._facts
        try:
            return judge(error, facts, self._retry, self.chance)
        except BaseException as mistake:  # noqa: BLE001 - what was raised to steer cannot be read, such as after=NaN
            return Outcome(Kind.FAIL, error=describe(mistake, facts), reason="what the handler raised cannot be read")

    def aborted(
        self, reason: AbortReason, failed: str | None = None, stop: BaseException | None = None
    ) -> Outcome | None:
        """Say what an attempt comes to that was stopped for *reason*, and left its handler by *stop*.

        *failed* is what it was told to fail with.
        """
        match reason:
            case AbortReason.CANCELLED:
                return Outcome(Kind.CANCEL, reason=reason)
            case AbortReason.PAUSED:
                return Outcome(Kind.PAUSE, reason=reason)
            case AbortReason.SHUTDOWN | AbortReason.ERROR if self.task.policy.on_interrupt == "pause":
                return Outcome(Kind.PAUSE, reason=reason)
            case AbortReason.SHUTDOWN | AbortReason.ERROR:
                return Outcome(Kind.GIVE_BACK, reason=reason)
            case AbortReason.FAILED:
                return self.raised(Fail(failed or ""))
            case AbortReason.TIMEOUT:
                late = TimeoutError(f"not done within {self.task.policy.timeout:g} s")
                return self.raised(late.with_traceback(stop.__traceback__ if stop else None))
            case _:
                return None

    def not_begun(self, reason: AbortReason) -> Outcome | None:
        """Say what an attempt comes to that was stopped for *reason* before it began: nothing was interrupted."""
        if reason in (AbortReason.SHUTDOWN, AbortReason.ERROR):
            return Outcome(Kind.GIVE_BACK, reason=reason)
        return self.aborted(reason)

    def crashed(self, error: BaseException) -> Outcome:
        """Say what an attempt comes to that has taken down the process that it had for itself."""
        attempts, on_lost = self._retry.attempts, self.task.policy.on_lost
        has_attempts = attempts is None or self.job.used < attempts
        return crashed(self.job.crashes, on_lost, self.describe(error), has_attempts=has_attempts)

    def describe(self, error: BaseException) -> str:
        return describe(error, self._facts)

    @property
    def _retry(self) -> Retry:
        """The policy of the task, with the job's own budget if it has one."""
        retry, attempts = self.task.policy.retry, self.job.attempts
        return retry if attempts is None else replace(retry, attempts=attempts)

    @property
    def _facts(self) -> Facts:
        return Facts(self.job.token.attempt, self.job.used, self.worker, running_job(self.job, self.task))


def running_job(job: Claimed, task: Task[..., Any]) -> RunningJob:
    """Tell the facts of an attempt of *job*, which *task* says how often to try."""
    return RunningJob(
        id=UUID(job.id),
        chain_id=UUID(job.chain_id),
        chain_index=job.chain_index,
        task=job.task,
        queue=job.queue,
        lane=job.lane,
        attempt=job.token.attempt,
        used=job.used,
        crashes=job.crashes,
        attempts=task.policy.retry.attempts if job.attempts is None else job.attempts,
        error=cast("JobError | None", object_of(job.error) or None),
        last_attempt_at=maybe_instant(job.last_attempt_at),
    )
