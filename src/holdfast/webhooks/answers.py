"""What comes of posting a webhook: an answer, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Answer:
    """What a receiver has answered; *text* is the beginning of its body, *headers* have names in small letters."""

    status: int
    seconds: float
    text: str
    headers: Mapping[str, str] = field(default_factory=dict)


class NotPosted(Exception):
    """There was no answer; *problem* is one word: address, dns, connect, tls, timeout, protocol, too_long."""

    def __init__(self, problem: str, what: str, seconds: float) -> None:
        super().__init__(what)
        self.problem = problem
        self.seconds = seconds


class Posts(Protocol):
    """What posts one message to one receiver: `posting.Poster`, unless another is handed in."""

    async def post(self, address: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Post *body* with *headers* to *address*; give the answer, or raise `NotPosted`."""
