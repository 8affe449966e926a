"""Unique keys: who holds one, for how long, and what a start that meets it is given."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Status, Unique
from holdfast.store.chains import creation
from tests.support.conditions import until
from tests.support.factories import a_start, add, change_job, continue_chain, events_of, greet, let_keys_expire
from tests.support.ways import Way


async def holders(way: Way) -> list[tuple[Any, ...]]:
    return await way.rows("SELECT task, key, turn, chain_id, scope FROM holdfast_unique ORDER BY task, key, turn")


@pytest.mark.source("JC-43")
async def test_a_start_that_meets_its_key_is_given_the_chain_that_holds_it(way: Way) -> None:
    """I-05."""
    holder = await way.face.start(greet(name="Ada"), unique="ada")

    chain = await way.face.start(greet(name="Bob"), unique="ada")

    assert (chain.id, chain.deduplicated) == (holder.id, True)
    assert (await way.face.get_job(chain)).input.name == "Ada"


@pytest.mark.source("JC-46")
async def test_a_start_that_meets_its_key_makes_neither_job_nor_event(way: Way) -> None:
    holder = await way.face.start(greet(name="Ada"), unique="ada")

    await way.face.start(greet(name="Bob"), unique="ada")

    assert len(await way.face.list_jobs()) == 1
    assert await events_of(way, holder.id) == ["job:enqueued"]


async def test_different_keys_have_different_chains(way: Way) -> None:
    one, other = await way.face.start_many([greet(name="a").options(unique=key) for key in ("a", "b")])

    assert one.id != other.id


@pytest.mark.source("JC-43")
async def test_tasks_never_collide(way: Way) -> None:
    one = await way.face.start(greet(name="Ada"), unique="same")

    other = await way.face.start(add(a=1, b=2), unique="same")

    assert (one.id != other.id, other.deduplicated) == (True, False)


async def test_keys_are_told_apart_to_the_letter(way: Way) -> None:
    keys = ["a", "A", "ä", "a\u0308", "a ", "a%", "a_"]

    started = await way.face.start_many([greet(name="x").options(unique=key) for key in keys])

    assert len({chain.id for chain in started}) == len(keys)


@pytest.mark.parametrize("unique", ["ada", Unique("ada"), Unique("ada", within=60)], ids=["text", "open", "within"])
async def test_a_deleted_chain_frees_its_key(way: Way, unique: Any) -> None:
    first = await way.face.start(greet(name="Ada"), unique=unique)

    await way.face.delete(first)

    second = await way.face.start(greet(name="Ada"), unique=unique)
    assert (second.id != first.id, second.deduplicated) == (True, False)


@pytest.mark.source("JC-44")
async def test_a_key_of_any_scope_is_held_by_a_closed_chain_until_it_is_deleted(way: Way) -> None:
    first = await way.face.start(greet(name="Ada"), unique=Unique("ada", scope="any"))
    await change_job(way, first.id, status="completed", gate=None, closed_as="completed", closed_at=1)

    again = await way.face.start(greet(name="Ada"), unique=Unique("ada", scope="any"))

    assert (again.id, again.status, again.deduplicated) == (first.id, Status.COMPLETED, True)


@pytest.mark.source("JC-45")
async def test_the_window_of_the_holder_counts(way: Way) -> None:
    without = await way.face.start(greet(name="Ada"), unique="ada")

    met = await way.face.start(greet(name="Bob"), unique=Unique("ada", within=0))
    again = await way.face.start(greet(name="Eve"), unique=Unique("ada", within=3600))

    assert [each.id for each in (met, again)] == [without.id] * 2


@pytest.mark.source("JC-44")
async def test_the_scope_of_the_holder_counts(way: Way) -> None:
    first = await way.face.start(greet(name="Ada"), unique=Unique("ada", scope="any"))
    await change_job(way, first.id, status="completed", gate=None, closed_as="completed", closed_at=1)

    again = await way.face.start(greet(name="Ada"), unique=Unique("ada", scope="open"))

    assert again.id == first.id


@pytest.mark.source("DF-4")
async def test_a_key_is_held_while_a_later_step_of_its_chain_is_open(way: Way) -> None:
    first = await way.face.start(greet(name="Ada"), unique="ada")
    await continue_chain(way, first.id, "paused", task="add", input='{"a":1,"b":2}')

    again = await way.face.start(greet(name="Ada"), unique="ada")

    assert (again.id, again.deduplicated) == (first.id, True)
    assert (again.status, again.last_task, again.is_open) == (Status.PAUSED, "add", True)


@pytest.mark.source("JC-45")
async def test_a_key_is_free_once_its_time_is_over(way: Way) -> None:
    unique = Unique("ada", within=timedelta(milliseconds=1))
    first = await way.face.start(greet(name="Ada"), unique=unique)

    async def is_free() -> bool:
        return bool((await way.face.start(greet(name="Ada"), unique=unique)).id != first.id)

    await until(is_free, "the key is free after a millisecond")


@pytest.mark.source("JC-45")
async def test_a_key_is_held_until_its_time_is_over(way: Way) -> None:
    first = await way.face.start(greet(name="Ada"), unique=Unique("ada", within=3600))

    again = await way.face.start(greet(name="Ada"), unique=Unique("ada", within=3600))

    assert again.id == first.id


async def test_the_next_holder_after_a_time_that_is_over_takes_the_next_turn(way: Way) -> None:
    chains = []
    for _ in range(3):
        chains.append(await way.face.start(greet(name="Ada"), unique=Unique("ada", within=3600)))
        await let_keys_expire(way)

    assert await holders(way) == [("greet", "ada", turn, str(chain.id), "open") for turn, chain in enumerate(chains)]


async def test_only_the_last_turn_holds_its_key(way: Way) -> None:
    await way.face.start(greet(name="Ada"), unique=Unique("ada", within=3600))
    await let_keys_expire(way)
    second = await way.face.start(greet(name="Ada"), unique="ada")

    third = await way.face.start(greet(name="Ada"), unique="ada")

    assert (third.id, third.deduplicated) == (second.id, True)


async def test_deleting_a_former_holder_does_not_free_the_key_of_the_present_one(way: Way) -> None:
    former = await way.face.start(greet(name="Ada"), unique=Unique("ada", within=3600))
    await let_keys_expire(way)
    present = await way.face.start(greet(name="Ada"), unique="ada")

    await way.face.delete(former)

    assert (await way.face.start(greet(name="Ada"), unique="ada")).id == present.id


async def test_a_freed_later_turn_is_retired_and_the_next_start_goes_on_from_it(way: Way) -> None:
    await way.face.start(greet(name="Ada"), unique=Unique("ada", within=3600))
    await let_keys_expire(way)
    second = await way.face.start(greet(name="Ada"), unique="ada")

    await way.face.delete(second)
    third = await way.face.start(greet(name="Ada"), unique="ada")

    assert [(turn, chain) for _, _, turn, chain, _ in await holders(way)][-1] == (2, str(third.id))
    assert third.deduplicated is False


async def test_a_freed_first_turn_leaves_nothing_behind(way: Way) -> None:
    chain = await way.face.start(greet(name="Ada"), unique="ada")

    await way.face.delete(chain)

    assert await holders(way) == []


async def test_held_and_free_keys_mix_in_one_batch(way: Way) -> None:
    holder = await way.face.start(greet(name="Ada"), unique="held")
    calls = [greet(name="x").options(unique=key) for key in ("free", "held", "free")] + [greet(name="y")]

    free, held, twin, plain = await way.face.start_many(calls)

    assert (held.id, twin.id) == (holder.id, free.id)
    assert [each.deduplicated for each in (free, held, twin, plain)] == [False, True, True, False]
    assert len(await way.face.list_jobs()) == 3


async def test_a_job_without_a_key_holds_none(way: Way) -> None:
    await way.face.start(greet(name="Ada"))

    assert await holders(way) == []


# ---- handing a key over


@pytest.mark.parametrize("unique", [Unique("same"), Unique("same", within=3600), Unique("same", scope="any")])
async def test_a_start_takes_its_key_over_from_the_chain_it_comes_from(way: Way, unique: Unique) -> None:
    old = await way.face.start(greet(name="old"), unique=unique)

    heir = a_start(unique=Unique("same"))
    (started,) = await way.call(creation.start, [heir], from_chain=old.id)
    new = creation.chain_of(heir, started)
    met = await way.face.start(greet(name="third"), unique="same")

    assert (new.id != old.id, new.deduplicated) == (True, False)
    assert (met.id, met.deduplicated) == (new.id, True)
    await way.face.cancel(old)
    assert (await way.face.start(greet(name="fourth"), unique="same")).id == new.id


async def test_a_key_that_another_chain_holds_is_not_taken_over(way: Way) -> None:
    mine = await way.face.start(greet(name="mine"), unique="other")
    holder = await way.face.start(greet(name="holder"), unique="same")

    (started,) = await way.call(creation.start, [a_start(unique=Unique("same"), from_chain=mine.id)])

    assert started.met is not None
    assert (started.met.id, started.met.deduplicated) == (holder.id, True)


async def test_a_start_that_meets_its_id_leaves_the_key_with_the_chain_it_comes_from(way: Way) -> None:
    old = await way.face.start(greet(name="old"), unique="same")
    twin = await way.face.start(greet(name="twin"))

    await way.call(creation.start, [a_start(id=twin.id, named=True, unique=Unique("same"), from_chain=old.id)])

    assert await way.rows("SELECT chain_id FROM holdfast_unique") == [(str(old.id),)]


async def test_ids_and_keys_that_cross_in_a_batch_free_nobodys_key(way: Way) -> None:
    a, b = uuid4(), uuid4()
    await way.face.start(greet(name="Ada"), id=a, unique="one")
    await way.face.start(greet(name="Bob"), id=b, unique="two")
    before = await holders(way)

    await way.face.start_many(
        [greet(name="Ada").options(id=a, unique="two"), greet(name="Bob").options(id=b, unique="one")]
    )

    assert await holders(way) == before
