"""Who steers: `python -m tests.torture.operator 7`. Once the run is calm, it sets everything going again."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from random import Random

from holdfast.errors import HoldfastError, StoreError
from holdfast.models import Job
from tests.torture.application import TASKS, hf
from tests.torture.clients import Client
from tests.torture.notes import is_set
from tests.torture.producers import LANES

PAUSE_SECONDS = 0.15
HELD_LANE_SECONDS = 0.5
DELETED = ("steady", "threaded", "staged")
"""Of which tasks jobs are deleted: of others somebody is told, and what is to be told goes with the job."""
OPEN = ["pending", "blocked", "paused", "running"]
EXPLAINED = 10
"""Of how many jobs it is asked at once why they do not run."""
BY_HAND = -1
"""The output of a job that is completed without a worker."""


class Operator:
    """Does something to a job or a lane, as its seed decides."""

    def __init__(self, seed: str, client: Client) -> None:
        self._chance = Random(seed)
        self._client = client
        self._acts: list[tuple[Callable[[], None], int]] = [
            (self._cancel, 4),
            (self._pause, 3),
            (self._resume, 6),
            (self._retry, 3),
            (self._complete, 3),
            (self._trigger, 2),
            (self._hold_lane, 1),
            (self._skip, 3),
            (self._delete, 4),
            (self._explain, 8),
        ]

    def act(self) -> None:
        """Do one thing."""
        acts, weights = zip(*self._acts, strict=True)
        (act,) = self._chance.choices(acts, weights)
        act()

    def set_going(self) -> None:
        """Resume all that is paused, and free the lanes that a failed job halts."""
        for job in hf.sync.list_jobs(status="paused", limit=100):
            with self._client.asking("resume", job=str(job.id)):
                hf.sync.resume(job.id, by="operator")
        for lane in LANES:
            with self._client.asking("resume lane", lane=lane):
                hf.sync.lane(lane).resume(by="operator")
            with self._client.asking("free lane", lane=lane):
                halted_by = hf.sync.lane(lane).info().halted_by
                if halted_by is not None:
                    hf.sync.cancel(halted_by, by="operator")

    def _pick(self, *states: str) -> Job | None:
        jobs = hf.sync.list_jobs(status=list(states), limit=30).items
        return self._chance.choice(jobs) if jobs else None

    def _cancel(self) -> None:
        if job := self._pick("running") or self._pick("pending", "blocked", "waiting"):
            with self._client.asking("cancel", job=str(job.id)) as answer:
                answer["said"] = str(hf.sync.cancel(job.id, by="operator"))

    def _pause(self) -> None:
        if job := self._pick("running") or self._pick("pending"):
            with self._client.asking("pause", job=str(job.id)) as answer:
                answer["said"] = str(hf.sync.pause(job.id, by="operator"))

    def _resume(self) -> None:
        if job := self._pick("paused"):
            with self._client.asking("resume", job=str(job.id)):
                hf.sync.resume(job.id, by="operator")

    def _retry(self) -> None:
        if job := self._pick("failed", "cancelled"):
            with self._client.asking("retry", job=str(job.id)):
                hf.sync.retry(job.id, by="operator")

    def _complete(self) -> None:
        if job := self._pick("paused", "running", "failed"):
            with self._client.asking("complete", job=str(job.id)) as answer:
                done = hf.sync.complete(TASKS.get(job.task), job.id, BY_HAND, by="operator")
                answer["completed"] = str(done.id)

    def _delete(self) -> None:
        job = self._pick("completed", "failed", "cancelled", "running", "pending", "waiting", "paused")
        if job is not None and job.task in DELETED:
            with self._client.asking("delete", chain=str(job.chain_id)) as answer:
                answer["chains"] = [str(each) for each in hf.sync.delete(job.chain_id)]

    def _trigger(self) -> None:
        if job := self._pick("scheduled"):
            with self._client.asking("trigger", job=str(job.id)):
                hf.sync.trigger(job.id, by="operator")

    def _explain(self) -> None:
        """Ask of some open jobs why they do not run, or that they do."""
        found = hf.sync.list_jobs(status=OPEN, limit=100).items
        for job in self._chance.sample(found, min(EXPLAINED, len(found))):
            with self._client.asking("explain", job=str(job.id)) as answer:
                why = hf.sync.explain(job.id)
                answer["status"] = None if why.job is None else str(why.job.status)
                answer["codes"] = [each.code for each in why.reasons]

    def _hold_lane(self) -> None:
        lane = self._chance.choice(LANES)
        with self._client.asking("pause lane", lane=lane):
            hf.sync.lane(lane).pause(by="operator")
        time.sleep(HELD_LANE_SECONDS)
        with self._client.asking("resume lane", lane=lane):
            hf.sync.lane(lane).resume(by="operator")

    def _skip(self) -> None:
        lane = self._chance.choice(LANES)
        with self._client.asking("skip", lane=lane):
            if hf.sync.lane(lane).info().halted_by is not None:
                hf.sync.lane(lane).skip(by="operator")


def main(seed: str) -> None:
    """Steer until the run is over."""
    operator = Operator(f"{seed} operator {os.getpid()}", Client("operator"))
    while not is_set("over"):
        try:
            if is_set("calm"):
                operator.set_going()
            elif not is_set("stop"):
                operator.act()
        except StoreError:  # to look for something to do
            pass
        except HoldfastError as error:
            raise AssertionError(f"the operator did nothing wrong: {error!r}") from error
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
