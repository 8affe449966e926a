"""Events: a listener's argument follows from the names it is given to, and wrong names are refused."""

from typing import assert_type

from holdfast import Event, Holdfast, Job, JobEvent

hf = Holdfast("jobs.db")


@hf.on("job:completed", "job:failed")
def of_a_job(event: JobEvent) -> None:
    assert_type(event.job, Job)


@hf.on("job:completed")
async def of_any_kind(event: Event) -> None:
    assert_type(event.job, Job | None)


@hf.on("job:completed", "lane:halted")
async def of_jobs_and_lanes(event: Event) -> None:
    assert_type(event.lane, str | None)


assert_type(of_a_job(JobEvent.__new__(JobEvent)), None)


@hf.on("lane:halted")  # refused
def of_no_job(event: JobEvent) -> None: ...


hf.on("job:complete")  # refused
hf.on("job:completed", "job:done")  # refused
hf.on()  # refused
hf.on("job:completed")(7)  # refused
hf.off(7)  # refused


async def follow() -> None:
    async for event in hf.events(names=["job:completed"], tasks="greet", after=await hf.cursor()):
        assert_type(event, Event)
        assert_type(event.cursor, str)
    async with hf.events() as events:
        assert_type(events.cursor, str)
        assert_type(await anext(events), Event)
    async for job in hf.watch("00000000-0000-0000-0000-000000000000"):
        assert_type(job, Job)
    for told in await hf.timeline("00000000-0000-0000-0000-000000000000"):
        assert_type(told, Event)
    hf.events(names="job:done")  # refused
    hf.events(name="job:completed")  # refused
    for _ in hf.events():  # refused
        pass


def follow_blocking() -> None:
    for event in hf.sync.events(names="job:completed", after=hf.sync.cursor()):
        assert_type(event, Event)
    with hf.sync.events() as events:
        assert_type(events.cursor, str)
        assert_type(next(events), Event)
    for job in hf.sync.watch("00000000-0000-0000-0000-000000000000"):
        assert_type(job, Job)
    hf.sync.on("job:done")  # refused
