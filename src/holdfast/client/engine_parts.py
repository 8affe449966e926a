"""The parts of one `Holdfast` that its workers share with it, and that a child process makes anew."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.client.providers import Opener
from holdfast.client.starter import Starter
from holdfast.database.tx import Store
from holdfast.runtime import Runtime


class EngineParts(NamedTuple):
    """What a worker needs of its `Holdfast`, which has them as `__holdfast_engine__`."""

    store: Store
    opener: Opener
    starter: Starter
    runtime: Runtime
