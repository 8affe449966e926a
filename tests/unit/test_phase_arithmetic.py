"""The arithmetic of phases, the names that they may have, and how their results are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from fractions import Fraction
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Tasks
from holdfast.errors import InvalidInput, InvalidOutput, Misuse
from holdfast.tasks.phases import LONGEST_NAME, MOST_PHASES, check_phases, half_up, overall, percent_of, result_codec


@pytest.mark.source("PQ-28")
@pytest.mark.parametrize(("position", "percent", "expected"), [(0, 50, 17), (1, 25, 42), (2, 80, 93)])
def test_three_phases_as_the_source_has_them(position: int, percent: int, expected: int) -> None:
    assert overall(position, 3, percent) == expected


@given(st.integers(1, 1000), st.data(), st.integers(0, 100))
def test_the_whole_is_rounded_half_up_exactly(total: int, data: st.DataObject, percent: int) -> None:
    position = data.draw(st.integers(0, total - 1))

    exact = Fraction(100 * position + percent, total)

    assert overall(position, total, percent) == (exact + Fraction(1, 2)).__floor__()


@given(st.integers(1, 1000))
def test_the_end_of_one_phase_is_the_beginning_of_the_next(total: int) -> None:
    ends = [overall(position, total, 100) for position in range(total)]

    assert ends[:-1] == [overall(position, total, 0) for position in range(1, total)]
    assert ends[-1] == 100


@pytest.mark.parametrize(("number", "expected"), [(0.5, 1), (1.5, 2), (2.5, 3), (0.49999999999999994, 0), (99.5, 100)])
def test_a_half_is_rounded_up(number: float, expected: int) -> None:
    assert half_up(number) == expected


COUNTED = [(40, None, 40), (-3, None, 0), (250, None, 100), (3, 4, 75), (0, 0, 100), (9, 4, 100)]


@pytest.mark.parametrize(("done", "total", "percent"), COUNTED)
def test_percent_is_given_or_counted(done: float, total: float | None, percent: float) -> None:
    assert percent_of(done, total) == percent


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), "50", b"5", None, True, [], 10**400, pytest.param(10**5000, id="long")]
)
def test_what_is_no_number_is_no_percentage(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"progress must be a number"):
        percent_of(value)


REFUSED: list[tuple[object, str]] = [
    ("download", "phases must be a list of names"),
    (7, "phases must be a list of names"),
    (["download", "download"], "phases names 'download' twice"),
    ([""], "a phase cannot be called"),
    ([" a"], "a phase cannot be called"),
    (["a\nb"], "a phase cannot be called"),
    ([7], "a phase cannot be called"),
    (["run"], "a phase cannot be called 'run'"),
    (["x" * (LONGEST_NAME + 1)], "at most 100 characters, got 101"),
    ([str(n) for n in range(MOST_PHASES + 1)], "at most 1000, got 1001"),
]


@pytest.mark.parametrize(("names", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_names_that_cannot_be_are_refused_where_the_task_is_registered(names: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):

        @Tasks().task(name="film", phases=names)
        async def film() -> None: ...


def test_the_phases_of_a_task_stand_in_its_row() -> None:
    @Tasks().task(name="film", phases=["download", "encode it"])
    async def film() -> None: ...

    assert film.policy.phases == ("download", "encode it")
    assert '"phases":["download","encode it"]' in film.record().policy
    assert check_phases(()) == ()


def unannotated():  # type: ignore[no-untyped-def]
    return 1


def floats(n: int) -> list[float]:
    return [float(n)]


def promised() -> Awaitable[int]: ...  # type: ignore[empty-body]


class Callers:
    def method(self) -> list[float]:
        return []

    def __call__(self) -> list[float]:
        return []


CALLED = [floats, partial(floats, 1), partial(partial(floats), 1), Callers().method, Callers()]


@pytest.mark.parametrize("function", CALLED)
def test_a_result_is_read_by_the_return_annotation_of_whatever_is_called(function: Callable[..., Any]) -> None:
    codec = result_codec(function, "measure", "film")

    assert codec.decode(codec.encode(codec.check([1]))) == [1.0]
    with pytest.raises(InvalidOutput, match=r"phase measure\[0\].*\(task film: "):
        codec.check(["x"])


def test_a_result_without_an_annotation_is_plain_json() -> None:
    assert result_codec(unannotated, "measure", "film").decode('{"a":[1]}') == {"a": [1]}


def test_what_is_awaited_is_read_by_what_it_gives() -> None:
    assert result_codec(promised, "measure", "film").check("7") == 7


def test_an_annotation_that_cannot_be_resolved_or_read_is_refused() -> None:
    class Local:
        pass

    def unknown() -> Local: ...  # type: ignore[empty-body]

    with pytest.raises(Misuse, match=r"phase 'measure' cannot be resolved \(name 'Local' is not defined\)"):
        result_codec(unknown, "measure", "film")


def open_file() -> open: ...  # type: ignore[valid-type]


def test_a_type_that_pydantic_does_not_know_is_refused() -> None:
    with pytest.raises(
        Misuse, match=r"the phase measure of task film cannot be stored: .*; use types that pydantic knows"
    ):
        result_codec(open_file, "measure", "film")
