"""A pytest plugin that provides a real Chromium: one for each process of the run, a fresh profile for each test.

`page` is an empty page, and `new_page()` makes more of them, each of somebody else: they share nothing. What a page
complains of fails its test: errors on its console, errors that nobody catches, what its Content-Security-Policy
forbids. What a test means to provoke it announces by `complaints.expect("401")`, and then it has to come.

Playwright belongs to the loop it was started in, so tests with these fixtures run in one loop, that of the session.
What they await elsewhere belongs there too: start servers inside the test (`async with served(app)`), or write
`@pytest_asyncio.fixture(loop_scope="session")` over a fixture that is a coroutine.

Names that end in .test lead to this machine, such as http://evil.test:8321; no other name leads anywhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

from tests.support.browser.chromium import Chromium, ChromiumUnavailable, find_chromium

if TYPE_CHECKING:  # it is large, and most runs need no browser
    from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, WebError

PATIENCE_MS = 10_000
"""How long a page may take for one step."""
NAMES = [
    "MAP *.test 127.0.0.1",
    "MAP * ~NOTFOUND",
    *(f"EXCLUDE {own}" for own in ("127.0.0.1", "localhost", "*.localhost")),
]
OPTIONS = [
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-proxy-server",
    f"--host-resolver-rules={', '.join(NAMES)}",
]

NewPage = Callable[..., Awaitable["Page"]]


@dataclass
class Complaints:
    """What the pages of a test have complained of, and what of it was to be expected."""

    heard: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)

    def expect(self, pattern: str) -> None:
        """Announce that a page complains of something that *pattern* is found in, once or more often."""
        self.expected.append(pattern)

    def hear_console(self, message: ConsoleMessage) -> None:
        """Note an error on the console; what the policy forbids is one, too."""
        address = message.location.get("url", "")
        # some Chromiums ask for that file, others do not
        if message.type == "error" and not address.endswith("/favicon.ico"):
            self.heard.append(f"{message.text} ({address})")

    def hear_error(self, error: WebError) -> None:
        """Note an error that nobody has caught."""
        self.heard.append(f"uncaught: {error.error}")

    def verdict(self) -> str:
        """Say what was not expected, and what was and did not come; nothing if all is well."""
        unexpected = [each for each in self.heard if not any(re.search(pattern, each) for pattern in self.expected)]
        missing = [pattern for pattern in self.expected if not any(re.search(pattern, each) for each in self.heard)]
        lines = [f"the page complained: {each}" for each in unexpected]
        return "\n".join([*lines, *(f"the page was to complain of {each!r}, and did not" for each in missing)])


@pytest.hookimpl(tryfirst=True)
def pytest_itemcollected(item: pytest.Item) -> None:
    """Run what works with the Chromium in the loop of the session."""
    if "browser" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(scope="session")
def chromium_of_run() -> Chromium:
    """The Chromium there is; skip without one, and fail where that must not go unseen."""
    try:
        return find_chromium()
    except ChromiumUnavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium_of_run: Chromium, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """A Chromium without a window, for all tests of this process."""
    from playwright.async_api import async_playwright

    home: dict[str, str | float | bool] = {**os.environ, "HOME": str(tmp_path_factory.mktemp("chromium"))}
    program = Path(chromium_of_run.path)
    async with async_playwright() as playwright:
        # no sandbox: root cannot have one, not everybody else may, and all that is shown is ours
        browser = await playwright.chromium.launch(
            executable_path=program, args=OPTIONS, chromium_sandbox=False, env=home
        )
        yield browser
        await browser.close()


@pytest.fixture
def complaints() -> Complaints:
    """What the pages of this test complain of."""
    return Complaints()


@pytest_asyncio.fixture(loop_scope="session")
async def new_page(browser: Browser, complaints: Complaints) -> AsyncIterator[NewPage]:
    """Make pages, each with cookies and storage of its own; options are those of Playwright's `new_context`."""
    contexts: list[BrowserContext] = []

    async def make(**options: Any) -> Page:
        context = await browser.new_context(**options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE_MS)
        context.on("console", complaints.hear_console)
        context.on("weberror", complaints.hear_error)
        return await context.new_page()

    yield make
    for context in contexts:
        await context.close()
    if verdict := complaints.verdict():
        pytest.fail(verdict, pytrace=False)


@pytest_asyncio.fixture(loop_scope="session")
async def page(new_page: NewPage) -> Page:
    """An empty page of somebody who was never here before."""
    return await new_page()
