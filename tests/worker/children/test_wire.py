"""Messages between a worker and its children: whole, in order, and nothing but JSON (S-25)."""

from __future__ import annotations

import ast
from pathlib import Path
from uuid import UUID

import pytest

import holdfast.worker.children
from holdfast.models import BlockerEnd, Continuation, Start
from holdfast.outcomes import Kind, Outcome
from holdfast.states import Status
from holdfast.store.jobs.claiming import Claimed, ProgressReport, Token
from holdfast.worker.children.messages import JOB, OUTCOME, REPORT, MessageReader, encode

TOKEN = Token(7, 2, "nonce")
ID = UUID("01890000-0000-7000-8000-000000000001")
SHIP = Start(id=ID, task="ship", input="{}", queue="default")
SOURCES = sorted(Path(holdfast.worker.children.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_messages_are_whole_however_they_arrive(size: int) -> None:
    sent = encode("run", text="a\nb", number=1) + encode("end") + encode("abort", reason="ü")
    lines = MessageReader()

    heard = [message for start in range(0, len(sent), size) for message in lines.feed(sent[start : start + size])]

    assert heard == [
        {"say": "run", "text": "a\nb", "number": 1},
        {"say": "end"},
        {"say": "abort", "reason": "ü"},
    ]


def test_a_job_arrives_as_it_was_sent() -> None:
    end = BlockerEnd(ID, "load", Status.COMPLETED, "1")
    job = Claimed(
        TOKEN, str(ID), str(ID), 0, "charge", "default", "lane", "{}", 1, 2, 5, "step", 3, "{}", 7, 8, 90, False, (end,)
    )

    assert JOB.validate_python(JOB.dump_python(job, mode="json")) == job


@pytest.mark.parametrize(
    "outcome",
    [
        None,
        Outcome(Kind.COMPLETE, output="[1]"),
        Outcome(Kind.RETRY, error='{"type": "OSError"}', delay_ms=10_000),
        Outcome(Kind.COMPLETE, successor=Continuation(SHIP, frozenset({"lane"}))),
    ],
)
def test_an_outcome_arrives_as_it_was_sent(outcome: Outcome | None) -> None:
    assert OUTCOME.validate_python(OUTCOME.dump_python(outcome, mode="json", exclude_defaults=True)) == outcome


def test_a_report_arrives_as_it_was_sent() -> None:
    report = ProgressReport(TOKEN, 50, "half", "upload", 2, 20)

    assert REPORT.validate_python(REPORT.dump_python(report, mode="json")) == report


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_nothing_that_is_sent_can_be_run(path: Path) -> None:
    tree = ast.parse(path.read_text())
    imported = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    called = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}

    assert not imported & {"pickle", "marshal", "shelve"}
    assert not called & {"eval", "exec", "compile"}


def test_messages_before_one_that_cannot_be_understood_are_heard() -> None:
    heard = MessageReader().feed(encode("taken") + b"what is this\n" + encode("ended"))

    assert next(heard) == {"say": "taken"}
    with pytest.raises(ValueError, match="Expecting value"):
        next(heard)
