"""A pytest plugin that keeps the collector of garbage from looking at thousands of collected tests, again and again.

They are never garbage. While they are made nothing is, and afterwards they stand aside: a third of the time that it
takes to collect them, and a tenth of that of many a test.

What is left open by a module that runs servers is found at its end, not in whichever test the collector comes next.
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


_is_due = False


def look_after_module() -> None:
    """Look for garbage once the tests of this module have run: what they left open is then told of in their name."""
    global _is_due
    _is_due = True


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Look for it, if somebody has asked; pytest then fails this test for what was left open."""
    global _is_due
    if _is_due and (nextitem is None or nextitem.path != item.path):
        _is_due = False
        gc.collect()
