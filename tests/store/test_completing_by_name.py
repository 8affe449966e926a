"""Completing by the name of a task: judged by its types if its code is here, else by what was written of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from holdfast import InvalidInput, InvalidOutput, TransactionRequired, UnknownTask, WrongTask
from tests.support.factories import greet
from tests.support.ways import Way


class Parcel(BaseModel):
    weight: int = Field(gt=0)
    is_fragile: bool = False


class Shipment(BaseModel):
    number: int
    parcels: list[Parcel]


@pytest.fixture
async def chain(way: Way) -> UUID:
    """Start a job of `ship`, whose code is here and nowhere else."""

    @way.hf.task(name="ship", aliases=["old.ship"])
    def ship(order: Shipment) -> Shipment:
        return order

    started = await way.face.start(ship(order=Shipment(number=1, parcels=[])))
    return UUID(str(started.id))


@pytest.fixture
async def outsider(way: Way, new_holdfast: Any) -> AsyncIterator[Way]:
    """Open the same database in a program that has no tasks."""
    other = Way(new_holdfast(way.database), is_async=way.is_async)
    yield other
    await other.close()


GOOD = {"number": 1, "parcels": [{"weight": 2}]}
WRONG = {"number": 1, "parcels": [{"weight": 2}, {"weight": 0}]}
PATH = "output.parcels[1].weight"


@pytest.mark.parametrize("name", ["ship", "old.ship"])
async def test_a_job_is_completed_by_the_name_of_its_task(way: Way, chain: UUID, name: str) -> None:
    await way.face.complete(name, chain, GOOD, by="ada")

    job = await way.face.get_job(chain)
    assert (job.status, job.output) == ("completed", Shipment(number=1, parcels=[Parcel(weight=2)]))


async def test_a_program_without_the_code_completes_it_as_well(outsider: Way, chain: UUID, way: Way) -> None:
    await outsider.face.complete("ship", chain, GOOD, by="ada")

    job = await way.face.get_job(chain)
    assert (job.status, job.output) == ("completed", Shipment(number=1, parcels=[Parcel(weight=2)]))


async def test_the_types_refuse_a_wrong_output(way: Way, chain: UUID) -> None:
    with pytest.raises(InvalidOutput) as refused:
        await way.face.complete("ship", chain, WRONG)

    assert refused.value.path == PATH
    assert refused.value.problems == ((PATH, "input should be greater than 0"),)
    assert (await way.face.get_job(chain)).status == "pending"


async def test_what_was_written_of_the_types_refuses_it_where_the_code_is_not(outsider: Way, chain: UUID) -> None:
    with pytest.raises(InvalidOutput, match="task ship") as refused:
        await outsider.face.complete("ship", chain, WRONG)

    assert refused.value.path == PATH
    assert refused.value.problems == ((PATH, "it must be more than 0"),)
    assert (await outsider.face.get_job(chain)).status == "pending"


async def test_a_value_that_is_no_json_is_refused(outsider: Way, chain: UUID) -> None:
    with pytest.raises(InvalidOutput, match="a tuple would come back as a list"):
        await outsider.face.complete("ship", chain, {"number": 1, "parcels": ()})


async def test_a_name_that_nobody_knows_is_told_with_the_nearest(outsider: Way, chain: UUID) -> None:
    with pytest.raises(UnknownTask, match="did you mean 'ship'"):
        await outsider.face.complete("shop", chain, GOOD)


@pytest.mark.parametrize("name", ["ship", "greet"])
async def test_the_name_of_another_task_is_refused(way: Way, outsider: Way, chain: UUID, name: str) -> None:
    other = await way.face.start(greet(name="Ada"))
    job, output = (other.id, GOOD) if name == "ship" else (chain, "Hello")

    with pytest.raises(WrongTask):
        await outsider.face.complete(name, job, output)


async def test_a_name_is_looked_up_under_the_rule_that_a_connection_is_required(
    way: Way, chain: UUID, new_holdfast: Any
) -> None:
    strict = Way(new_holdfast(way.database, require_connection=True), is_async=way.is_async)

    with pytest.raises(TransactionRequired):
        await strict.face.complete("ship", chain, GOOD)
    await strict.close()


async def test_an_edit_is_judged_in_its_depth_where_the_code_is_not(way: Way, outsider: Way, chain: UUID) -> None:
    await way.face.cancel(chain)

    with pytest.raises(InvalidInput) as refused:
        await outsider.face.retry(chain, arguments={"order": {"parcels": [{"weight": "heavy"}, {"size": 1}]}})

    assert refused.value.path == "arguments.order.parcels[0].weight"
    assert refused.value.problems == (
        ("arguments.order.parcels[0].weight", "it must be of type integer"),
        ("arguments.order.parcels[1].weight", "it is missing"),
    )


async def test_a_start_is_judged_in_its_depth_where_the_code_is_not(outsider: Way, chain: UUID) -> None:
    with pytest.raises(InvalidInput) as refused:
        await outsider.face.start(outsider.hf.call("ship", {"order": {"number": "one", "parcels": []}}))

    assert refused.value.path == "arguments.order.number"
