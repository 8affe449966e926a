"""A pytest plugin that tells what has failed in a run that breaks off: pytest itself then leaves its failures out.

A run breaks off where a hook raises, or a process of xdist's does not end its tests; the cause is most often that very
failure, which nobody would see.
"""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Tell what is known, ahead of the line that counts it."""
    reporter: pytest.TerminalReporter | None = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and exitstatus == pytest.ExitCode.INTERNAL_ERROR:
        reporter.summary_errors()
        reporter.summary_failures()
        reporter.short_test_summary()
