"""Everybody's connections, for the one contract of borrowed ones: a file for each library, which lists its stacks.

A new library is a new file here with a tuple `STACKS`; the whole of `tests/store/test_borrowed.py` then runs over them.
"""

from tests.store.callers.interface import Caller, Can, Habit, Stack
from tests.store.callers.registry import STACKS

__all__ = ["STACKS", "Caller", "Can", "Habit", "Stack"]
