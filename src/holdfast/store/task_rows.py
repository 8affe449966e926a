"""The `task` rows: what a stranger to the code must know of a task, written by those who have the code."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.database.tx import Tx, repeatable
from holdfast.errors import Unreadable
from holdfast.models import TaskRecord
from holdfast.outcomes import Retry
from holdfast.unreadable import json_or_text, tell

if TYPE_CHECKING:
    from holdfast.questions import Question

VERSIONS = """SELECT name, version FROM holdfast_task WHERE name $any(names: text)"""


async def changed(tx: Tx, records: Sequence[TaskRecord]) -> list[TaskRecord]:
    """Give those of *records* that are not yet written down as they are; usually none, so usually no write."""
    if not records:
        return []
    written: dict[str, str] = dict(await tx.fetch_all(VERSIONS, names=[each.name for each in records]))
    return [each for each in records if written.get(each.name) != each.version]


RECORD = """
    INSERT INTO holdfast_task (name, version, policy, input_schema, output_schema, updated_at)
    SELECT given.name, given.version, given.policy, given.input_schema, given.output_schema, $now
    FROM $list(given: name text, version text, policy text, input_schema text, output_schema text)
    WHERE true
    ORDER BY given.name
    ON CONFLICT (name) DO UPDATE SET version = excluded.version, policy = excluded.policy,
        input_schema = excluded.input_schema, output_schema = excluded.output_schema, updated_at = $now"""


@repeatable
async def record(tx: Tx, records: Sequence[TaskRecord]) -> None:
    """Write *records* down, over what was there."""
    given = [(each.name, each.version, each.policy, each.input_schema, each.output_schema) for each in records]
    if given:
        await tx.execute(RECORD, given=given)


POLICIES = """SELECT name, policy FROM holdfast_task"""
POLICIES_OF = """SELECT name, policy FROM holdfast_task WHERE name $any(names: text)"""


async def policies(tx: Tx) -> dict[str, Mapping[str, Any]]:
    """Read what is written down of all tasks: how their jobs are dealt with."""
    return {name: read_policy(name, policy) for name, policy in await tx.fetch_all(POLICIES)}


async def policies_of(tx: Tx, names: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Read how the jobs of the tasks *names* are dealt with; what nobody has written down is as usual."""
    rows = await tx.fetch_all(POLICIES_OF, names=sorted(names)) if names else []
    return dict.fromkeys(names, AS_USUAL) | {name: read_policy(name, policy) for name, policy in rows}


class Asking(NamedTuple):
    """A task whose jobs a person completes: in which *queue* they wait, and what answers them, as JSON Schema."""

    name: str
    queue: str
    question: Question
    output_schema: str


ASKING = """SELECT name, policy, output_schema FROM holdfast_task WHERE policy LIKE '%"asks":%'"""


async def asking(tx: Tx) -> dict[str, Asking]:
    """Read which tasks ask a person, by their names."""
    from holdfast.questions import PEOPLE, Question

    found: dict[str, Asking] = {}
    for name, text, schema in await tx.fetch_all(ASKING):
        policy = read_policy(name, text)
        if (question := Question.of_policy(policy)) is not None:
            queue = policy.get("queue")
            found[name] = Asking(name, queue if isinstance(queue, str) else PEOPLE, question, schema)
    return found


REDACTING = """SELECT name, CASE WHEN policy LIKE '%"redact":%' THEN policy END FROM holdfast_task"""


async def redactions(tx: Tx) -> dict[str, tuple[str, ...]]:
    """Read which paths of input and output are hidden, of every task that is written down."""
    return {name: _redacted(name, policy) for name, policy in await tx.fetch_all(REDACTING)}


def _redacted(name: str, text: str | None) -> tuple[str, ...]:
    paths = None if text is None else read_policy(name, text).get("redact")
    return tuple(each for each in paths if isinstance(each, str)) if isinstance(paths, list) else ()


AS_USUAL: Mapping[str, Any] = MappingProxyType({"attempts": Retry().attempts})
"""The policy of a task of which nothing is known."""


def read_policy(name: str, text: str) -> Mapping[str, Any]:
    """Read the policy of the task *name*; one that cannot be read is told once, and is as usual."""
    policy = json_or_text(text)
    if not isinstance(policy, dict):
        tell(Unreadable("holdfast_task", name, "its policy is no JSON object"))
        return AS_USUAL
    if not isinstance(policy.get("attempts"), int | None):
        tell(Unreadable("holdfast_task", name, "the attempts of its policy are no number"))
        return {**policy, **AS_USUAL}
    return policy


FIND = """
    SELECT name, version, policy, input_schema, output_schema FROM holdfast_task
    WHERE name $any(names: text)"""


async def find(tx: Tx, names: Sequence[str]) -> list[TaskRecord]:
    """Read the records of *names*, as far as they are there."""
    rows = await tx.fetch_all(FIND, names=names)
    return [
        TaskRecord(name=name, version=version, policy=policy, input_schema=input_schema, output_schema=output_schema)
        for name, version, policy, input_schema, output_schema in rows
    ]
