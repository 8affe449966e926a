"""The few differences between the two databases, as fragments of one SQL text.

    $now                       the statement's time in milliseconds, by the database's clock
    $locked                    lock the rows, wait for them      (SQLite: one writer at a time, nothing to say)
    $skip_locked               lock the rows, pass over those that somebody holds
    $has_written               this transaction has written something, or locked a row       (SQLite: as if it had)
    $skip_locked_jobs          the same where the job table is joined with a list
    $nobody_else               nobody else is just making or removing the row of this `key`    (SQLite: always so)
    $schema, $schema_name      the schema as a text and as a name
    $hint, $hint_sleepers      true; and a hint is sent with the commit, the second only if somebody sleeps
    $hint_readers              the same if one who follows the log sleeps, and only to those who do
    $oldest, $newest           the oldest transaction under way, and the next one to begin, of this snapshot
    $any(ids: text)            `= ANY` of a list parameter
    $free(seqs)                any job of a list parameter that nobody has locked, which locks it   (SQLite: any job)
    $in(SELECT …)              `= ANY` of a subselect, which PostgreSQL then runs first and once
    $is(expression)            `=`, for a join that looks each row up by its key, whatever the planner believes
    $json_array, $json_rows    the functions that make a JSON array of values, and of the rows of a group
    $position(text, words)     where the words begin in the text; 0 if they are not there
    $list(given: id text, …)   a table made of one list parameter; its column `nr` counts the rows
    $in_order(given)           ORDER BY what counts them, where nothing else is joined; SQLite reads a list in its order
    :name                      a value

Tables are written `holdfast_job`; the schema is put in front, so that no `search_path` and no temporary table, ours or
a caller's, decides what a statement means. One that has a schema in front already is left as it is.

Each text is compiled once in a process for all stores whose fragments are the same, and kept in two forms: for lists of
any length, and for lists of one row, whose cells are then plain values. A single start is the usual one, and to unpack
its list cost more than the rest: both INSERTs of a start took 412 µs instead of 567 on PostgreSQL, 53 instead of 67 on
SQLite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

Columns: TypeAlias = Sequence[tuple[str, str]]
NO_VALUES: Mapping[str, object] = MappingProxyType({})

TABLES = (
    "job", "jobs", "phase", "blocker", "unique", "lane", "queue", "task", "event", "subscription", "schedule", "tick",
    "worker", "audit", "token", "meta", "delivery", "outbox", "journal", "tally", "tenant",
    "session",
)  # fmt: skip

NUL = "\0"

LOCK_SPACE = 0x686F6C64 << 32
"""Where our advisory locks are, apart from those of the program whose database it is."""

# one pass; what comes first wins, so nothing inside a literal or a quoted name is taken for a parameter
TOKEN = re.compile(
    rf"""
      (?P<comment> --[^\n]* )
    | (?P<literal> '(?:[^']|'')*' | "[^"]*" )
    | \$list\( (?P<list>\w+) : (?P<columns>[^)]+) \)
    | \$in_order\( (?P<order>\w+) \)
    | \$any\( (?P<any>\w+) : \s* (?P<kind>\w+) \)
    | \$free\( (?P<free>\w+) \)
    | (?P<open> \$(?P<opens>in|is)\( )
    | (?P<bracket> [()] )
    | \$(?P<fragment>\w+)
    | (?<!:) :(?P<value>[a-z]\w*)
    | \b (?<!\.) holdfast_(?P<table>{"|".join(TABLES)}) \b (?!\.)
    | (?P<percent>%)
    """,
    re.VERBOSE,
)


class Statement(NamedTuple):
    """A text in the words of one database, and which of its parameters are lists."""

    text: str
    lists: Mapping[str, tuple[str, ...]]
    """The columns of each `$list`; none for an `$any`."""
    for_one_row: Statement | None = None
    """The form for lists of one row; None if it is that form, or has no `$list`."""


_COMPILED: dict[tuple[object, ...], dict[str, Statement]] = {}
"""What this process has compiled, for each class of dialect and its fragments."""


class Dialect:
    """Compiles our SQL for one database; `bind` turns Python values into its parameters."""

    in_select = ("IN (", ")")
    is_value = ("= (", ")")
    list_order = "ORDER BY {}.nr"

    def __init__(self, fragments: Mapping[str, str]) -> None:
        self.fragments = fragments
        self._compiled = _COMPILED.setdefault((type(self), *fragments.values()), {})

    def compile(self, sql: str, values: Mapping[str, object] = NO_VALUES) -> Statement:
        """Translate *sql*, once; give the form that suits *values*."""
        if (known := self._compiled.get(sql)) is None:
            known = self._compiled[sql] = self._translate(sql)
        if known.for_one_row is not None and _have_one_row(known, values):
            return known.for_one_row
        return known

    def forget(self, sql: str) -> None:
        """Keep what was compiled of *sql* no longer: of a text that is made at run time, and comes no more."""
        self._compiled.pop(sql, None)

    def bind(self, statement: Statement, values: Mapping[str, object]) -> dict[str, object]:
        """Turn *values* into the parameters that the driver is given."""
        raise NotImplementedError

    def _translate(self, sql: str) -> Statement:
        text, lists = self._rewrite(sql, self.list_table, self.list_order)
        if not any(lists.values()):
            return Statement(text, lists)
        one_row, _ = self._rewrite(sql, self.row_table, "")
        return Statement(text, lists, for_one_row=Statement(one_row, lists))

    def _rewrite(
        self, sql: str, table: Callable[[str, Columns], str], order: str
    ) -> tuple[str, dict[str, tuple[str, ...]]]:
        lists: dict[str, tuple[str, ...]] = {}
        ends: list[str] = []  # what closes each bracket that is open

        def word(match: re.Match[str]) -> str:
            if match["open"]:
                start, end = self.in_select if match["opens"] == "in" else self.is_value
                ends.append(end)
                return start
            if match["bracket"]:
                if match["bracket"] == "(":
                    ends.append(")")
                    return "("
                return ends.pop()
            if match["list"]:
                columns = [tuple(column.split()) for column in match["columns"].split(",")]
                lists[match["list"]] = tuple(name for name, _ in columns)
                return table(match["list"], [(name, kind) for name, kind in columns])
            if match["order"]:
                return order.format(match["order"])
            if match["any"]:
                lists[match["any"]] = ()
                return self.any_of(match["any"], match["kind"])
            if match["free"]:
                lists[match["free"]] = ()
                return self.free(match["free"])
            return self._plain(match)

        return TOKEN.sub(word, sql), lists

    def _plain(self, match: re.Match[str]) -> str:
        if match["comment"]:
            return ""
        if match["fragment"]:
            return self.fragments[match["fragment"]]
        if match["value"]:
            return self.value(match["value"])
        if match["table"]:
            return self.table(f"holdfast_{match['table']}")
        return self.verbatim(match[0])

    def list_table(self, name: str, columns: Columns) -> str:
        """Make a table of the list parameter *name*."""
        raise NotImplementedError

    def row_table(self, name: str, columns: Columns) -> str:
        """Make a table of one row, whose cells are the values `name_column`."""
        raise NotImplementedError

    def any_of(self, name: str, kind: str) -> str:
        """Compare with any element of the list parameter *name*."""
        raise NotImplementedError

    def free(self, name: str) -> str:
        """Lock the jobs of the list parameter *name*, pass over those that somebody holds, compare with the rest."""
        raise NotImplementedError

    def value(self, name: str) -> str:
        """Stand for the value *name*."""
        raise NotImplementedError

    def table(self, name: str) -> str:
        """Name a table of ours."""
        raise NotImplementedError

    def verbatim(self, text: str) -> str:
        """Pass a literal or a percent sign on."""
        return text


class SqliteDialect(Dialect):
    """SQLite's words; lists are JSON texts."""

    # it scans a list in its order; to sort it took 3 µs a row, and 12 for a list of one
    list_order = ""

    def __init__(self, now: str = "CAST((julianday('now') - 2440587.5) * 86400000 AS integer)") -> None:
        fragments = {
            "now": now,
            "locked": "",
            "skip_locked": "",
            "skip_locked_jobs": "",
            "has_written": "true",
            "nobody_else": "true",
            "schema": "'main'",
            # the commit itself is the hint, and no snapshot can be older than it
            "hint": "true",
            "hint_sleepers": "true",
            "hint_readers": "true",
            "oldest": "0",
            "newest": "0",
            "json_array": "json_array",
            "json_rows": "json_group_array",
            "position": "instr",
            "schema_name": "main",
        }
        super().__init__(fragments)

    def list_table(self, name: str, columns: Columns) -> str:
        """Read rows out of one JSON text."""
        picks = ", ".join(f"json_extract(value, '$[{n}]') AS {column}" for n, (column, _) in enumerate(columns))
        return f"(SELECT {picks}, key AS nr FROM json_each(:{name})) AS {name}"

    def row_table(self, name: str, columns: Columns) -> str:
        """Select the cells themselves."""
        return f"(SELECT {', '.join(f':{name}_{column} AS {column}' for column, _ in columns)}, 0 AS nr) AS {name}"

    def any_of(self, name: str, kind: str) -> str:
        """Read elements out of one JSON text."""
        return f"IN (SELECT value FROM json_each(:{name}))"

    def free(self, name: str) -> str:
        """Let every row pass: there is one writer at a time; to look the list up for each row took 45 µs a row."""
        return "IS NOT NULL"

    def value(self, name: str) -> str:
        """Write a named parameter."""
        return f":{name}"

    def table(self, name: str) -> str:
        """Name the table of the file itself: a caller's connection may have a temporary one of that name."""
        return f"main.{name}"

    def bind(self, statement: Statement, values: Mapping[str, object]) -> dict[str, object]:
        """Make JSON texts of the lists."""
        if not statement.lists:
            return dict(values)
        given: dict[str, object] = {}
        for name, value in values.items():
            columns = statement.lists.get(name)
            if columns and statement.for_one_row is None:
                given |= zip(_cell_names(name, columns), _sequence(value)[0], strict=True)
            else:
                given[name] = value if columns is None else json.dumps(value)
        return given


class PostgresDialect(Dialect):
    """PostgreSQL's words, as psycopg reads them; lists are array literals, one for each column."""

    # with stale statistics `IN (SELECT …)` falls to a sequential scan: 68 ms against 0.95 at 200k rows
    in_select = ("= ANY(ARRAY(", "))")
    # where statistics say that a table is empty, a plain `=` becomes a loop over all of its rows for each row of the
    # list: 4,000 ids took 6 s. What is no plain equality can only be looked up, for each row, by its index
    is_value = ("= ANY(ARRAY[", "])")

    def __init__(self, schema: str = "public") -> None:
        self.schema = schema
        fragments = {
            # clock_timestamp() falls out of index conditions, now() is as old as the caller's transaction
            "now": "CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint)",
            "locked": "FOR NO KEY UPDATE",
            "skip_locked": "FOR NO KEY UPDATE SKIP LOCKED",
            "skip_locked_jobs": "FOR NO KEY UPDATE OF holdfast_job SKIP LOCKED",
            "has_written": "pg_current_xact_id_if_assigned() IS NOT NULL",
            # an INSERT of a key that an open transaction inserts or deletes waits for it, and two such deadlock; these
            # are 1,024 locks in all, for a server has room for some thousands
            "nobody_else": f"""pg_try_advisory_xact_lock(
                {LOCK_SPACE} | (hashtextextended('{schema}.' || key, 7) & 1023))""",
            "schema": f"'{schema}'",
            "hint": _hint(schema, "SELECT 1 AS one"),
            "hint_sleepers": _hint(
                schema, f'SELECT 1 AS one FROM "{schema}".holdfast_worker WHERE asleep_at IS NOT NULL LIMIT 1'
            ),
            "hint_readers": _hint(
                schema,
                f"""SELECT 1 AS one FROM "{schema}".holdfast_worker
                WHERE asleep_at IS NOT NULL AND left(id, {len(READER)}) = '{READER}' LIMIT 1""",
                READERS_ONLY,
            ),
            "oldest": "CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint)",
            "newest": "CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint)",
            "json_array": "json_build_array",
            "json_rows": "json_agg",
            "position": "strpos",
            "schema_name": f'"{schema}"',
        }
        super().__init__(fragments)

    def list_table(self, name: str, columns: Columns) -> str:
        """Read columns out of array literals, sent as text: half the client time of Python lists."""
        arrays = ", ".join(f"CAST(%({name}_{column})s AS {kind}[])" for column, kind in columns)
        return f"unnest({arrays}) WITH ORDINALITY AS {name}({', '.join(column for column, _ in columns)}, nr)"

    def row_table(self, name: str, columns: Columns) -> str:
        """Select the cells themselves, which the planner then takes for constants."""
        cells = ", ".join(f"CAST(%({name}_{column})s AS {kind}) AS {column}" for column, kind in columns)
        return f"(SELECT {cells}, 1 AS nr) AS {name}"

    def any_of(self, name: str, kind: str) -> str:
        """Compare with an array literal; `IN (SELECT …)` falls to a sequential scan."""
        return f"= ANY(CAST(%({name})s AS {kind}[]))"

    def free(self, name: str) -> str:
        """Lock in a subselect, which is run first and once, in the order of `seq`."""
        return f"""= ANY(ARRAY(SELECT held.seq FROM {self.table("holdfast_job")} AS held
            WHERE held.seq {self.any_of(name, "bigint")} ORDER BY held.seq {self.fragments["skip_locked"]}))"""

    def value(self, name: str) -> str:
        """Write a named parameter."""
        return f"%({name})s"

    def table(self, name: str) -> str:
        """Name the table with its schema in front."""
        return f'"{self.schema}".{name}'

    def verbatim(self, text: str) -> str:
        """Double the percent signs, which psycopg would read as parameters."""
        return text.replace("%", "%%")

    def bind(self, statement: Statement, values: Mapping[str, object]) -> dict[str, object]:
        """Make array literals of the lists."""
        given: dict[str, object] = {}
        for name, value in values.items():
            columns = statement.lists.get(name)
            if columns is None:
                given[name] = value
            elif not columns:
                given[name] = array_literal(_sequence(value))
            elif statement.for_one_row is None:
                given |= zip(_cell_names(name, columns), map(_text, _sequence(value)[0]), strict=True)
            else:
                rows = _sequence(value)
                transposed = zip(*rows, strict=True) if rows else [()] * len(columns)
                given |= zip(_cell_names(name, columns), map(array_literal, transposed), strict=True)
        return given


def in_schema(sql: str, schema: str) -> str:
    """Name the tables of *sql* in *schema*, which is a valid one: for a statement about several of them."""
    return TOKEN.sub(lambda match: f'"{schema}".{match[0]}' if match["table"] else match[0], sql)


def channel(schema: str) -> str:
    """Name the channel on which the hints of *schema* are sent."""
    return f"holdfast_{schema}"


READER = "feed-"
"""What the id of one who follows the log begins with, in the `worker` table."""

READERS_ONLY = "log"
"""What a hint says that is only for those."""


def _hint(schema: str, sleepers: str, word: str = "") -> str:
    """Send a hint if there are *sleepers*, in the statement itself: no round trip; a subselect is run first and once.

    A NOTIFY into a full queue would fail the commit, so none is sent into one that fills: the poll finds it.
    """
    fits = "pg_notification_queue_usage() < 0.5"
    return f"(SELECT count(pg_notify('{channel(schema)}', '{word}')) FROM ({sleepers}) AS asleep WHERE {fits}) >= 0"


def array_literal(values: Sequence[Any]) -> str:
    """Write *values*, which are texts, whole numbers or None, as the text of a PostgreSQL array."""
    return "{" + _elements(values) + "}"


def _elements(values: Sequence[Any]) -> str:
    if len(values) > 1 and values.count(values[0]) == len(values):  # a task, a queue, a NULL: most columns of a batch
        return ",".join([_element(values[0])] * len(values))
    if (texts := _joined(values)) is not None:
        return _quoted(texts).replace(NUL, '","')  # all of them at once: 0.1 µs each instead of 0.7
    return ",".join(map(_element, values))


def _joined(values: Sequence[Any]) -> str | None:
    """Join texts by what no text that can be stored has in it; None if they are not all such texts."""
    try:
        joined = NUL.join(values)
    except TypeError:
        return None
    return joined if joined.count(NUL) == len(values) - 1 else None


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if type(value) is int:
        return str(value)
    return _quoted(value)


def _quoted(text: str) -> str:
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _text(value: Any) -> str | None:
    """Write a cell as text: with a type of its own psycopg would prepare a statement for each mix of them."""
    return None if value is None else str(value)


def _have_one_row(statement: Statement, values: Mapping[str, object]) -> bool:
    return all(len(_sequence(values.get(name, ()))) == 1 for name, columns in statement.lists.items() if columns)


@cache
def _cell_names(name: str, columns: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{name}_{column}" for column in columns)


def _sequence(value: object) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError("a list parameter takes a list or a tuple")
    return value
