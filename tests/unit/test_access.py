"""Tokens as texts: a typo is told from a token, and roles are in an order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.access import DIGITS, TOKEN_BITS, Role, hash_of, is_token, make_token

bits = st.integers(0, 2**TOKEN_BITS - 1)


@given(bits)
def test_what_is_made_is_a_token(given_bits: int) -> None:
    assert is_token(make_token(given_bits))


@given(bits, bits)
def test_other_bits_make_another_token(one: int, other: int) -> None:
    assert (make_token(one) == make_token(other)) == (one == other)


@given(bits, st.data())
def test_one_wrong_character_makes_it_none(given_bits: int, data: st.DataObject) -> None:
    token = make_token(given_bits)
    place = data.draw(st.integers(0, len(token) - 1))
    wrong = data.draw(st.sampled_from(DIGITS).filter(lambda each: each != token[place]))

    assert not is_token(token[:place] + wrong + token[place + 1 :])


@given(bits, st.data())
def test_two_characters_that_have_changed_places_make_it_none(given_bits: int, data: st.DataObject) -> None:
    token = make_token(given_bits)
    place = data.draw(st.integers(0, len(token) - 2))
    swapped = token[:place] + token[place + 1] + token[place] + token[place + 2 :]

    assert is_token(swapped) == (swapped == token)


@given(st.text(max_size=80) | st.text(DIGITS, min_size=49, max_size=49).map("hf_".__add__))
def test_any_other_text_is_none(text: str) -> None:
    assert not is_token(text)


@given(bits, st.integers(0, 51))
def test_a_part_of_one_is_none(given_bits: int, length: int) -> None:
    assert not is_token(make_token(given_bits)[:length])


def test_what_is_stored_is_the_sha_256() -> None:
    assert hash_of("hf_") == "f8f35e0f6a43478b8aaee54cd049bace327a8ac27cf485b707f1ea362dea3c39"


def test_each_role_may_do_what_those_before_it_may() -> None:
    order = [Role.GUEST, Role.VIEWER, Role.OPERATOR, Role.ADMIN]

    for place, role in enumerate(order):
        assert [each for each in order if role.allows(each)] == order[: place + 1]
