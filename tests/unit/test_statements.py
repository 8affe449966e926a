"""The user's own SQL: which colons are parameters, and rows that know their columns."""

from __future__ import annotations

import copy
import pickle

import pytest

from holdfast.database.records import record_type, records
from holdfast.database.statements import ends_transaction, in_postgres, in_sqlite, in_text
from holdfast.errors import InvalidInput, Misuse

ALIKE = [
    ("SELECT :a", "SELECT {a}", "a"),
    ("SELECT :a, :b_2, :a", "SELECT {a}, {b_2}, {a}", "a b_2"),
    ("SELECT (:a)", "SELECT ({a})", "a"),
    ("SELECT :größe", "SELECT {größe}", "größe"),
    ("SELECT :a::int", "SELECT {a}::int", "a"),
    ("SELECT x::int", "SELECT x::int", ""),
    ("SELECT x :: int", "SELECT x :: int", ""),
    (r"SELECT \:a", "SELECT :a", ""),
    (r"SELECT x\:\:int", "SELECT x::int", ""),
    ("SELECT f(a := :a)", "SELECT f(a := {a})", "a"),
    ("SELECT x:a", "SELECT x:a", ""),
    ("SELECT :a:", "SELECT :a:", ""),
    ("SELECT :1", "SELECT :1", ""),
    ("SELECT ':a', :b", "SELECT ':a', {b}", "b"),
    ("SELECT 'it''s :a', :b", "SELECT 'it''s :a', {b}", "b"),
    (r"SELECT E'it\'s :a', :b", r"SELECT E'it\'s :a', {b}", "b"),
    (r"SELECT '\', :b", r"SELECT '\', {b}", "b"),
    ('SELECT ":a" AS "x"":y", :b', 'SELECT ":a" AS "x"":y", {b}', "b"),
    ("SELECT 1 -- :a\n, :b", "SELECT 1 -- :a\n, {b}", "b"),
    ("SELECT 1 /* :a */, :b", "SELECT 1 /* :a */, {b}", "b"),
    ("SELECT 1 /* /* */ :a */, :b", "SELECT 1 /* /* */ :a */, {b}", "b"),
    ("SELECT 1 /* :a", "SELECT 1 /* :a", ""),
    ("SELECT ':a", "SELECT ':a", ""),
    ("SELECT $$ :a $$, :b", "SELECT $$ :a $$, {b}", "b"),
    ("SELECT $x$ $y$ :a $y$ $x$, :b", "SELECT $x$ $y$ :a $y$ $x$, {b}", "b"),
    ("", "", ""),
]


@pytest.mark.parametrize(("sql", "text", "names"), ALIKE)
def test_a_colon_and_a_name_are_a_parameter_where_they_are_none_of_anything_else(
    sql: str, text: str, names: str
) -> None:
    known = names.split()

    assert in_postgres(sql).text == text.format(**{name: f"%({name})s" for name in known})
    assert in_sqlite(sql).text == text.format(**{name: f":{name}" for name in known})
    assert in_postgres(sql).names == in_sqlite(sql).names == frozenset(known)


def test_a_percent_sign_means_itself() -> None:
    sql = "SELECT 7 % :a, '100%', \"%\" -- %\n"

    assert in_postgres(sql).text == "SELECT 7 %% %(a)s, '100%%', \"%%\" -- %%\n"
    assert in_sqlite(sql).text == sql


def test_brackets_are_names_in_sqlite_and_slices_in_postgresql() -> None:
    assert in_sqlite("SELECT [a:b :c], `:d`, :e").names == {"e"}
    assert in_postgres("SELECT x[:a], x[1:n]").text == "SELECT x[%(a)s], x[1:n]"


def test_each_name_wants_its_value_and_each_value_its_name() -> None:
    statement = in_sqlite("SELECT :a, :b")

    assert statement.bind({"a": 1, "b": None}) == {"a": 1, "b": None}
    with pytest.raises(InvalidInput, match="no value is given for :b;"):
        statement.bind({"a": 1})
    with pytest.raises(InvalidInput, match="no value is given for :b; the statement does not name :c, :d;"):
        statement.bind({"a": 1, "c": 2, "d": 3})


