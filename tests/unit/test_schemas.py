"""Arguments of a task that is known by its recorded schema only."""

from __future__ import annotations

import json

import pytest

from holdfast.errors import InvalidInput
from holdfast.tasks.calls import check_arguments

SCHEMA = json.dumps(
    {
        "properties": {
            "name": {"type": "string"},
            "count": {"type": "integer"},
            "rate": {"type": "number"},
            "extra": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["name"],
    }
)


@pytest.mark.parametrize(
    "arguments",
    [{"name": "a"}, {"name": "a", "count": 3, "rate": 1}, {"name": "a", "extra": None}, {"name": "a", "count": 2.0}],
)
def test_arguments_that_fit_pass(arguments: dict[str, object]) -> None:
    check_arguments(json.dumps(arguments), SCHEMA)


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({}, "arguments.name"),
        ({"name": "a", "cuont": 1}, "arguments.cuont"),
        ({"name": 1}, "arguments.name"),
        ({"name": "a", "count": True}, "arguments.count"),
        ({"name": "a", "count": 1.5}, "arguments.count"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_their_path(arguments: dict[str, object], path: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        check_arguments(json.dumps(arguments), SCHEMA)

    assert refusal.value.path == path


def test_a_schema_without_words_lets_everything_pass() -> None:
    check_arguments('{"anything":1}', "{}")
