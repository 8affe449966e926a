"""Questions for people: what a task may ask, and that nothing runs in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import InvalidInput, Misuse, Question, Tasks
from holdfast.questions import HELP_LENGTH, PEOPLE, TITLE_LENGTH
from holdfast.worker.options import wants_of

ASKS = Question("Approve the refund?")


@dataclass
class Refund:
    order: int


@pytest.mark.parametrize("title", ["x", "x" * TITLE_LENGTH, "Größe ok?"])
def test_a_title_is_one_line_of_1_to_200_characters(title: str) -> None:
    assert Question(title).title == title


@pytest.mark.parametrize("title", ["", " ", "x" * (TITLE_LENGTH + 1), "two\nlines", "nul\0", "\ud800", 7, None])
def test_another_title_is_refused(title: Any) -> None:
    with pytest.raises(InvalidInput, match="one line of 1 to 200 characters") as refused:
        Question(title)
    assert refused.value.path == "asks.title"


def test_a_help_has_at_most_2000_characters_and_may_have_lines() -> None:
    assert Question("a", help="x\n" * (HELP_LENGTH // 2)).help
    for help_ in ("x" * (HELP_LENGTH + 1), "nul\0", 7):
        with pytest.raises(InvalidInput, match="at most 2,000 characters"):
            Question("a", help=help_)  # type: ignore[arg-type]


def dots(order: int) -> bool: ...  # type: ignore[empty-body]


async def dots_later(order: int) -> bool: ...  # type: ignore[empty-body]


def passes(order: int) -> bool:  # type: ignore[empty-body]
    pass


async def documented(order: int) -> bool:  # type: ignore[empty-body]
    """Say whether the order may be refunded."""


async def documented_dots(order: int) -> bool:  # type: ignore[empty-body]
    """Say whether the order may be refunded."""


def raises(order: int) -> bool:
    raise NotImplementedError


async def documented_raises(order: int) -> bool:
    """Say whether the order may be refunded."""
    raise NotImplementedError


@pytest.mark.parametrize("function", [dots, dots_later, passes, documented, documented_dots, raises, documented_raises])
def test_a_function_without_a_body_may_ask(function: Any) -> None:
    task = Tasks().task(asks=ASKS)(function)

    assert task.policy.queue == PEOPLE
    assert task.__doc__ == function.__doc__
    assert task(order=7).consume().chosen.queue == PEOPLE


def answers(order: int) -> bool:
    return True


async def answers_later(order: int) -> str:
    return "yes"


async def documented_answers(order: int) -> str:
    """Say whether the order may be refunded."""
    return "yes"


def calls(order: int) -> None:
    print(order)


def raises_another(order: int) -> bool:
    raise ValueError


@pytest.mark.parametrize("function", [answers, answers_later, documented_answers, calls, raises_another])
def test_a_function_with_a_body_may_not_ask(function: Any) -> None:
    with pytest.raises(Misuse, match=rf"^{function.__name__} asks a person, .*leave asks= out"):
        Tasks().task(asks=ASKS)(function)


def test_no_worker_claims_what_a_person_is_asked() -> None:
    tasks = Tasks()
    tasks.task(name="approve", asks=ASKS)(dots)
    tasks.declare("choose", Refund, bool, asks=ASKS)
    tasks.task(name="refund")(answers)

    assert {each.task for each in wants_of(tasks, ["default", PEOPLE])} == {"refund"}
    assert {each.queue for each in wants_of(tasks, None)} == {"default"}


def test_a_question_waits_in_the_queue_of_people_unless_another_is_chosen() -> None:
    tasks = Tasks()

    assert tasks.task(name="a", asks=ASKS)(dots).policy.queue == PEOPLE
    assert tasks.task(name="b", asks=ASKS, queue="legal")(dots).policy.queue == "legal"
    assert tasks.declare("c", Refund, bool, asks=ASKS)(order=1).consume().chosen.queue == PEOPLE
    assert tasks.declare("d", Refund, bool, asks=ASKS, queue="legal")(order=1).consume().chosen.queue == "legal"
    assert tasks.declare("e", Refund, bool, asks=None)(order=1).consume().chosen.queue is None


def test_there_is_nothing_to_run_of_a_question() -> None:
    approve = Tasks().task(name="approve", asks=ASKS)(dots)

    with pytest.raises(Misuse, match=r"asks a person, so there is nothing to run; write hf.complete\(\)"):
        approve.run(order=1)


@pytest.mark.parametrize("asks", ["Approve?", True, {"title": "Approve?"}])
def test_asks_takes_a_question_only(asks: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r'asks must be a Question, got .*; write asks=Question\("Approve the refund'
    ):
        Tasks().declare("approve", Refund, bool, asks=asks)


async def around(ctx: Any, following: Any) -> Any:
    return await following()


@pytest.mark.parametrize("name", ["timeout", "phases", "run_in", "middleware"])
def test_what_is_for_handlers_is_refused_beside_asks(name: str) -> None:
    values: dict[str, Any] = {"timeout": 5, "phases": ["a"], "run_in": "process", "middleware": [around]}

    with pytest.raises(InvalidInput, match=f"^{name} is for handlers, and a task with asks= has none"):
        Tasks().task(asks=ASKS, **{name: values[name]})(dots)


def test_the_registry_may_choose_retries_for_all_its_tasks_beside_a_question() -> None:
    tasks = Tasks(lease=60)

    assert tasks.task(name="approve", asks=ASKS)(dots).is_declared


def test_the_policy_says_what_is_asked() -> None:
    task = Tasks().task(name="approve", asks=Question("Approve?", help="See the invoice."))(dots)

    assert task.policy.record()["asks"] == {"title": "Approve?", "help": "See the invoice."}
    assert Question.of_policy(task.policy.record()) == Question("Approve?", help="See the invoice.")


@pytest.mark.parametrize("policy", [None, [], {}, {"asks": 1}, {"asks": {}}, {"asks": {"title": "a", "help": 7}}])
def test_a_policy_that_asks_nothing_readable_asks_nothing(policy: Any) -> None:
    assert Question.of_policy(policy) is None
