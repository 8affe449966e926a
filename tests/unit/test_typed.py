"""Reading what is stored by the types of the code that is here: nothing stored makes a read fail."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import AfterValidator

from holdfast import Tasks
from holdfast.tasks.decoder import Decoder


def in_stock(name: str) -> str:
    """Look a name up, as users' validators do."""
    return {"apple": "Apple"}[name]


TASKS = Tasks()


@TASKS.task(name="pick")
async def pick() -> Annotated[str, AfterValidator(in_stock)]:
    """Give what is in stock."""
    return "apple"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param('"apple"', "Apple", id="one that fits"),
        pytest.param("7", 7, id="one that no longer fits"),
        pytest.param('"pear"', "pear", id="one by which a validator raises its own error"),
    ],
)
def test_a_value_that_cannot_be_read_by_its_type_is_given_as_plain_json(text: str, value: object) -> None:
    assert Decoder(TASKS).output("pick", text) == value
