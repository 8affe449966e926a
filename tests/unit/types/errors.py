"""The error of a job: its keys are known, and it may be missing."""

from typing import assert_type

from holdfast import Context, Holdfast, Job, JobError

hf = Holdfast("jobs.db")


def explain(job: Job) -> str:
    assert_type(job.error, JobError | None)
    job.error["message"]  # refused
    if job.error is None:
        return "no error"
    assert_type(job.error["type"], str)
    assert_type(job.error["attempt"], int)
    assert_type(job.error.get("traceback"), str | None)
    job.error["mesage"]  # refused
    return job.error["message"]


@hf.task
async def again(ctx: Context, order_id: int) -> None:
    assert_type(ctx.job.error, JobError | None)