ENDING = [
    "COMMIT", "commit;", " \n BEGIN IMMEDIATE", "-- so\nROLLBACK", "/* so */ END", "ABORT", "START TRANSACTION",
    "PREPARE TRANSACTION 'x'", "; commit", "ROLLBACK WORK",
]  # fmt: skip
HIDDEN = ["/* /* */ */ COMMIT", "/* /* */ COMMIT"]
SAVING = ["SAVEPOINT a", "RELEASE a", "ROLLBACK TO a", "rollback transaction to savepoint a"]
HARMLESS = [
    "SELECT 1", "beginner", "PREPARE x AS SELECT 1", "CREATE TRIGGER t BEGIN SELECT 1; END", "",
    "SELECT 1 ;\n -- so; so", "SELECT '; COMMIT'", 'SELECT "; COMMIT" ;; /* ; COMMIT */',
    "CREATE FUNCTION f() BEGIN ATOMIC SELECT 1; END",
]  # fmt: skip
SEVERAL = ["SELECT 1; SELECT 2", "SELECT 1; COMMIT; BEGIN", "CREATE TABLE t (id int); COMMIT; BEGIN", "SELECT ';'; END"]


@pytest.mark.parametrize("sql", ENDING + SAVING)
def test_a_block_is_ended_and_divided_by_its_own_means(sql: str) -> None:
    for write in (in_postgres, in_sqlite):
        with pytest.raises(Misuse, match=r"tx\.savepoint"):
            write(sql)


@pytest.mark.parametrize("sql", HARMLESS)
def test_other_statements_pass(sql: str) -> None:
    assert in_postgres(sql).text == in_sqlite(sql).text == sql


def test_an_end_behind_a_comment_is_found() -> None:
    with pytest.raises(Misuse):
        in_postgres(HIDDEN[0])
    with pytest.raises(Misuse):
        in_sqlite(HIDDEN[1])


@pytest.mark.parametrize("sql", SEVERAL)
def test_a_block_runs_one_statement_at_a_time(sql: str) -> None:
    for write in (in_postgres, in_sqlite):
        with pytest.raises(Misuse, match="one statement at a time"):
            write(sql)


STAYING = [
    "SET search_path TO x", "set session statement_timeout = 1", "RESET ALL", "CREATE TEMP TABLE t (id int)",
    "SELECT 1 INTO TEMPORARY t", "SELECT set_config('a.b', 'c', false)", "SELECT pg_advisory_lock(1)", "LISTEN x",
    "SELECT pg_try_advisory_lock_shared(1)", "PRAGMA query_only = 1", "-- so\nATTACH 'x' AS y", "PREPARE x AS SELECT 1",
]  # fmt: skip
PASSING = [
    "SET LOCAL search_path TO x", "SET CONSTRAINTS ALL DEFERRED", "UPDATE t SET a = 1", "SELECT temp FROM t",
    "SELECT pg_advisory_xact_lock(1)", "INSERT INTO temperature VALUES (1)", "CREATE TABLE t (temp int)",
]  # fmt: skip


def test_it_is_known_what_a_connection_may_keep() -> None:
    for write in (in_postgres, in_sqlite):
        assert all(write(sql).stays for sql in STAYING)
        assert not any(write(sql).stays for sql in PASSING)


def test_savepoints_end_no_transaction() -> None:
    assert all(map(ends_transaction, ENDING))
    assert not any(map(ends_transaction, SAVING + HARMLESS))


def test_a_record_is_a_tuple_that_knows_its_columns() -> None:
    (record,) = records(["id", "count", "?column?"], [(7, 2, "x")])

    assert tuple(record) == (7, 2, "x")
    assert (record.id, record.count, record["?column?"], record[0], record[-1]) == (7, 2, "x", 7, "x")
    assert record[1:] == (2, "x")
    assert repr(record) == "Record(id=7, count=2, ?column?='x')"
    with pytest.raises(KeyError):
        record["name"]
    with pytest.raises(AttributeError):
        record.name  # noqa: B018


def test_of_two_columns_of_one_name_the_first_is_found() -> None:
    record = record_type(("id", "id"))((1, 2))

    assert (record.id, record["id"], record[1]) == (1, 1, 2)
    assert repr(record) == "Record(id=1, id=2)"


def test_a_record_can_be_copied_and_pickled() -> None:
    record = record_type(("id", "_hidden"))((1, 2))

    assert copy.deepcopy(record) == record
    assert pickle.loads(pickle.dumps(record)).id == 1
    assert record["_hidden"] == 2


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT :n::int, '12:30', \"a:b\" /* :c */ -- :d",
        r"SELECT :n, 'a\:b', \:kept",
        "SELECT :n, '5 %', x[1:2], $$:q$$",
    ],
)
def test_what_sqlalchemy_reads_has_the_same_parameters_and_the_same_text(sql: str) -> None:
    from sqlalchemy import text
    from sqlalchemy.dialects import postgresql

    read = in_text(sql, "postgres")
    compiled = text(read.text).compile(dialect=postgresql.psycopg.dialect())  # type: ignore[no-untyped-call]

    assert set(compiled.params) == read.names == {"n"}
    assert str(compiled) == in_postgres(sql).text
