"""Makes the description of the package from README.md: what is a link to a file here leads to the project's home there.

A package index shows the description far away from these files, so that a relative link would lead nowhere. It gets the
address `Source` of `[project.urls]` in front of it; as long as there is none, its text stays without the link.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

CODE = re.compile(r"(```.*?```)", re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)(#?)([^)\s]+)\)")


class DescriptionHook(MetadataHookInterface):
    """The hook that hatchling calls."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Put the description into *metadata*."""
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = with_absolute_links(readme, metadata.get("urls", {}).get("Source"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, home: str | None) -> str:
    """Give every relative link in *text* the address *home* in front; without one, leave its words alone."""

    def link(found: re.Match[str]) -> str:
        words, anchor, target = found.groups()
        if anchor:
            return found[0]
        return words if home is None else f"[{words}]({home.rstrip('/')}/blob/main/{target})"

    prose_and_code = CODE.split(text)
    return "".join(LINK.sub(link, each) if nr % 2 == 0 else each for nr, each in enumerate(prose_and_code))
