"""S-32: few things come into an installation, and those that build and test it are locked by hashes."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
NPM_LOCKS = sorted((ROOT / "requirements").glob("*/package-lock.json"))
CORE = {"pydantic", "click", "rich", "cronsim", "tzdata"}


def test_the_core_needs_few_others() -> None:
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]

    assert {re.split(r"[^\w-]", each)[0] for each in needed} == CORE


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_every_package_is_locked_by_a_hash_and_names_no_address(lock: Path) -> None:
    text = lock.read_text("utf-8")
    packages = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]

    assert packages
    assert [each.split(" ")[0] for each in packages if "--hash=sha256:" not in each] == []
    assert "://" not in text


@pytest.mark.parametrize("lock", NPM_LOCKS, ids=lambda path: path.parent.name)
def test_every_package_of_npm_is_locked_by_a_hash_and_names_no_address(lock: Path) -> None:
    packages = {name: each for name, each in json.loads(lock.read_text("utf-8"))["packages"].items() if name}

    assert packages
    assert [name for name, each in packages.items() if "integrity" not in each] == []
    assert "://" not in re.sub(r'"(funding|url)": .*', "", lock.read_text("utf-8"))


def test_packages_of_npm_run_nothing_when_they_are_installed() -> None:
    text = (ROOT / "tests/support/browser/chromium.py").read_text("utf-8")

    assert '"--ignore-scripts"' in text


def test_whoever_finds_a_weakness_is_told_what_to_do() -> None:
    assert "Report a weakness" in (ROOT / "SECURITY.md").read_text("utf-8")
