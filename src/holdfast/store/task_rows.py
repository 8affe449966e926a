"""The `task` rows: what a stranger to the code must know of a task, written by those who have the code."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.database.tx import Tx, repeatable
from holdfast.models import TaskRecord

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


async def policies(tx: Tx) -> dict[str, str]:
    """Read what is written down of all tasks: how their jobs are dealt with, as JSON."""
    return dict(await tx.fetch_all(POLICIES))


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
