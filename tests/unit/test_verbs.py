"""What a verb refuses before it asks the database anything, in words that say what to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Holdfast
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


def test_a_job_is_completed_by_its_task_and_not_by_the_name_of_it(face: BlockingHoldfast, tmp_path: Path) -> None:
    by_name: Any = "approve"

    with pytest.raises(Misuse, match=r"hf\.complete\(\) takes the task itself"):
        face.complete(by_name, uuid4(), True)
    with pytest.raises(Misuse, match=r"hf\.completing\(\) takes the task itself"):
        face.completing(by_name, uuid4()).__enter__()

    assert not list(tmp_path.iterdir())
