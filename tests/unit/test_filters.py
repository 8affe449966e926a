"""The text form of filters: what is written is read back, and what cannot be read is refused with its place."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Misuse
from holdfast.client.list_options import JobListOptions, PageOptions, job_list
from holdfast.errors import InvalidFilter, InvalidInput
from holdfast.filters import LONGEST, MOST_STEPS, MOST_TERMS, NAMES, parse, write
from holdfast.states import State

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
AN_ID = UUID(int=7)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("  \t", {}),
        ("task:charge", {"task": ("charge",)}),
        ("task:charge,refund task:mail", {"task": ("charge", "refund", "mail")}),
        ("status:failed,paused", {"status": ("failed", "paused")}),
        ('tag:"big customer",small', {"tag": ("big customer", "small")}),
        (r'tag:"say \"a\" \\ b"', {"tag": ('say "a" \\ b',)}),
        ("lane:vm:7", {"lane": ("vm:7",)}),
        ("queue:mail lane:vm-7 worker:w error:ValueError chain_task:a", {
            "queue": ("mail",), "lane": ("vm-7",), "worker": ("w",), "error": ("ValueError",), "chain_task": ("a",),
        }),
        (f"id:{AN_ID} chain:{AN_ID} parent:{AN_ID}", {"id": (AN_ID,), "chain": (AN_ID,), "parent": AN_ID}),
        (str(AN_ID), {"id": (AN_ID,)}),
        ("input.user_id:42", {"input": {"user_id": 42}}),
        ("input.order.id:7 input.paid:true", {"input": {"order.id": 7, "paid": True}}),
        ('"input.a b":null', {"input": {"a b": None}}),
        ("input.a:1.5 input.b:-2e3 input.c:007", {"input": {"a": 1.5, "b": -2000.0, "c": "007"}}),
        ('input.a:"42" input.b:Ada input.c:"null"', {"input": {"a": "42", "b": "Ada", "c": "null"}}),
        ("input.a:123456789012345678901234567890", {"input": {"a": 123456789012345678901234567890}}),
        ("input.a:1\N{ARABIC-INDIC DIGIT THREE}", {"input": {"a": "1\N{ARABIC-INDIC DIGIT THREE}"}}),
        ("since:2h", {"created_from": NOW - timedelta(hours=2)}),
        ("since:30s until:5m", {"created_from": NOW - timedelta(seconds=30), "created_to": NOW - timedelta(minutes=5)}),
        ("since:1w until:7d", {"created_from": NOW - timedelta(days=7), "created_to": NOW - timedelta(days=7)}),
        ("since:2026-05-04T10:00Z", {"created_from": NOW - timedelta(hours=2)}),
        ("until:2026-05-04T12:00+02:00", {"created_to": NOW - timedelta(hours=2)}),
        ("order:oldest internal:true", {"order": "oldest", "internal": True}),
    ],
)  # fmt: skip
def test_a_text_is_read_as_the_keywords_of_list_jobs(text: str, wanted: dict[str, Any]) -> None:
    assert parse(text, NOW) == wanted
    job_list(**parse(text, NOW))


@pytest.mark.parametrize(
    ("text", "column", "near", "words"),
    [
        ("taks:charge", 1, "task", "did you mean task"),
        ("task:charge statsu:failed", 13, "status", "did you mean status"),
        ("status:pending,faild", 16, "failed", "did you mean failed"),
        ("charge", 1, None, "task:charge"),
        ("task:", 6, None, "task needs a value"),
        ("task:a,", 8, None, "task needs a value"),
        ("task:a, b", 8, None, "task needs a value"),
        (":a", 1, None, "begin with a name"),
        ('tag:"open', 5, None, "not closed"),
        (r'tag:"a\b"', 7, None, "backslash"),
        (r'tag:"a\\', 5, None, "not closed"),
        ('tag:"a"b', 8, None, "blank or a comma"),
        ('task"a"', 5, None, "blank or a colon"),
        ("id:seven", 4, None, "is no id"),
        ("parent:7", 8, None, "is no id"),
        (f"parent:{AN_ID} parent:{AN_ID}", 45, None, "twice"),
        (f"parent:{AN_ID},{AN_ID}", 45, None, "one value"),
        ("since:2h since:3h", 10, None, "twice"),
        ("since:yesterday", 7, None, "is no time"),
        ("since:2026-05-04T10:00", 7, None, "with its zone"),
        ("since:999999999w", 7, None, "too long ago"),
        ("order:oldst", 7, "oldest", "did you mean oldest"),
        ("internal:yes", 10, None, "true, false"),
        ("input.a:1,2", 11, None, "one value"),
        ("input.a:1 input.a:1", 11, None, "twice"),
        ("input.a:1e999", 9, None, "too large"),
        ("input.:1", 1, None, "keys"),
        ("input.a..b:1", 1, None, "keys"),
        ("task:a\0", 7, None, "NUL"),
    ],
)
def test_a_text_that_cannot_be_read_says_where_and_what_was_meant(
    text: str, column: int, near: str | None, words: str
) -> None:
    with pytest.raises(InvalidFilter, match=words) as refused:
        parse(text, NOW)

    assert (refused.value.column, refused.value.near, refused.value.code) == (column, near, "invalid_filter")
    assert str(refused.value).startswith(f"column {column}: ")


def test_a_text_has_a_thousand_characters_at_most() -> None:
    text = "task:" + "a" * (LONGEST - 5)

    assert parse(text, NOW) == {"task": ("a" * (LONGEST - 5),)}
    with pytest.raises(InvalidFilter, match="1001 characters; the limit is 1000"):
        parse(text + "a", NOW)
    with pytest.raises(InvalidFilter, match="the limit is 1000"):
        write(task="a" * (LONGEST - 4))


def test_a_text_has_twenty_terms_at_most() -> None:
    text = " ".join(f"task:a{n}" for n in range(MOST_TERMS))

    assert len(parse(text, NOW)["task"]) == MOST_TERMS
    with pytest.raises(InvalidFilter, match="more than 20 terms") as refused:
        parse(text + " task:b", NOW)
    assert refused.value.column == len(text) + 2
    with pytest.raises(InvalidFilter, match="more than 20 terms"):
        write(input={f"a{n}": 1 for n in range(MOST_TERMS + 1)})


def test_a_path_of_the_input_has_eight_steps_at_most() -> None:
    path = ".".join("abcdefgh")

    assert len(path.split(".")) == MOST_STEPS
    assert parse(f"input.{path}:1", NOW) == {"input": {path: 1}}
    with pytest.raises(InvalidFilter, match="8 keys"):
        parse(f"input.{path}.i:1", NOW)
    with pytest.raises(InvalidInput, match="8 keys"):
        write(input={f"{path}.i": 1})


def test_what_is_no_filter_is_not_written() -> None:
    with pytest.raises(Misuse, match="did you mean task"):
        write(taks="charge")


def test_every_filter_of_jobs_has_a_name_in_the_text() -> None:
    keywords = JobListOptions.__optional_keys__ - PageOptions.__optional_keys__
    times = {"since": "created_from", "until": "created_to", "input.<path>": "input"}

    assert {times.get(name, name) for name in NAMES} == keywords


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
keys = words.filter(lambda word: word and "." not in word)
zones = st.integers(-14, 14).map(lambda hours: timezone(timedelta(hours=hours)))
times = st.datetimes(timezones=zones)  # also those that are before the year 1, or behind 9999, in UTC
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
several = st.lists(words, min_size=1, max_size=3, unique=True).map(tuple)
ids = st.lists(st.uuids(), min_size=1, max_size=3, unique=True).map(tuple)
wanted = st.fixed_dictionaries(
    {},
    optional={
        "id": ids,
        "chain": ids,
        "parent": st.uuids(),
        **dict.fromkeys(("task", "queue", "lane", "tag", "worker", "error", "chain_task"), several),
        "status": st.lists(st.sampled_from([str(state) for state in State]), min_size=1, unique=True).map(tuple),
        "order": st.sampled_from(["newest", "oldest"]),
        "internal": st.booleans(),
        "created_from": times,
        "created_to": times,
        "input": st.dictionaries(st.lists(keys, min_size=1, max_size=3).map(".".join), scalars, min_size=1, max_size=3),
    },
)


@pytest.mark.parametrize("name", ["id", "chain", "tag", "status"])
def test_what_fits_no_job_is_not_written_as_what_fits_any(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"{name} is empty, which fits no job"):
        write(task="charge", **{name: []})


@given(wanted)
def test_what_is_written_is_read_back(keywords: dict[str, Any]) -> None:
    try:
        text = write(**keywords)
    except InvalidFilter:  # too long
        return

    read = parse(text, NOW)

    assert read == keywords
    assert repr(read.get("input")) == repr(keywords.get("input"))  # 1, 1.0 and True are equal, and -0.0 is 0
    assert write(**read) == text


@given(st.text(max_size=60) | st.text('task:stu,".\\ 0', max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read = parse(text, NOW)
    except InvalidFilter as refused:
        column = refused.column
    else:
        column = 1
        assert parse(write(**read), NOW) == read

    assert 1 <= column <= len(text) + 1
