"""What makes a Holdfast run jobs, without its faces: what a child process takes of the application that it imports."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.client.providers import Opener
from holdfast.client.starter import Starter
from holdfast.database.tx import Store
from holdfast.runtime import Runtime

ENGINE = "__holdfast_engine__"
"""The attribute of a Holdfast that has it."""


@dataclass(frozen=True, slots=True)
class ChildEngine:
    """The parts of one Holdfast."""

    store: Store
    opener: Opener
    starting: Starter
    runtime: Runtime
