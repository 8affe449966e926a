"""Why a job of a tenant does not run: the tenant itself may be the reason."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.database.tx import Tx
from holdfast.errors import NotMigrated, WaitTimeout
from holdfast.explanations import Suspended, TenantBroken
from holdfast.store import tenants
from tests.law.reasons import wrong_reasons
from tests.support.conditions import until
from tests.support.factories import greet, make_job
from tests.support.remedies import Helper
from tests.support.ways import Way
from tests.tenants.conftest import Control


async def test_a_suspended_tenant_is_a_reason_until_it_is_resumed(control: Control) -> None:
    await control.tenants.create("acme")
    way = control.way("acme")
    job = await way.face.start(greet(name="Ada"))
    helper = Helper(way)
    assert [each.code for each in (await way.face.explain(job)).reasons] == ["no_worker"]
    changed = await control.tenants.suspend("acme", by="ada", why="unpaid")

    found = await way.face.explain(job)
    assert [each.code for each in found.reasons] == ["tenant_suspended"]
    reason = found.reasons[0]
    assert reason == Suspended("acme", "ada", "unpaid", changed.changed_at)
    assert reason.text == "tenant 'acme' is suspended by ada (unpaid)"
    assert reason.remedy is not None
    assert reason.remedy.python == "hf.tenants.resume('acme')"
    assert (reason.ends_at, found.until) == (None, None)
    assert wrong_reasons("pending", [each.code for each in found.reasons]) is None
    queue = await way.face.explain_queue("default")
    assert [each.code for each in queue.reasons] == ["tenant_suspended"]

    await helper.carry_out(reason.remedy)
    await helper.carry_out((await way.face.explain(job)).reasons[0].remedy)  # a worker
    await until(lambda: has_ended(control, job.id), "the job has run")
    await helper.close()


async def test_the_worker_that_a_tenant_lacks_is_one_for_tenants(control: Control) -> None:
    await control.tenants.create("acme")
    way = control.way("acme")
    job = await way.face.start(greet(name="Ada"))
    mail = await way.face.start(greet(name="Ada").options(queue="mail"))
    advice = (
        "no worker serves queue 'default' of tenant 'acme'; start a worker with `holdfast worker APP --tenant acme=1`"
    )

    (reason,) = (await way.face.explain(job)).reasons
    (of_mail,) = (await way.face.explain(mail)).reasons
    (of_queue,) = (await way.face.explain_queue("default")).reasons
    with pytest.raises(WaitTimeout, match="--tenant acme=1`"):
        await way.face.wait([job], timeout=0)

    assert (reason.text, of_queue.text) == (advice, advice)
    assert [each.remedy and each.remedy.python for each in (reason, of_mail)] == [
        "hf.worker(tenants={'acme': 1})",
        "hf.worker(queues=['mail'], tenants={'acme': 1})",
    ]


async def test_an_idle_tenant_that_a_worker_serves_lacks_none(control: Control) -> None:
    """I-57: its worker is opened when there is work, so its own tables name none."""
    await control.tenants.create("acme")
    way = control.way("acme")
    job = await way.face.start(greet(name="Ada").options(delay=3_600))
    assert await codes_of(way, job) == ["not_due", "no_worker"]

    async with control.hf.worker(tenants={"globex": 1}, name="other") as other:
        await until(lambda: is_listed(control, other.id), "a worker of other tenants gives a sign")
        assert await codes_of(way, job) == ["not_due", "no_worker"]
    async with control.hf.worker(tenants={"*": 1}, concurrency=7) as host:
        await until(lambda: is_listed(control, host.id), "the worker gives a sign")

        assert await codes_of(way, job) == ["not_due"]
        assert [each.code for each in (await way.face.explain_queue("default")).reasons] == ["moving"]
        assert [each.code for each in (await way.face.explain_queue("mail")).reasons] == ["no_worker"]
        (told,) = control.hf.sync.list_workers()
        assert (told.tenants, told.queues, told.slots, told.is_alive) == ({"*": 1}, ("default", "sums"), 7, True)
        (lost,) = (await control.hf.explain_queue("default")).reasons
        assert (lost.code, lost.facts["beside_hosts"]) == ("no_worker", True)
        assert "those that live serve tenants alone; start the job in its tenant with hf.tenant(name)" in lost.text
        stray = control.hf.sync.start(greet(name="by mistake"))
        assert [each.text for each in control.hf.sync.explain(stray).reasons] == [lost.text]
        assert await way.face.list_workers() == []
        assert {each.name: each.served_by for each in await way.face.list_queues()}["default"] == (host.id,)
        assert {each.name: each.served_by for each in await way.face.list_tasks()}["greet"] == (host.id,)

    assert await codes_of(way, job) == ["not_due", "no_worker"]
    assert control.hf.sync.list_workers() == []


@pytest.mark.parametrize("name", ["watch", "watch-1"])
async def test_a_worker_of_tenants_is_listed_whatever_its_name(control: Control, name: str) -> None:
    async with control.hf.worker(tenants={"*": 1}, name=name) as host:
        await until(lambda: is_listed(control, host.id), "the worker gives a sign")


async def codes_of(way: Way, job: Any) -> list[str]:
    return [each.code for each in (await way.face.explain(job)).reasons]


def is_listed(control: Control, worker: str) -> bool:
    return worker in [each.id for each in control.hf.sync.list_workers()]


async def test_who_waits_in_a_suspended_tenant_is_told_of_that(control: Control) -> None:
    await control.tenants.create("acme")
    way = control.way("acme")
    job = await way.face.start(greet(name="Ada"))
    await control.tenants.suspend("acme", by="ada", why="unpaid")

    with pytest.raises(WaitTimeout, match=r"tenant 'acme' is suspended by ada \(unpaid\)") as late:
        await way.face.wait([job], timeout=0)

    assert "no worker" not in str(late.value)


async def has_ended(control: Control, job: object) -> bool:
    return str((await control.way("acme").hf.get_job(job)).status) == "completed"  # type: ignore[arg-type]


@pytest.mark.parametrize("status", ["running", "completed", "failed", "cancelled"])
async def test_what_runs_or_has_ended_is_not_kept_by_its_tenant(control: Control, status: str) -> None:
    await control.tenants.create("acme")
    way = control.way("acme")
    job = await make_job(way, status)
    before = await way.face.explain(job)
    await control.tenants.suspend("acme")

    assert [each.code for each in (await way.face.explain(job)).reasons] == [each.code for each in before.reasons]


async def test_a_paused_job_of_a_suspended_tenant_has_both_reasons(control: Control) -> None:
    await control.tenants.create("acme")
    way = control.way("acme")
    job = await make_job(way, "paused")
    await control.tenants.suspend("acme")

    codes = [each.code for each in (await way.face.explain(job)).reasons]

    assert codes[:2] == ["paused", "tenant_suspended"]
    assert wrong_reasons("paused", codes) is None


async def test_what_workers_say_of_a_tenant_is_a_reason_until_they_serve_it_again(control: Control) -> None:
    await control.tenants.create("acme")
    way = control.way("acme")
    job = await way.face.start(greet(name="Ada"))
    control.hf.store.run_sync(tenants.note_trouble, [("acme", "disk full")])
    row = await control.tenants.get("acme")

    found = await way.face.explain(job)
    assert [each.code for each in found.reasons] == ["tenant_broken", "no_worker"]
    reason = found.reasons[0]
    assert reason == TenantBroken("acme", "disk full", row.trouble_at)
    assert reason.text.startswith("the place of tenant 'acme' cannot be used since ")
    assert reason.text.endswith(": disk full")
    assert reason.remedy is None
    control.hf.store.run_sync(tenants.note_trouble, [("acme", None)])
    assert [each.code for each in (await way.face.explain(job)).reasons] == ["no_worker"]


async def test_tables_that_cannot_be_read_are_a_reason_and_no_error(control: Control) -> None:
    await control.tenants.create("acme")
    way = control.way("acme")
    job = await way.face.start(greet(name="Ada"))

    async def rename(tx: Tx, old: str, new: str) -> None:
        await tx.execute(f'ALTER TABLE $schema_name."{old}" RENAME TO "{new}"')

    way.hf.store.run_sync(rename, "holdfast_worker", "set_aside")
    found, queue = await way.face.explain(job), await way.face.explain_queue("default")
    control.hf.store.run_sync(tenants.note_trouble, [("acme", "no such table")])
    told = await way.face.explain(job)
    way.hf.store.run_sync(rename, "set_aside", "holdfast_worker")
    control.hf.store.run_sync(tenants.note_trouble, [("acme", None)])

    assert found.job is None
    for each in (found, queue):
        (reason,) = each.reasons
        assert isinstance(reason, TenantBroken)
        assert "holdfast_worker" in reason.error
        assert reason.since is None
    (reason,) = told.reasons
    assert isinstance(reason, TenantBroken)
    assert (reason.error, reason.since is None) == ("no such table", False)
    async with way.hf.worker(poll=0.1):
        await until(lambda: has_ended(control, job.id), "the job has run")


async def test_a_tenant_of_an_older_schema_is_explained(control: Control) -> None:
    await control.tenants.create("acme")
    way = control.way("acme")
    job = await way.face.start(greet(name="Ada"))

    async def age(tx: Tx) -> None:
        await tx.execute("UPDATE holdfast_meta SET value = '5' WHERE key = 'schema'")

    way.hf.store.run_sync(age)
    await way.close()

    with pytest.raises(NotMigrated):
        await way.face.get_job(job)
    (reason,) = (await way.face.explain(job)).reasons
    assert reason.code == "tenant_broken"
    assert "holdfast migrate --tenants" in reason.text
