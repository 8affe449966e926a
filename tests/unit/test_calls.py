"""Options of a call: each is checked at once, put into the store's units, and replaces what stood before."""

from __future__ import annotations

import gc
import subprocess
import sys
import warnings
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from holdfast.errors import InvalidId, InvalidInput, Misuse
from holdfast.models import Unique
from holdfast.tasks.calls import Call, Options, StartOptions, Unset

ID = UUID("0198c0de-0000-7000-8000-000000000000")
OTHER_ID = UUID("0198c0de-0000-7000-8000-000000000001")


def chosen(**given: Any) -> Options:
    return Options().but(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"delay": 60}, Options(delay_ms=60_000)),
        ({"delay": 0.25}, Options(delay_ms=250)),
        ({"delay": 0}, Options(delay_ms=0)),
        ({"delay": timedelta(minutes=1)}, Options(delay_ms=60_000)),
        ({"delay": None}, Options()),
        ({"run_at": datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=UTC)}, Options(run_at_ms=1_000)),
        ({"run_at": datetime(1969, 12, 31, tzinfo=UTC)}, Options(run_at_ms=-86_400_000)),
        ({"priority": -100}, Options(priority=-100)),
        ({"queue": "mail"}, Options(queue="mail")),
        ({"lane": "vm 7, Zürich"}, Options(lane="vm 7, Zürich")),
        ({"lane": None}, Options()),
        ({"paused": True}, Options(paused=True)),
        ({"unique": "ada"}, Options(unique=Unique("ada"))),
        ({"unique": Unique("ada", "any")}, Options(unique=Unique("ada", "any"))),
        ({"unique": Unique("a", within=timedelta(hours=1))}, Options(unique=Unique("a", within=3600.0))),
        ({"unique": None}, Options()),
        ({"webhook": "https://example.org/hook"}, Options(webhook="https://example.org/hook")),
        ({"webhook": None}, Options(webhook=None)),
        ({"tags": ["b", "a", "b"]}, Options(tags=("b", "a"))),
        ({"on_blocker_failure": "wait"}, Options(on_blocker_failure="wait")),
        ({"id": str(ID)}, Options(id=ID)),
        ({"id": ID}, Options(id=ID)),
        ({"blockers": [ID, str(OTHER_ID)]}, Options(blockers=(ID, OTHER_ID))),
        ({"blockers": [SimpleNamespace(id=ID)]}, Options(blockers=(ID,))),
        ({"blockers": ()}, Options()),
    ],
)
def test_an_option_is_put_into_the_stores_units(given: StartOptions, expected: Options) -> None:
    assert chosen(**given) == expected


@pytest.mark.parametrize(
    "given",
    [
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": float("inf")},
        {"delay": 1e300},
        {"delay": timedelta(days=-1)},
        {"delay": "60"},
        {"delay": True},
        {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001 - naive on purpose
        {"run_at": "2030-01-01"},
        {"attempts": 0},
        {"attempts": 2.0},
        {"attempts": True},
        {"attempts": "3"},
        {"attempts": 2**40},
        {"run_at": datetime(2200, 1, 1, tzinfo=UTC)},
        {"priority": 101},
        {"priority": 1.5},
        {"priority": True},
        {"queue": ""},
        {"queue": None},
        {"queue": "x" * 201},
        {"queue": "a\nb"},
        {"lane": "\0"},
        {"lane": "\ud800"},
        {"lane": "a\u2028b"},
        {"lane": 7},
        {"paused": 1},
        {"unique": ""},
        {"unique": 7},
        {"unique": "x" * 501},
        {"unique": Unique("a\0")},
        {"unique": Unique("a", "ever")},  # type: ignore[arg-type]
        {"unique": Unique("a", within=-1)},
        {"webhook": "ftp://example.org"},
        {"webhook": "example.org/hook"},
        {"webhook": "https://"},
        {"webhook": "http://[broken"},
        {"webhook": "https://example.org/\r\nX-Forged: 1"},
        {"webhook": 7},
        {"tags": "mail"},
        {"tags": ["ok", ""]},
        {"tags": [str(n) for n in range(21)]},
        {"blockers": str(ID)},
        {"blockers": ID},
        {"on_blocker_failure": "explode"},
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_refused_with_its_name(given: dict[str, object]) -> None:
    with pytest.raises(InvalidInput) as caught:
        chosen(**given)

    assert caught.value.path.startswith(f"options.{next(iter(given))}")


@pytest.mark.source("JC-88")
@pytest.mark.parametrize("given", [{"id": "7"}, {"id": 7}, {"blockers": ["7"]}, {"blockers": [None]}])
def test_what_is_not_an_id_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(InvalidId):
        chosen(**given)


@pytest.mark.source("JC-5")
def test_delay_and_run_at_together_are_refused() -> None:
    with pytest.raises(InvalidInput, match="give only one of them"):
        chosen(delay=1, run_at=datetime.now(UTC))


def test_a_later_delay_takes_the_place_of_an_earlier_run_at() -> None:
    assert chosen(run_at=datetime.now(UTC)).but({"delay": 1}) == Options(delay_ms=1_000)


def test_options_that_are_not_given_again_stay() -> None:
    assert chosen(lane="a", priority=3).but({"priority": 4}) == Options(lane="a", priority=4)


def test_an_option_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(
        Misuse,
        match=r"start\(\) has no option 'dealy'; did you mean delay\? The options are: attempts, blockers, delay, id",
    ):
        chosen(dealy=1)


def test_a_webhook_that_was_not_given_is_not_a_silenced_one() -> None:
    assert chosen().webhook is Unset.UNSET


def test_options_give_a_new_call_and_leave_the_old_one() -> None:
    call: Call[str] = Call("greet", "{}")

    changed = call.options(lane="a").consume()

    assert (call.chosen, changed.chosen) == (Options(), Options(lane="a"))


def test_a_call_does_not_show_its_arguments() -> None:
    assert "hush" not in repr(Call("greet", '{"name":"hush"}').consume())


async def test_awaiting_a_call_raises_with_the_line_to_write() -> None:
    call: Any = Call("billing.charge", "{}")

    with pytest.raises(Misuse, match=r"write `await hf\.start\(charge\(…\)\)`, or `charge\.run\(…\)`"):
        await call


def test_a_call_that_is_never_used_warns_with_the_line_to_write() -> None:
    with pytest.warns(
        RuntimeWarning, match=r"the call greet\(…\) was never started, so no job exists; write `await hf\.start\(greet"
    ):
        Call("mail.greet", "{}")


def test_the_warning_points_at_the_line_that_dropped_the_call() -> None:
    with pytest.warns(RuntimeWarning) as caught:
        Call("greet", "{}")

    assert caught[0].filename == __file__


@pytest.mark.parametrize("use", [Call.consume, lambda call: call.options(lane="a").consume()])
def test_a_call_that_is_used_does_not_warn(use: Any) -> None:
    with warnings.catch_warnings(record=True) as caught:
        use(Call("greet", "{}"))
        gc.collect()

    assert caught == []


def test_a_call_that_outlives_the_program_does_not_warn() -> None:
    source = "from holdfast.tasks.calls import Call; kept = Call('greet', '{}')"

    ran = subprocess.run([sys.executable, "-Walways", "-c", source], capture_output=True, text=True, check=True)

    assert ran.stderr == ""
