"""Edit and retry: other arguments for a job that runs again, checked, kept in its journal, all or nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from holdfast import (
    Holdfast,
    InvalidInput,
    JobNotFound,
    JournalFull,
    StatusConflict,
    UniqueConflict,
)
from holdfast.journals import MOST_ENTRIES
from holdfast.store.jobs import steering
from holdfast.tasks import patches
from holdfast.wire.redaction import REDACTED, Redaction
from tests.support.factories import add, continue_chain, greet, make_job, seq_of, whole_store
from tests.support.ways import Way

ADA = '{"name":"Ada"}'


async def ended(way: Way, status: str = "failed", **columns: Any) -> UUID:
    """Have a job that has ended, and whose input is that of `greet`."""
    return await make_job(way, status, **{"task": "greet", "input": ADA, **columns})


async def entries(way: Way, job: UUID) -> list[tuple[int, str, Any]]:
    """Read the journal of a job."""
    return [(each.attempt, each.kind, each.body) for each in await way.face.journal(job)]


async def said(way: Way, job: UUID) -> list[Any]:
    """Read what the events say by which a job was opened again."""
    return [each.facts for each in await way.face.timeline(job) if each.name == "job:resumed"]


@pytest.mark.parametrize(("verb", "status"), [("retry", "failed"), ("retry", "cancelled"), ("resume", "paused")])
async def test_a_job_runs_again_with_other_arguments_and_its_journal_has_the_former_ones(
    way: Way, verb: str, status: str
) -> None:
    """I-12: the move, its event, the input and the entry are one commit."""
    job = await ended(way, status)

    again = await getattr(way.face, verb)(job, arguments={"name": "Grace"}, by="ops", why="a typo")

    assert (again.status, again.input.name) == ("pending", "Grace")
    assert await entries(way, job) == [
        (0, "holdfast.input", {"by": "ops", "why": "a typo", "input": {"name": "Ada"}}),
    ]
    assert await said(way, job) == [{"by": "ops", "reason": "a typo", "changed": ["name"]}]


async def test_an_edit_that_changes_nothing_is_a_plain_retry(way: Way) -> None:
    job = await ended(way)

    await way.face.retry(job, arguments={"name": "Ada"})

    assert await entries(way, job) == []
    assert await said(way, job) == [{}]


@pytest.mark.parametrize(("before", "after"), [([1], [True]), ([0], [0.0]), ([{"a": [1, 0]}], [{"a": [1, False]}])])
async def test_an_edit_of_what_python_calls_equal_and_json_does_not_is_one(way: Way, before: Any, after: Any) -> None:
    job = await ended(way, task="elsewhere", input=json.dumps({"flags": before}))

    await way.face.retry(job, arguments={"flags": after})

    assert repr((await way.face.get_job(job)).input) == repr({"flags": after})
    assert await said(way, job) == [{"changed": ["flags"]}]


@pytest.mark.parametrize(
    "arguments",
    [{"name": 7}, {"nam": "Grace"}, {"name": None}, {"name": object()}, ["name"], "name"],
)
async def test_arguments_that_the_task_cannot_take_are_refused_and_nothing_has_happened(
    way: Way, arguments: Any
) -> None:
    job = await ended(way)
    before = await whole_store(way)

    with pytest.raises(InvalidInput) as refused:
        await way.face.retry(job, arguments=arguments)

    assert refused.value.path.startswith("arguments")
    assert await whole_store(way) == before


async def test_a_task_that_is_not_known_here_is_judged_by_what_its_owner_wrote_down(
    way: Way, new_holdfast: Any
) -> None:
    job = await ended(way)
    await way.face.start(greet(name="anybody"))  # writes down what the task takes
    stranger = Way(new_holdfast(way.database), is_async=way.is_async)

    with pytest.raises(InvalidInput, match="must be of type string"):
        await stranger.face.retry(job, arguments={"name": 7})
    with pytest.raises(InvalidInput, match="no argument 'nam'"):
        await stranger.face.retry(job, arguments={"nam": "Grace"})
    again = await stranger.face.retry(job, arguments={"name": "Grace"})

    assert again.input == {"name": "Grace"}
    await stranger.close()


async def test_only_what_may_run_again_is_edited(way: Way) -> None:
    completed = await ended(way, "completed")
    running = await ended(way, "running")
    before = await whole_store(way)

    for job in (completed, running):
        with pytest.raises(StatusConflict):
            await way.face.retry(job, arguments={"name": "Grace"})
        with pytest.raises(StatusConflict):
            await way.face.resume(job, arguments={"name": "Grace"})
    with pytest.raises(JobNotFound):
        await way.face.retry(UUID(int=7), arguments={"name": "Grace"})

    assert await whole_store(way) == before


async def test_the_unique_key_of_an_edited_job_stays_as_it_was_given(way: Way) -> None:
    """I-05: the key is a text of the caller's, and no argument is part of it."""
    chain = await way.face.start(greet(name="Ada"), unique="ada")
    await way.face.cancel(chain)
    twin = await way.face.start(greet(name="Ada"), unique="ada")
    before = await whole_store(way)

    with pytest.raises(UniqueConflict):
        await way.face.retry(chain, arguments={"name": "Grace"})
    assert await whole_store(way) == before

    await way.face.cancel(twin)
    await way.face.retry(chain, arguments={"name": "Grace"})
    assert (await way.face.start(greet(name="Ada"), unique="ada")).id == chain.id


