"""What a verb refuses before it asks the database anything, in words that say what to write."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast, filters
from holdfast.errors import InvalidInput, Misuse
from holdfast.sync import BlockingHoldfast

IDS = [uuid4(), uuid4()]


@pytest.fixture
def face(tmp_path: Path) -> BlockingHoldfast:
    """A face whose database is never opened."""
    return Holdfast(str(tmp_path / "jobs.db")).sync


STEERING = ["cancel", "pause", "resume", "retry", "trigger", "start_again"]
WITHOUT_ORDER = [lambda: iter(IDS), lambda: set(IDS), lambda: dict.fromkeys(IDS)]


@pytest.mark.parametrize("verb", [f"{verb}_many" for verb in STEERING])
@pytest.mark.parametrize("several", WITHOUT_ORDER)
def test_several_without_an_order_are_refused(face: BlockingHoldfast, verb: str, several: Callable[[], Any]) -> None:
    with pytest.raises(InvalidInput, match=r"write list\(…\)"):
        getattr(face, verb)(several())


@pytest.mark.parametrize("verb", [*STEERING, "delete"])
@pytest.mark.parametrize("several", [lambda: IDS, lambda: tuple(IDS), list, *WITHOUT_ORDER])
def test_several_are_refused_with_the_line_to_write(
    face: BlockingHoldfast, verb: str, several: Callable[[], Any]
) -> None:
    with pytest.raises(InvalidInput, match=rf"write hf\.{verb}_many\(\[…\]\)$"):
        getattr(face, verb)(several())


def test_a_list_of_jobs_is_not_rescheduled_by_the_verb_for_one(face: BlockingHoldfast) -> None:
    several: Any = IDS

    with pytest.raises(InvalidInput, match=r"write hf\.reschedule_many\(\[…\]\)$"):
        face.reschedule(several, after=60)


@pytest.mark.parametrize("verb", [f"{verb}_many" for verb in STEERING])
@pytest.mark.parametrize("one", [IDS[0], str(IDS[0])], ids=["id", "text"])
def test_one_job_is_no_list_of_them(face: BlockingHoldfast, verb: str, one: Any) -> None:
    with pytest.raises(InvalidInput, match=r"got .*; write \[job\]$"):
        getattr(face, verb)(one)


@pytest.mark.parametrize("verb", ["wait", "delete_many"])
@pytest.mark.parametrize("one", [IDS[0], str(IDS[0])], ids=["id", "text"])
def test_one_chain_is_no_list_of_them(face: BlockingHoldfast, verb: str, one: Any) -> None:
    with pytest.raises(InvalidInput, match=r"got .*; write \[chain\]$"):
        getattr(face, verb)(one)


@pytest.mark.parametrize("said", [{"by": b"ada"}, {"why": b""}, {"by": 7}, {"why": ["late"]}])
def test_who_asks_and_why_are_texts(face: BlockingHoldfast, said: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a text, got") as refusal:
        face.cancel(uuid4(), **said)

    assert refusal.value.path in said


def test_a_job_is_completed_by_its_task_and_looked_at_by_no_name(face: BlockingHoldfast, tmp_path: Path) -> None:
    by_name: Any = "approve"
    by_function: Any = print

    with pytest.raises(Misuse, match=r"hf\.complete\(\) takes the task itself"):
        face.complete(by_function, uuid4(), True)
    with pytest.raises(Misuse, match=r"hf\.completing\(\) takes the task itself"):
        face.completing(by_name, uuid4()).__enter__()

    assert not list(tmp_path.iterdir())


WORDS = ["task", "status", "queue", "lane", "tag", "worker", "error", "chain_task"]


@pytest.mark.parametrize("name", [*WORDS, "id", "chain", "input"])
@pytest.mark.parametrize("empty", [list, tuple, set, dict])
def test_an_empty_list_is_no_filter(face: BlockingHoldfast, name: str, empty: Callable[[], Any]) -> None:
    narrowed: Any = {"internal": True, name: empty()}

    with pytest.raises(InvalidInput, match=f"{name} is empty, which fits no job; leave it out if any will do"):
        face.list_jobs(**narrowed)
    with pytest.raises(InvalidInput, match=f"{name} is empty"):
        face.bulk("delete", **{"parent": IDS[0], **narrowed})


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "got None; leave .*= out if any will do"),
        ([None], "got None; leave .*= out if any will do"),
        (5, "got 5$"),
        (ValueError, "got a type; write 'ValueError'"),
    ],
)
def test_filters_by_words_take_only_texts(face: BlockingHoldfast, name: str, value: Any, said: str) -> None:
    narrowed: Any = {name: value}

    with pytest.raises(InvalidInput, match=rf"{name} must be a text or a list of texts, {said}"):
        face.list_jobs(**narrowed)


def test_a_task_is_found_by_its_name(face: BlockingHoldfast, tmp_path: Path) -> None:
    hf = Holdfast(str(tmp_path / "other.db"))

    @hf.task(name="charge")
    def charge(order_id: int) -> None:
        """Take part in nothing."""

    wanted: Any = charge
    with pytest.raises(InvalidInput, match=r"task must be a text or a list of texts, got .*; write 'charge'"):
        face.list_jobs(task=wanted)


@pytest.mark.parametrize("name", ["created_from", "created_to"])
@pytest.mark.parametrize("value", ["2026-05-04", 5], ids=["text", "number"])
def test_the_time_of_a_filter_is_a_datetime(face: BlockingHoldfast, name: str, value: Any) -> None:
    narrowed: Any = {name: value}

    with pytest.raises(InvalidInput, match=rf"{name} must be a timezone-aware datetime, got .*timedelta\(hours=2\)"):
        face.list_jobs(**narrowed)


@pytest.mark.parametrize("name", ["everything", "dry_run", "cascade", "internal"])
def test_a_switch_of_bulk_is_true_or_false(face: BlockingHoldfast, name: str) -> None:
    switched: Any = {name: "no", **({} if name == "everything" else {"task": "mail"})}

    with pytest.raises(InvalidInput, match=rf"{name} must be True or False, got the text 'no'"):
        face.bulk("delete", **switched)


def test_a_filter_as_text_needs_a_text_and_a_time_with_its_zone() -> None:
    nothing: Any = None

    with pytest.raises(InvalidInput, match="a filter must be a text, got None"):
        filters.parse(nothing, datetime.now(UTC))
    with pytest.raises(InvalidInput, match="now must be a timezone-aware datetime"):
        filters.parse("since:2h", datetime(2026, 5, 4))  # noqa: DTZ001 - this is what is refused


def test_what_is_refused_is_told_with_the_names_of_its_verb(face: BlockingHoldfast) -> None:
    text: Any = "5"
    number: Any = 5
    with pytest.raises(InvalidInput, match=r"after must be seconds or a timedelta, .*; write after=60 for a minute"):
        face.reschedule(IDS[0], after=text)
    with pytest.raises(InvalidInput, match=r"for more, pass after=page\.next_cursor"):
        face.journal(IDS[0], limit=501)
    with pytest.raises(InvalidInput, match=r"kind must be that of an entry, or None for all, got the text 'Message'"):
        face.journal(IDS[0], kind="Message")
    with pytest.raises(InvalidInput, match="prefix must be one text, got 5"):
        face.list_lanes(prefix=number)
    misspelt: Any = {"knid": "asked"}
    with pytest.raises(Misuse, match="did you mean kind"):
        face.inbox(**misspelt)
    misspelt = {"prefx": "vm-"}
    with pytest.raises(Misuse, match="did you mean prefix"):
        face.list_lanes(**misspelt)
