"""A chain in the hand: what was read of it, and a way to wait for its result, in the colour of its face."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import fields
from datetime import timedelta
from operator import attrgetter
from typing import Any, ClassVar, Self, TypeAlias, TypeVar
from uuid import UUID

from holdfast import models
from holdfast.database.tx import drive
from holdfast.errors import Misuse

R_co = TypeVar("R_co", covariant=True)

Seconds: TypeAlias = float | timedelta
GetResult: TypeAlias = Callable[[UUID, Seconds | None], Coroutine[Any, Any, Any]]

_values_of = attrgetter(*(each.name for each in fields(models.StoredChain)))


class ChainHandle(models.StoredChain[R_co]):
    """A chain as it was when it was read, and the face that it came from; copies and pickles have none."""

    __slots__ = ("_get_result",)
    _get_result: GetResult
    _advice: ClassVar[str]

    @classmethod
    def of(cls, chain: models.StoredChain[Any], get_result: GetResult) -> Self:
        """Hand *chain* to somebody who may want its result."""
        handle = cls(*_values_of(chain))
        object.__setattr__(handle, "_get_result", get_result)
        return handle

    @classmethod
    def copy_of(cls, chain: models.StoredChain[Any]) -> Self:
        """Hand *chain* to somebody for whom it is not committed yet, and has no result to wait for."""
        return cls(*_values_of(chain))

    def _result(self, timeout: Seconds | None) -> Coroutine[Any, Any, Any]:
        try:
            get_result = self._get_result
        except AttributeError:
            raise Misuse(f"this chain is a copy, with no face to ask; write `{self._advice}` first") from None
        return get_result(self.id, timeout)


class Chain(ChainHandle[R_co]):
    """A job and all that continues it, as it was when it was read; *status* and *output* are its last job's."""

    __slots__ = ()
    _advice = "chain = await hf.get_chain(chain)"

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """Wait until the chain closes and give its output; *timeout* is seconds or a timedelta, None waits for ever.

        Raises `ChainFailed`, `ChainCancelled`, `WaitTimeout`, and `ChainNotFound` if it is deleted meanwhile.
        """
        output: R_co = await self._result(timeout)
        return output


class BlockingChain(ChainHandle[R_co]):
    """A job and all that continues it, as it was when it was read; public as `holdfast.sync.Chain`."""

    __slots__ = ()
    _advice = "chain = hf.sync.get_chain(chain)"

    def result(self, timeout: Seconds | None = None) -> R_co:
        """Wait until the chain closes and give its output; *timeout* is seconds or a timedelta, None waits for ever.

        Raises `ChainFailed`, `ChainCancelled`, `WaitTimeout`, and `ChainNotFound` if it is deleted meanwhile.
        """
        output: R_co = drive(self._result(timeout))
        return output