async def test_an_edit_goes_to_the_current_job_of_a_chain(way: Way) -> None:
    first = await ended(way, "completed")
    last = await continue_chain(way, first, "failed", task="greet", input=ADA)

    again = await way.face.retry(first, arguments={"name": "Grace"})

    assert (again.id, again.input.name) == (last, "Grace")


async def test_a_journal_that_is_full_refuses_an_edit(way: Way) -> None:
    job = await ended(way)

    async def fill(tx: Any, seq: int) -> None:
        sql = """INSERT INTO holdfast_journal (job, number, attempt, kind, at, body, total, logs)
            VALUES (:job, :number, 1, 'said', 1, '1', 1, 0)"""
        await tx.execute(sql, job=seq, number=MOST_ENTRIES)

    await way.call(fill, await seq_of(way, job))
    before = await whole_store(way)

    with pytest.raises(JournalFull):
        await way.face.retry(job, arguments={"name": "Grace"})
    assert await whole_store(way) == before


async def test_two_edits_at_once_both_count(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes second decides anew, by what the first has left: neither is lost, and both are in the journal."""
    job = await make_job(way, "failed", task="add", input='{"a":1,"b":1}')
    looked = steering.find_input
    is_first = [True]

    async def look(tx: Any, job_id: UUID) -> Any:
        found = await looked(tx, job_id)
        if is_first:
            is_first.clear()
            await tx.execute("SELECT 1")
            return found._replace(input='{"a":0,"b":1}')  # as it was before somebody's edit that is committed by now
        return found

    monkeypatch.setattr(steering, "find_input", look)
    again = await way.face.retry(job, arguments={"b": 2})

    assert (again.input.a, again.input.b) == (1, 2)
    assert [body["input"] for *_, body in await entries(way, job)] == [{"a": 1, "b": 1}]


async def test_an_edit_on_the_callers_connection_commits_with_it(way: Way) -> None:
    """I-02: what the caller rolls back nobody sees."""
    hf: Holdfast = way.hf
    other = await make_job(way, "failed", task="add", input='{"a":1,"b":1}')
    job = await ended(way)
    before = await whole_store(way)

    async def edit(is_kept: bool) -> None:
        if way.is_async:
            async with hf.completing(add, other) as held:
                await hf.retry(job, arguments={"name": "Grace"}, connection=held.tx)
                if not is_kept:
                    raise LookupError
        else:
            with hf.sync.completing(add, other) as held_:
                hf.sync.retry(job, arguments={"name": "Grace"}, connection=held_.tx)
                if not is_kept:
                    raise LookupError

    with pytest.raises(LookupError):
        await edit(is_kept=False)
    assert await whole_store(way) == before

    await edit(is_kept=True)
    assert (await way.face.get_job(job)).input.name == "Grace"
    assert len(await entries(way, job)) == 1


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_does_what_its_rfc_says(target: Any, patch: Any, merged: Any) -> None:
    """The examples of RFC 7396 whose target is an object."""
    assert patches.merge(target, patch) == merged


# what the editor was not shown


async def test_what_was_hidden_from_the_editor_stays_as_it_was(way: Way) -> None:
    @way.hf.task(name="pay", redact=["card.number"])
    async def pay(card: dict[str, str], password: str, note: str) -> None:
        """Take the money."""

    arguments: dict[str, Any] = {"card": {"number": "4111", "name": "Ada"}, "password": "hunter2", "note": "old"}
    chain = await way.face.start(pay(**arguments), paused=True)
    shown = Redaction(paths=("card.number",)).value(arguments)

    again = await way.face.resume(chain, arguments={**shown, "note": f"new {REDACTED}"})

    stored = {name: getattr(again.input, name) for name in arguments}
    assert stored == arguments | {"note": f"new {REDACTED}"}
    assert [each["changed"] for each in await said(way, chain.id)] == [["note"]]


async def test_the_sign_for_what_is_hidden_is_a_text_like_any_other_elsewhere(way: Way) -> None:
    job = await ended(way)

    assert (await way.face.retry(job, arguments={"name": REDACTED})).input.name == REDACTED


async def test_a_program_without_the_code_knows_what_was_hidden_too(
    way: Way, new_holdfast: Callable[..., Holdfast]
) -> None:
    @way.hf.task(name="pay", redact=["card.*"])
    async def pay(card: dict[str, str], note: str) -> None:
        """Take the money."""

    chain = await way.face.start(pay(card={"number": "4111"}, note="old"), paused=True)
    server = Way(new_holdfast(way.database), way.is_async)

    again = await server.face.resume(chain.id, arguments={"card": {"number": REDACTED}, "note": "new"})
    await server.close()

    assert again.input == {"card": {"number": "4111"}, "note": "new"}
