"""A declared task is called with the fields of its input, and gives what it was declared to give."""

from dataclasses import dataclass
from typing import assert_type

from pydantic import BaseModel
from typing_extensions import TypedDict

from holdfast.tasks.calls import Call
from holdfast.tasks.registry import Tasks

tasks = Tasks()


class ChargeInput(BaseModel):
    order_id: int
    note: str = ""


@dataclass
class Receipt:
    number: int


class Letter(TypedDict):
    to: str


charge = tasks.declare("billing.charge", ChargeInput, Receipt)
refund = tasks.declare("billing.refund", Receipt, str, queue="billing")
post = tasks.declare("mail.post", Letter, bool)
void = tasks.declare("billing.void", ChargeInput, None)

assert_type(charge(order_id=1), Call[Receipt])
assert_type(charge(order_id=1, note="x").options(delay=5), Call[Receipt])
assert_type(refund(number=1), Call[str])
assert_type(refund(1), Call[str])
assert_type(post(to="Ada"), Call[bool])
assert_type(void(order_id=1), Call[None])

charge(order_id="one")  # refused
charge()  # refused
refund(number="one")  # refused
tasks.declare("billing.void", ChargeInput, Receipt, colour="red")  # refused
tasks.declare("billing.void", 5, Receipt)  # refused
