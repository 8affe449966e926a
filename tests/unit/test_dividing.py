"""Who breaks what is done for many at once is found by halves, and keeps nobody else from it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.worker.hosts.dividing import divide


class Looks:
    """What is done for many, and fails if one of *broken* is among them."""

    def __init__(self, *broken: int, is_away: bool = False) -> None:
        self._broken = broken
        self._is_away = is_away
        self.calls: list[list[int]] = []

    async def __call__(self, members: Sequence[int]) -> list[str]:
        self.calls.append(list(members))
        if self._is_away or any(each in self._broken for each in members):
            raise ValueError("broken")
        return [f"found {each}" for each in members]

    async def is_theirs(self) -> bool:
        return not self._is_away


async def test_if_nobody_is_broken_it_is_one_call() -> None:
    looks = Looks()

    done, broken = await divide(range(25), looks, looks.is_theirs)

    assert done == [(each, f"found {each}") for each in range(25)]
    assert broken == []
    assert len(looks.calls) == 1


@pytest.mark.parametrize("broken", [(0,), (24,), (3, 17), (1, 2, 3), tuple(range(25))])
async def test_all_but_the_broken_ones_are_looked_at(broken: tuple[int, ...]) -> None:
    looks = Looks(*broken)

    done, found = await divide(range(25), looks, looks.is_theirs)

    assert [each for each, _ in done] == [each for each in range(25) if each not in broken]
    assert [each for each, _ in found] == list(broken)


async def test_one_broken_of_25_costs_ten_calls_more() -> None:
    looks = Looks(11)

    await divide(range(25), looks, looks.is_theirs)

    assert len(looks.calls) <= 11


async def test_what_fails_for_everybody_is_nobodys_fault() -> None:
    looks = Looks(is_away=True)

    with pytest.raises(ValueError, match="broken"):
        await divide(range(25), looks, looks.is_theirs)

    assert len(looks.calls) == 1


async def test_of_nobody_nothing_is_done() -> None:
    looks = Looks()

    assert await divide([], looks, looks.is_theirs) == ([], [])
    assert looks.calls == []
