"""A pytest plugin that keeps the collector of garbage from looking at thousands of collected tests, again and again.

They are never garbage. While they are made nothing is, and afterwards they stand aside: a third of the time that it
takes to collect them, and a tenth of that of many a test.
"""

from __future__ import annotations

import gc

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Look for no garbage while tests are collected."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Look at nothing that is there now, ever again."""
    gc.collect()
    gc.freeze()
    gc.enable()
