"""One SQL text in the words of each database."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from holdfast.database.dialect import PostgresDialect, SqliteDialect, array_literal

LITE = SqliteDialect()
POSTGRES = PostgresDialect("shop")


def test_a_value_is_a_named_parameter() -> None:
    assert LITE.compile("SELECT :x").text == "SELECT :x"
    assert POSTGRES.compile("SELECT :x").text == "SELECT %(x)s"


@pytest.mark.parametrize("text", ["SELECT 'job:enqueued'", "SELECT 'it''s :not'", 'SELECT "a:b"', "SELECT x::text"])
def test_a_colon_in_a_literal_or_a_cast_is_no_parameter(text: str) -> None:
    assert POSTGRES.compile(text).text == text


def test_a_percent_sign_reaches_postgresql_as_one() -> None:
    assert POSTGRES.compile("SELECT 'a%b' LIKE :x || '%'").text == "SELECT 'a%%b' LIKE %(x)s || '%%'"


def test_tables_are_qualified_where_they_are_named_and_not_where_columns_are() -> None:
    text = POSTGRES.compile("UPDATE holdfast_job SET id = 1 WHERE holdfast_job.seq = 2 AND holdfast_job_x = 1").text

    assert text == 'UPDATE "shop".holdfast_job SET id = 1 WHERE holdfast_job.seq = 2 AND holdfast_job_x = 1'


def test_stores_with_the_same_words_share_what_is_compiled_and_others_do_not() -> None:
    text = "SELECT count(*) FROM holdfast_lane WHERE key = :key"

    assert PostgresDialect("shop").compile(text) is POSTGRES.compile(text)
    assert SqliteDialect().compile(text) is LITE.compile(text)
    assert PostgresDialect("bank").compile(text).text == POSTGRES.compile(text).text.replace("shop", "bank")
    assert SqliteDialect(now="7").compile("SELECT $now").text == "SELECT 7"


def test_comments_do_not_travel() -> None:
    assert LITE.compile("SELECT 1 -- :why\n, 2").text == "SELECT 1 \n, 2"


def test_an_unknown_fragment_is_an_error() -> None:
    with pytest.raises(KeyError):
        LITE.compile("SELECT $nonsense")


def test_only_a_list_on_postgresql_has_to_be_put_in_order() -> None:
    text = "SELECT given.n FROM $list(given: n bigint) $in_order(given)"

    assert POSTGRES.compile(text).text.endswith("ORDER BY given.nr")
    assert "ORDER BY" not in POSTGRES.compile(text, {"given": [(1,)]}).text
    assert "ORDER BY" not in LITE.compile(text).text


def test_sqlite_reads_a_list_in_its_order() -> None:
    statement = LITE.compile("SELECT given.n FROM $list(given: n bigint) WHERE true $in_order(given)")
    given = [(n * 7919 % 1009,) for n in range(1009)]

    with closing(sqlite3.connect(":memory:")) as file:
        rows = file.execute(statement.text, LITE.bind(statement, {"given": given})).fetchall()

    assert rows == given


def test_a_list_is_read_as_rows_with_their_number_in_sqlite() -> None:
    statement = LITE.compile("SELECT given.nr, given.id, given.n FROM $list(given: id text, n bigint) ORDER BY nr")
    given = [("a'\"\\ü", 1), (None, 2**62)]

    with closing(sqlite3.connect(":memory:")) as file:
        rows = file.execute(statement.text, LITE.bind(statement, {"given": given})).fetchall()

    assert rows == [(0, "a'\"\\ü", 1), (1, None, 2**62)]


def test_a_list_of_one_row_is_plain_values_in_both() -> None:
    sql = "SELECT given.id, given.n FROM $list(given: id text, n bigint) WHERE id $any(ids: text)"
    values = {"given": [("a", 1)], "ids": ["a"]}

    lite, postgres = LITE.compile(sql, values), POSTGRES.compile(sql, values)

    assert "(SELECT :given_id AS id, :given_n AS n, 0 AS nr) AS given" in lite.text
    assert LITE.bind(lite, values) == {"given_id": "a", "given_n": 1, "ids": '["a"]'}
    assert (
        "(SELECT CAST(%(given_id)s AS text) AS id, CAST(%(given_n)s AS bigint) AS n, 1 AS nr) AS given" in postgres.text
    )
    assert POSTGRES.bind(postgres, values) == {"given_id": "a", "given_n": "1", "ids": '{"a"}'}


@pytest.mark.parametrize("size", [0, 2])
def test_a_list_of_another_length_is_a_list(size: int) -> None:
    sql = "SELECT given.id FROM $list(given: id text)"

    assert LITE.compile(sql, {"given": [("a",)] * size}) is LITE.compile(sql)


def test_a_statement_has_the_form_for_one_row_only_if_each_of_its_lists_has_one() -> None:
    sql = "SELECT 1 FROM $list(one: id text), $list(other: id text)"

    assert LITE.compile(sql, {"one": [("a",)], "other": [("a",), ("b",)]}) is LITE.compile(sql)


def test_a_list_of_one_row_reads_the_same_as_a_longer_one_in_sqlite() -> None:
    sql = "SELECT given.nr, given.id, given.n FROM $list(given: id text, n bigint)"
    values = {"given": [("a'\"\\ü", None)]}

    with closing(sqlite3.connect(":memory:")) as file:
        answers = [
            file.execute(statement.text, LITE.bind(statement, values)).fetchall()
            for statement in (LITE.compile(sql), LITE.compile(sql, values))
        ]

    assert answers[0] == answers[1] == [(0, "a'\"\\ü", None)]


def test_a_column_of_equal_values_is_an_array_literal_like_any_other() -> None:
    assert array_literal(['a"b', 'a"b']) == r'{"a\"b","a\"b"}'
    assert array_literal([None, None, None]) == "{NULL,NULL,NULL}"


def test_an_empty_list_binds_in_both() -> None:
    sql = "SELECT id FROM $list(given: id text, n bigint) WHERE id $any(ids: text)"

    assert POSTGRES.bind(POSTGRES.compile(sql), {"given": [], "ids": []}) == {
        "given_id": "{}",
        "given_n": "{}",
        "ids": "{}",
    }
    assert LITE.bind(LITE.compile(sql), {"given": [], "ids": []}) == {"given": "[]", "ids": "[]"}


def test_array_literals_quote_what_must_be_quoted() -> None:
    assert array_literal(['a"b', "c\\d", None, 7, "NULL", "", "{}"]) == r'{"a\"b","c\\d",NULL,7,"NULL","","{}"}'


def test_a_column_of_texts_is_quoted_as_each_of_them_is() -> None:
    assert array_literal(['a"b', "c\\d", "", "NULL", ","]) == r'{"a\"b","c\\d","","NULL",","}'
    assert array_literal(["one"]) == '{"one"}'


def test_a_text_with_a_nul_is_left_for_postgresql_to_refuse() -> None:
    assert array_literal(["a\0b", "c"]) == '{"a\0b","c"}'


def test_a_list_parameter_must_be_a_list() -> None:
    with pytest.raises(TypeError):
        POSTGRES.bind(POSTGRES.compile("SELECT 1 WHERE 'a' $any(ids: text)"), {"ids": "abc"})
