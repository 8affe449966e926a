"""Finding those of many who break what is done for all of them at once: by halves, until each of them is alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Divided(NamedTuple, Generic[T, R]):
    """What was done for whom, and who has broken it, with the error."""

    done: list[tuple[T, R]]
    broken: list[tuple[T, Exception]]


async def divide(
    members: Sequence[T],
    act: Callable[[Sequence[T]], Awaitable[Sequence[R]]],
    is_theirs: Callable[[], Awaitable[bool]],
) -> Divided[T, R]:
    """Have *act* done for all *members*, which answers in their order; if that fails, for each half of them.

    *Is_theirs* tells, after a failure, whether it can be for one of them; if it is for everybody, it is raised.
    """
    if not members:
        return Divided([], [])
    try:
        return Divided(list(zip(members, await act(members), strict=True)), [])
    except Exception as error:
        if not await is_theirs():
            raise
        if len(members) == 1:
            return Divided([], [(members[0], error)])
    middle = len(members) // 2
    halves = [await divide(half, act, is_theirs) for half in (members[:middle], members[middle:])]
    return Divided([each for half in halves for each in half.done], [each for half in halves for each in half.broken])
