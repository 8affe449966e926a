"""What makes a Holdfast run jobs, without its faces: what a child process takes of the application that it imports."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.providers import Opener
from holdfast.starting import Starting
from holdfast.store.tx import Store
from holdfast.surroundings import Surroundings

ENGINE = "__holdfast_engine__"
"""The attribute of a Holdfast that has it."""


@dataclass(frozen=True, slots=True)
class Engine:
    """The parts of one Holdfast."""

    store: Store
    opener: Opener
    starting: Starting
    surroundings: Surroundings
