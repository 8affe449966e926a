"""Everybody's transactions, for the contract of blocks: a file for each library, which lists its stacks.

A new library is a new file here with a tuple `STACKS`; the contract files of `tests/worker/conftest.py` then run over
them, with the same text as over our own transactions.
"""

from tests.worker.providers.interface import Often, Stack, Url
from tests.worker.providers.registry import STACKS, database_and_options, provided

__all__ = ["STACKS", "Often", "Stack", "Url", "database_and_options", "provided"]
