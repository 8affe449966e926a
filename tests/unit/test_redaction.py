"""What readers are shown of values: no canary comes through, and what is no secret stays to the byte."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from holdfast.errors import InvalidInput
from holdfast.tasks.patches import merge
from holdfast.wire.redaction import DEEPEST, REDACTED, Redaction, check_paths, is_secret, without_passwords

CANARY = "canary-7f3a"
PLAIN = Redaction()

SECRET_KEYS = [
    "password", "Password", "PASSWORD", "user_password", "userPassword", "PGPASSWORD", "passwd", "pwd", "passphrase",
    "secret", "client-secret", "clientSecret", "secrets", "token", "access_token", "accessToken", "X-Auth-Token",
    "csrftoken", "token_value", "tokens", "api_key", "apiKey", "API-KEY", "apikey", "X-Api-Key", "authorization",
    "Proxy-Authorization", "cookie", "Set-Cookie", "cookies", "private_key", "privateKey", "ssh private key",
    "access_key", "secret_access_key", "credential", "credentials", "dsn", "sentry_dsn", "auth", "jwt", "smtp_pass",
]  # fmt: skip
OPEN_KEYS = [
    "key", "lane", "name", "tokenizer", "monkey", "author", "secretary", "passenger", "compass", "path", "id",
    "object_key", "keyboard", "authenticated", "bypass",
]  # fmt: skip


def hidden(value: Any, *paths: str, keys: tuple[str, ...] = ()) -> Any:
    return Redaction(keys=keys, paths=paths).value(value)


@pytest.mark.parametrize("key", SECRET_KEYS)
@pytest.mark.parametrize("secret", [CANARY, 1234, {"a": CANARY}, [CANARY], ""])
def test_what_stands_under_a_secret_key_is_hidden(key: str, secret: Any) -> None:
    if key == "tokens" and secret == 1234:
        return  # how many there are
    assert hidden({"a": [{key: secret, "b": 1}]}) == {"a": [{key: REDACTED, "b": 1}]}


@pytest.mark.parametrize("key", OPEN_KEYS)
def test_what_stands_under_another_key_is_shown(key: str) -> None:
    value = {key: "text"}

    assert hidden(value) is value


def test_nothing_yes_and_no_are_no_secrets() -> None:
    value = {"password": None, "has_password": True, "max_tokens": 100}

    assert hidden(value) is value


def test_a_very_long_key_is_judged_like_any_other() -> None:
    assert is_secret("x" * 100_000 + "_password")
    assert not is_secret("x" * 100_000)


@pytest.mark.parametrize(
    ("path", "value", "seen"),
    [
        ("card", {"card": {"number": 1}}, {"card": REDACTED}),
        ("card.number", {"card": {"number": 1, "name": "Ada"}}, {"card": {"number": REDACTED, "name": "Ada"}}),
        ("items.*.iban", {"items": [{"iban": 1}, {"iban": 2, "n": 3}]},
         {"items": [{"iban": REDACTED}, {"iban": REDACTED, "n": 3}]}),
        ("items.1", {"items": [7, 8, 9]}, {"items": [7, REDACTED, 9]}),
        ("*.iban", {"a": {"iban": 1}, "b": {"iban": 2}}, {"a": {"iban": REDACTED}, "b": {"iban": REDACTED}}),
        ("*", {"a": 1, "b": [2]}, {"a": REDACTED, "b": REDACTED}),
        ("*", "whole", REDACTED),
        ("a.b", {"a": "text"}, {"a": "text"}),
        ("a.b", {"a": None}, {"a": None}),
        ("a", {"a": None, "b": False}, {"a": None, "b": False}),
        ("b", {"a": None, "b": False}, {"a": None, "b": REDACTED}),
    ],
)  # fmt: skip
def test_what_a_path_leads_to_is_hidden(path: str, value: Any, seen: Any) -> None:
    assert hidden(value, path) == seen


def test_further_keys_are_hidden_however_they_are_written() -> None:
    value = {"IBAN": 1, "card_number": 2, "x": [{"Card-Number": 3, "cardNumber": 4, "card": 5}]}

    assert hidden(value, keys=("iban", "card number")) == {
        "IBAN": REDACTED,
        "card_number": REDACTED,
        "x": [{"Card-Number": REDACTED, "cardNumber": REDACTED, "card": 5}],
    }


@pytest.mark.parametrize("wrong", ["iban", 7, [7], None])
def test_keys_that_are_no_list_of_texts_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="keys must be a list of texts"):
        Redaction(keys=wrong)


def test_what_has_nothing_to_hide_is_given_back_itself_with_its_numbers() -> None:
    value = {"big": 10**40, "small": 1e-320, "list": [1, [2, {"deep": -0.0}]], "text": "a:b@c ://"}

    assert hidden(value, "no.such.path") is value


def test_what_is_shown_leaves_the_value_as_it_was() -> None:
    value = {"a": [{"token": CANARY, "n": 10**40}], "b": {"c": 1}}
    before = deepcopy(value)

    seen = hidden(value)

    assert value == before
    assert seen["b"] is value["b"]
    assert json.dumps(seen["a"][0]["n"]) == str(10**40)


def test_very_deep_values_and_loops_end() -> None:
    deep: Any = CANARY
    for _ in range(DEEPEST + 50):
        deep = {"a": deep}
    loop: list[Any] = []
    loop += [loop, loop]

    assert CANARY not in json.dumps(hidden(deep))
    assert hidden(loop) == [REDACTED, REDACTED]


@given(
    some.recursive(
        some.none() | some.booleans() | some.integers() | some.text(max_size=5),
        lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=5), inner, max_size=4),
        max_leaves=20,
    ),
    some.lists(some.sampled_from(["a", "b", "Password", "0"]), min_size=1, max_size=6),
    some.sampled_from(SECRET_KEYS),
)
def test_no_canary_comes_through_at_any_depth(value: Any, way: list[str], key: str) -> None:
    planted: Any = {key: {"in": [CANARY, value]}, "beside": value}
    for step in way:
        planted = {step: planted} if step != "0" else [value, planted]

    assert CANARY not in json.dumps(hidden(planted))


# texts


@pytest.mark.parametrize(
    "text",
    [
        f"postgres://ada:{CANARY}@db.internal:5432/shop",
        f"cannot connect to amqp://guest:{CANARY}@mq/ or so",
        f"https://ada:{CANARY}@a@b/x",
        f"host=db password={CANARY} user=ada",
        f"host=db PASSWORD='{CANARY} x' user=ada",
        f"GET https://api.test/x?access_token={CANARY}&b=1 gave 401",
        f"GET https://api.test/x?api_key={CANARY}",
        f"Authorization: Bearer {CANARY}",
    ],
)
def test_a_password_in_the_text_of_an_error_is_hidden(text: str) -> None:
    error = {"type": "E", "message": text, "traceback": f"line\n{text}", "attributes": {"url": text, "n": 1}}

    assert CANARY not in without_passwords(text)
    assert CANARY not in json.dumps(PLAIN.error(error))
    assert PLAIN.error(error)["attributes"]["n"] == 1


@pytest.mark.parametrize(
    "text",
    ["no secret", "https://ada@db/x", "a@b.c ://", "unexpected token: ')'", "the bearer of this letter", "1:2@3", ""],
)
def test_another_text_stays_itself(text: str) -> None:
    assert without_passwords(text) is text


def test_a_password_in_an_address_is_hidden_in_values_too() -> None:
    assert hidden({"url": f"redis://:{CANARY}@cache/0"}) == {"url": f"redis://:{REDACTED}@cache/0"}


def test_a_long_text_takes_no_long_time() -> None:
    for text in (
        "://a:b" * 20_000 + "@",
        "password=" * 20_000,
        "bearer " * 20_000,
        "a-" * 50_000 + "=",
        "://" + ":" * 99_999,
    ):
        without_passwords(text)


# who sees no payloads


def test_without_payloads_neither_values_nor_details_of_errors_are_shown() -> None:
    reader = Redaction(payloads=False)
    error = {"type": "Declined", "message": CANARY, "traceback": CANARY, "attributes": {"a": CANARY}, "attempt": 1}

    assert reader.value({"a": CANARY}) is None
    assert reader.error(error) == {"type": "Declined"}
    assert reader.error(CANARY) is None
    assert reader.facts({"error": error, "reason": CANARY, "worker": "w"}) == {
        "error": {"type": "Declined"},
        "reason": None,
        "worker": "w",
    }
    assert reader.reason("attempts used up") == "attempts used up"
    assert reader.journal("note", {"a": CANARY}) is None
    assert reader.journal("holdfast.input", {"by": "ada", "input": {"a": CANARY}}) == {"by": "ada", "input": None}


def test_a_former_input_in_a_journal_is_shown_like_an_input() -> None:
    body = {"by": "ada", "input": {"card": {"number": CANARY}, "token": CANARY}}

    assert Redaction(paths=("card.number",)).journal("holdfast.input", body) == {
        "by": "ada",
        "input": {"card": {"number": REDACTED}, "token": REDACTED},
    }


# the paths of a task


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        ("card.number", "write redact=\\(\"card.number\",\\)"),
        (7, "must be a list of paths, got 7"),
        ([7], "no path like 7"),
        ([""], "no path like ''"),
        (["a..b"], "no path like 'a..b'"),
        ([".a"], "no path like '.a'"),
        (["a\n"], "no path like"),
        (["a" * 201], "no path like"),
        ([".".join("abcdefghi")], "at most 8 steps"),
        ([f"a{number}" for number in range(21)], "at most 20 paths, got 21"),
    ],
)  # fmt: skip
def test_wrong_paths_are_refused_with_what_to_write(paths: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        check_paths(paths)

    assert caught.value.path == "options.redact"


def test_paths_are_taken_once_each() -> None:
    assert check_paths(["a.b", "*.c", "a.b"]) == ("a.b", "*.c")


# a merge patch that repeats what was shown


CARD = Redaction(paths=("card.number", "items.*.iban", "note"))
STORED: dict[str, Any] = {
    "card": {"number": "4111", "name": "Ada"},
    "password": "hunter2",
    "url": "postgres://ada:hunter2@db/shop",
    "note": "private",
    "items": [{"iban": "DE1", "n": 1}, {"iban": "DE2", "n": 2}],
    "plain": [1, 2],
}


def patched(patch: dict[str, Any]) -> Any:
    return merge(STORED, CARD.kept(patch, STORED))


def test_who_sends_back_what_was_shown_changes_nothing() -> None:
    assert patched(CARD.value(STORED)) == STORED


def test_what_is_edited_beside_a_hidden_value_is_changed() -> None:
    patch = {"card": {"number": REDACTED, "name": "Eve"}, "plain": [3], "note": REDACTED, "new": 1}

    assert patched(patch) == STORED | {"card": {"number": "4111", "name": "Eve"}, "plain": [3], "new": 1}


def test_a_hidden_value_can_be_changed_and_removed() -> None:
    found = patched({"card": {"number": "5500"}, "password": None, "items": [{"iban": "FR1"}], "note": "x"})

    assert found["card"] == {"number": "5500", "name": "Ada"}
    assert "password" not in found
    assert (found["items"], found["note"]) == ([{"iban": "FR1"}], "x")


def test_the_same_sign_elsewhere_is_a_text_of_the_users_own() -> None:
    patch = {"plain": [REDACTED], "title": REDACTED, "card": {"name": REDACTED}}

    found = patched(patch)

    assert (found["plain"], found["title"], found["card"]["name"]) == ([REDACTED], REDACTED, REDACTED)


def test_a_list_that_begins_with_what_was_shown_may_become_longer() -> None:
    items = [{"iban": REDACTED, "n": 1}, {"iban": REDACTED, "n": 2}, {"iban": "FR1", "n": 3}]

    assert patched({"items": items})["items"] == [*STORED["items"], {"iban": "FR1", "n": 3}]


@pytest.mark.parametrize(
    "patch",
    [
        {"items": [{"iban": REDACTED, "n": 2}]},
        {"items": [{"iban": REDACTED, "n": 9}, {"iban": REDACTED, "n": 2}]},
        {"items": [{"iban": REDACTED, "n": 1}, {"iban": REDACTED, "n": 2}, {"iban": REDACTED, "n": 3}]},
        {"url": f"postgres://ada:{REDACTED}@other/shop"},
        {"plain": [{"token": REDACTED}]},
    ],
)
def test_what_cannot_be_told_is_refused(patch: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="cannot be told"):
        patched(patch)
