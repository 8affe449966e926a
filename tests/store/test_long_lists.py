"""Every verb takes 5,000 jobs, and needs no better plans than the statistics of an emptied table give (I-72).

PostgreSQL multiplies the pages of a table by the rows that a page had when it was last analysed. If that was when the
table had just been emptied, it takes a table of any size for one of a single row, and joins by looping over all of it.
Reading a whole table once is then no mistake, for its pages are counted rightly. A product of two lists is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from holdfast import Holdfast, Tasks, TooMany
from holdfast.database.dialect import PostgresDialect, SqliteDialect
from holdfast.database.postgres.tx import PostgresTx
from holdfast.database.tx import Database, Row, drive
from holdfast.ids import MOST_AT_ONCE
from holdfast.models import Asked, Start, Unique
from holdfast.store import polls, reads
from holdfast.store.chains import blockers, creation, deletes
from holdfast.store.jobs import steering
from tests.store.plans import nodes_below, numbered
from tests.store.steps import take_steps

JOBS = 1_000
MOST_READ = 30 * JOBS
"""Each job is looked at some times by a statement; each by each would be a million."""
SAVEPOINTS = ("SAVEPOINT", "ROLLBACK TO", "RELEASE")
TABLES = ("job", "event", "blocker", "unique", "lane", "phase")


class ExplainingTx:
    """Has every statement explained and run before it is run, and notes those that look at too many rows."""

    database: Database = "postgres"

    def __init__(self, connection: psycopg.Connection[Any], dialect: PostgresDialect) -> None:
        self.too_many: list[str] = []
        self._connection = connection
        self._dialect = dialect
        self._tx = PostgresTx(connection, dialect)

    async def execute(self, sql: str, /, **values: object) -> None:
        """Run *sql* and throw its rows away."""
        if not sql.startswith(SAVEPOINTS):
            self._explain(sql, values)
        await self._tx.execute(sql, **values)

    async def fetch_all(self, sql: str, /, **values: object) -> list[Row]:
        """Run *sql* and return all of its rows."""
        self._explain(sql, values)
        return await self._tx.fetch_all(sql, **values)

    def _explain(self, sql: str, values: dict[str, object]) -> None:
        statement = self._dialect.compile(sql, values)
        text, names = numbered(statement)
        given = self._dialect.bind(statement, values)
        arguments = ", ".join(psycopg.sql.Literal(given[name]).as_string(self._connection) for name in names)
        self._connection.execute(f"PREPARE explained AS {text}")
        with self._connection.transaction(force_rollback=True):
            explain = f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) EXECUTE explained{f'({arguments})' if names else ''}"
            ((answer,),) = self._connection.execute(explain).fetchall()
        self._connection.execute("DEALLOCATE explained")
        read = sum(map(_looked_at, nodes_below(answer[0]["Plan"])))
        if read > MOST_READ:
            self.too_many.append(f"{read} rows: {sql}")


def _looked_at(node: dict[str, Any]) -> int:
    removed = sum(int(value) for name, value in node.items() if name.startswith("Rows Removed by"))
    is_scan = "Relation Name" in node and node["Node Type"] != "ModifyTable"
    return int(((node["Actual Rows"] if is_scan else 0) + removed) * node["Actual Loops"])


@pytest.fixture
def emptied(postgres_url: str) -> Iterator[ExplainingTx]:
    """Our tables, analysed when they had just been emptied."""
    dialect = PostgresDialect(f"lists_{uuid4().hex[:8]}")
    # else psycopg prepares statements, throws all that are prepared away at a rollback, and the explained one with them
    own = psycopg.connect(postgres_url, prepare_threshold=None)
    with own as connection, connection.transaction(force_rollback=True):
        tx = PostgresTx(connection, dialect)
        take_steps(tx)
        connection.execute("SET plan_cache_mode = force_custom_plan")
        for kind in KINDS.values():
            start(tx, kind(tx))
        for table in TABLES:
            connection.execute(f"DELETE FROM {dialect.table(f'holdfast_{table}')}")
            connection.execute(f"ANALYZE {dialect.table(f'holdfast_{table}')}")
        yield ExplainingTx(connection, dialect)


def start(tx: Any, starts: Sequence[Start]) -> list[UUID]:
    """Start them; give their ids."""
    drive(creation.start(tx, starts))
    return [each.id for each in starts]


def _starts(**given: Any) -> list[Start]:
    return [Start(id=uuid4(), task="greet", input="{}", queue="default", **given) for _ in range(JOBS)]


def _with_keys(tx: Any) -> list[Start]:
    return [each._replace(unique=Unique(f"key-{nr}")) for nr, each in enumerate(_starts())]


def _in_lanes(tx: Any) -> list[Start]:
    return [each._replace(lane=f"lane-{nr}") for nr, each in enumerate(_starts())]


def _blocked(tx: Any) -> list[Start]:
    waited_for = start(tx, _starts())
    return [each._replace(blockers=(blocker,)) for each, blocker in zip(_starts(), waited_for, strict=True)]


async def _steer(verb: Any, ids: Sequence[UUID], tx: Any) -> None:
    await steering.at_once(tx, verb, ids, Asked())


KINDS: dict[str, Callable[[Any], list[Start]]] = {
    "plain": lambda tx: _starts(),
    "with unique keys": _with_keys,
    "in lanes": _in_lanes,
    "blocked": _blocked,
}


@pytest.mark.parametrize(
    "kind", ["plain", *(pytest.param(each, marks=pytest.mark.long) for each in KINDS if each != "plain")]
)
def test_verbs_on_lists_stay_linear_after_an_emptied_table_was_analysed(emptied: ExplainingTx, kind: str) -> None:
    """A8."""
    ids = start(emptied, KINDS[kind](emptied))
    again = [(each, uuid4()) for each in ids]

    for operation in (
        lambda tx: polls.chain_results(tx, ids),
        lambda tx: polls.closed_chains(tx, ids),
        lambda tx: reads.chains_by_id(tx, ids),
        *(partial(_steer, verb, ids) for verb in (steering.pause, steering.resume, steering.cancel, steering.retry)),
        lambda tx: creation.start_again(tx, again, {}),
        lambda tx: deletes.delete(tx, ids, cascade=True),
    ):
        drive(operation(emptied))

    assert emptied.too_many == []


@pytest.mark.long
def test_those_who_wait_for_the_jobs_of_a_list_are_found_by_their_keys(emptied: ExplainingTx) -> None:
    """A8: when the jobs of a list end, and when they open again."""
    waited_for = [str(each) for each in start(emptied, _starts())]
    waiting = [
        each._replace(unique=Unique(f"key-{nr}"), blockers=(UUID(waited_for[nr]),)) for nr, each in enumerate(_starts())
    ]
    start(emptied, waiting)
    for state, job in (("armed", "status = 'blocked'"), ("failed", "status = 'failed', gate = NULL")):
        drive(emptied.execute(f"UPDATE holdfast_blocker SET state = '{state}'"))
        drive(emptied.execute(f"UPDATE holdfast_job SET {job} WHERE unique_key IS NOT NULL"))
        emptied.too_many.clear()  # of these two, which change every row

        drive(blockers.release(emptied, dict.fromkeys(waited_for, "cancelled")))

        assert emptied.too_many == []


@pytest.mark.long
def test_keys_that_ended_chains_still_hold_are_found_by_their_keys(emptied: ExplainingTx) -> None:
    """A8: a chain that is started again takes the key over."""
    kept = [each._replace(unique=Unique(f"key-{nr}", scope="any")) for nr, each in enumerate(_starts())]
    ids = start(emptied, kept)
    drive(_steer(steering.cancel, ids, emptied))
    emptied.too_many.clear()

    drive(creation.start_again(emptied, [(each, uuid4()) for each in ids], {}))

    assert emptied.too_many == []


@pytest.mark.long
def test_joined_by_plain_equality_the_same_list_would_be_a_product(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(PostgresDialect, "is_value", SqliteDialect.is_value)
    emptied: ExplainingTx = request.getfixturevalue("emptied")

    drive(polls.chain_results(emptied, start(emptied, _starts())))

    assert "JOIN holdfast_job" in emptied.too_many[0]


VERBS = [
    "wait", "delete_many", "cancel_many", "pause_many", "resume_many", "retry_many", "reschedule_many", "trigger_many",
    "start_again_many", "start_many",
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS)
def test_a_list_that_is_too_long_is_refused_before_any_sql(verb: str) -> None:
    """A8."""
    tasks = Tasks()

    @tasks.task(name="greet")
    def greet(name: str) -> None: ...

    face = Holdfast("postgresql://nobody@127.0.0.1:1/nowhere", tasks=[tasks]).sync
    item = (lambda: greet(name="Ada")) if verb == "start_many" else uuid4
    options = {"after": 60} if verb == "reschedule_many" else {}

    with pytest.raises(TooMany, match="the list has 5,001 items, and one call takes at most 5,000") as error:
        getattr(face, verb)([item() for _ in range(MOST_AT_ONCE + 1)], **options)

    assert (error.value.count, error.value.most) == (5_001, 5_000)
