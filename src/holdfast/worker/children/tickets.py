"""Which of the jobs that a child was sent it may begin: their numbers, in a pipe that either side can read.

A child has its next jobs at hand before it is done with one, so that nobody has to answer between two of them. But the
worker may want some of them back, and the handler that runs may hold Python's lock or stand still. So whoever reads a
number has that job: the child, which begins it then, or the worker, which takes it back and asks nobody. The system
hands each number to one of them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from array import array
from collections.abc import Iterable

END = 0
"""In the place of a number: leave, for no job comes any more."""
WIDTH = 8
MANY_BYTES = 65_536


class TicketQueue:
    """The worker's side; the child is started with *descriptor*."""

    def __init__(self) -> None:
        self.descriptor, self._writing = os.pipe()
        os.set_blocking(self.descriptor, False)  # which holds for the child, too
        os.set_blocking(self._writing, False)
        self._is_open = True

    def give(self, numbers: Iterable[int]) -> None:
        if self._is_open:
            os.write(self._writing, array("q", numbers).tobytes())

    def take_back(self) -> list[int]:
        """Take out what the child has not taken, in the order in which it was given."""
        try:
            return list(array("q", os.read(self.descriptor, MANY_BYTES))) if self._is_open else []
        except BlockingIOError:
            return []

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            os.close(self.descriptor)
            os.close(self._writing)


class Tickets:
    """The child's side."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()

    def take_now(self) -> int | None:
        try:
            return int.from_bytes(os.read(self._descriptor, WIDTH), sys.byteorder)  # END if the worker is gone
        except BlockingIOError:
            return None

    async def wait(self) -> None:
        readable = asyncio.Event()
        self._loop.add_reader(self._descriptor, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(self._descriptor)
