"""What an attempt comes to that did not return: by what was raised, or by why it was stopped; for every runner."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from holdfast.outcomes import Facts, Fail, Kind, Outcome, crashed, describe, judge
from holdfast.store.jobs.claiming import Claimed
from holdfast.tasks.task import Task
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
            return judge(error, facts, self.task.policy.retry, self.chance)
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
        policy = self.task.policy
        has_attempts = policy.retry.attempts is None or self.job.used < policy.retry.attempts
        return crashed(self.job.crashes, policy.on_lost, self.describe(error), has_attempts=has_attempts)

    def describe(self, error: BaseException) -> str:
        return describe(error, self._facts)

    @property
    def _facts(self) -> Facts:
        return Facts(self.job.token.attempt, self.job.used, self.worker)
