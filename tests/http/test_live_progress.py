"""The guide to live progress shows the page that the example serves."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_guide_shows_the_page_of_the_example() -> None:
    guide = (ROOT / "docs" / "guides" / "live-progress.md").read_text(encoding="utf-8")
    page = (ROOT / "examples" / "live_progress.html").read_text(encoding="utf-8")

    (shown,) = re.findall(r"^```html\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)

    assert page.endswith(shown)
    assert 25 < len(shown.splitlines()) < 40
