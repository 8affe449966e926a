"""A chain in the hand: what was read of it, and a way to wait for its result, in the colour of its face."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import fields
from datetime import timedelta
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar
from uuid import UUID

from holdfast import models
from holdfast.client.wrong_calls import not_of_chain
from holdfast.database.tx import drive
from holdfast.errors import Misuse
from holdfast.store.chains.creation import Started, new_chain

R_co = TypeVar("R_co", covariant=True)

Seconds: TypeAlias = float | timedelta
GetResult: TypeAlias = Callable[[UUID, Seconds | None], Coroutine[Any, Any, Any]]

_values_of = attrgetter(*(each.name for each in fields(models.StoredChain)))


class ChainHandle(models.StoredChain[R_co]):
    """A chain as it was when it was read, and the face that it came from; copies and pickles have none."""

    __slots__ = ("_get_result",)
    _get_result: GetResult
    _advice: ClassVar[str]

    def _result(self, timeout: Seconds | None) -> Coroutine[Any, Any, Any]:
        try:
            get_result = self._get_result
        except AttributeError:
            raise Misuse(
                f"this chain is a copy, which no Holdfast object belongs to; write `{self._advice}` first"
            ) from None
        return get_result(self.id, timeout)

    if not TYPE_CHECKING:  # so that type checkers still refuse what it does not have

        def __getattr__(self, name: str) -> Any:
            raise not_of_chain(self, name)


H = TypeVar("H", bound=ChainHandle[Any])


class Handles(Generic[H]):
    """Hands chains to a user, as the *kind* of a face; without *get_result* they have no result to wait for."""

    def __init__(self, kind: type[H], get_result: GetResult | None = None) -> None:
        self._kind = kind
        self._get_result = get_result

    def __call__(self, chain: models.StoredChain[Any]) -> H:
        """Hand over a chain that was read."""
        return self._with_face(self._kind(*_values_of(chain)))

    def new(self, start: models.Start, started: Started) -> H:
        """Hand over the chain that *start* has made, which is written into no other object before."""
        return self._with_face(self._kind(*new_chain(start, started)))

    def _with_face(self, handle: H) -> H:
        if self._get_result is not None:
            object.__setattr__(handle, "_get_result", self._get_result)
        return handle


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
