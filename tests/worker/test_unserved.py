"""A worker says what it does not run: no tasks, jobs of unknown tasks or queues, tasks that came too late."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import pytest

from holdfast import Holdfast
from holdfast.runtime import Runtime
from holdfast.store import polls, workers
from holdfast.store.workers import Member
from holdfast.worker.options import wants_of
from holdfast.worker.upkeep import unserved
from holdfast.worker.upkeep.reaper import Upkeep
from holdfast.worker.upkeep.unserved import UnservedJobs
from tests.support.conditions import until
from tests.support.log_lines import lines, named


@pytest.fixture(params=["sqlite", "postgres"])
async def hf(
    request: pytest.FixtureRequest, new_holdfast: Callable[..., Holdfast], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Holdfast]:
    """A face on each database with the task `send_mail`; a job has waited long when it is there."""
    monkeypatch.setattr(unserved, "WAITED_MS", -60_000)
    made = new_holdfast(request.param)

    @made.task(name="send_mail")
    async def send_mail(to: str) -> None: ...

    await made.open()
    yield made
    await made.close()


START = "start a worker with `holdfast worker APP --queues"


def look_of(hf: Holdfast) -> UnservedJobs:
    return UnservedJobs(hf.store, "worker-own", wants_of(hf.tasks, None), hf.tasks)


async def test_a_worker_without_tasks_says_so(
    new_holdfast: Callable[..., Holdfast], caplog: pytest.LogCaptureFixture
) -> None:
    """B4."""
    async with new_holdfast("sqlite") as hf, hf.worker():
        await until(lambda: "worker_has_no_tasks" in lines(caplog), "it says so")


@dataclass
class Mail:
    to: str


async def test_a_worker_names_jobs_that_no_worker_runs_with_near_names(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    """B4."""
    misspelt = hf.declare("send_mial", Mail, None)
    await hf.start(hf.tasks.get("send_mail")(to="Ada").options(queue="defualt"))
    await hf.start(misspelt(to="Ada"))
    async with hf.worker():
        await until(lambda: lines(caplog).count("jobs_not_served") == 2, "it says so")

    assert [each.getMessage() for each in named(caplog, "jobs_not_served")] == [
        f"Jobs of task {task} wait in queue {queue}, and no worker runs them: {advice}"
        for queue, task, advice in (
            ("default", "send_mial", "no worker of queue 'default' has task 'send_mial'; did you mean 'send_mail'?"),
            ("defualt", "send_mail", f"no worker serves queue 'defualt'; did you mean 'default'? Or {START} defualt`"),
        )
    ]


@pytest.mark.parametrize("priority", [-100, 100])
async def test_how_long_a_job_has_waited_does_not_depend_on_its_priority(hf: Holdfast, priority: int) -> None:
    """Its place in the order of claims is a time, too: for each point of priority a minute earlier or later."""
    await hf.start(hf.tasks.get("send_mail")(to="Ada"), priority=priority)

    found = [await hf.store.read(polls.is_left_waiting, "default", "send_mail", each) for each in (-60_000, 60_000)]

    assert found == [True, False]


async def test_the_queue_that_a_task_names_is_not_taken_for_a_typo(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    @hf.task(name="mail", queue="email")
    async def mail() -> None: ...

    await hf.start(mail())
    await UnservedJobs(hf.store, "worker-own", wants_of(hf.tasks, ["emial"]), hf.tasks).look()

    (said,) = named(caplog, "jobs_not_served")
    assert said.getMessage().endswith(f"no worker serves queue 'email' (workers serve 'emial'); {START} email`")


async def test_a_worker_looks_once_more_soon_after_its_start(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    upkeep = Upkeep(hf.store, Runtime(), [], unserved=look_of(hf))
    await upkeep.step()
    await hf.start(hf.tasks.get("send_mail")(to="Ada").options(queue="defualt"))
    await upkeep.step()
    await upkeep.step()

    assert lines(caplog).count("jobs_not_served") == 1


async def test_jobs_that_another_worker_runs_are_not_named(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
    await hf.start(hf.tasks.get("send_mail")(to="Ada").options(queue="bulk"))
    await hf.store.run(workers.beat, Member.here("worker-other", queues=["bulk"], tasks=["send_mail"]))

    await look_of(hf).look()
    served = "jobs_not_served" in lines(caplog)
    await hf.store.run(workers.forget, ["worker-other"])
    look = look_of(hf)
    await look.look()
    await look.look()

    assert (served, lines(caplog).count("jobs_not_served")) == (False, 1)


async def test_a_task_that_is_registered_after_the_worker_started_is_named(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    """B4."""
    look = look_of(hf)

    @hf.task(name="late")
    async def late() -> None: ...

    await look.look()
    await look.look()

    (said,) = named(caplog, "tasks_registered_late")
    assert "it does not run them: late;" in said.getMessage()
