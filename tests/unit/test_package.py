"""The package: it depends on what it imports, its description has links that work, and a release needs a green run."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import dev
from hatch_build import with_absolute_links

ROOT = Path(dev.__file__).parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
NOT_IN_THE_SDIST = {".git-blame-ignore-revs", ".gitattributes"}
IMPORTED_AS = {"psycopg": "psycopg", "httpx2": "httpcore2"}
"""What to look for in the code where a requirement is imported by another name."""

FAKE_PYTHON = """#!/bin/bash
# in place of Python: every command passes but the one that is named by FAILING
case "$*" in
    -c*) ;;
    "dev.py $FAILING"*) echo failed; exit 1 ;;
    *) echo "===== 1 passed in 0.01s =====" ;;
esac
"""


def imported() -> set[str]:
    """Name the packages that our code imports somewhere."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {each.name.split(".")[0] for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").split(".")[0])
    return found


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[>=<~; ]", each)[0] for each in requirements}


def test_every_requirement_is_imported_somewhere() -> None:
    extras = PROJECT["optional-dependencies"]
    required = names(PROJECT["dependencies"]).union(*(names(extra) for extra in extras.values())) - {"holdfast"}

    assert {IMPORTED_AS.get(each, each) for each in required} - {"uvicorn", "tzdata"} <= imported()


def test_the_extra_all_installs_no_web_framework_but_ours() -> None:
    (all_of_them,) = PROJECT["optional-dependencies"]["all"]

    assert all_of_them == "holdfast[postgres,http,webhooks]"


@pytest.mark.parametrize("home", [None, "https://example.com/holdfast"])
def test_the_description_of_the_package_has_no_relative_link(home: str | None) -> None:
    description = with_absolute_links((ROOT / "README.md").read_text(encoding="utf-8"), home)

    prose = re.sub(r"```.*?```", "", description, flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    assert all(each.startswith(("https://", "#")) for each in targets)
    assert ("https://example.com/holdfast/blob/main/docs/tutorial.md" in targets) == (home is not None)


def test_the_source_distribution_has_everything_that_a_checkout_has() -> None:
    include = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"][
        "include"
    ]
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout

    tops = {each.split("/")[0] for each in tracked.splitlines()}
    added_by_hatchling = {"LICENSE", "pyproject.toml", ".gitignore"}
    assert tops - {each.strip("/") for each in include} - added_by_hatchling <= NOT_IN_THE_SDIST


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A commit of its own, in which every program that CI runs passes at once."""
    (tmp_path / "bin").mkdir()
    place = tmp_path / "checkout"
    (place / ".ci").mkdir(parents=True)
    (place / ".ci" / "run").write_text((ROOT / ".ci" / "run").read_text())
    (place / ".gitignore").write_text("/.cache/\n")
    (place / "pyproject.toml").write_text('[project.urls]\nSource = "https://example.com"\n')
    # without setpriv CI leaves out what it runs as another user, who may not look in here
    for name, program in (("python3", FAKE_PYTHON), ("setpriv", "#!/bin/bash\nexit 1\n")):
        (tmp_path / "bin" / name).write_text(program)
        (tmp_path / "bin" / name).chmod(0o755)
    git(place, "init", "-q")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "First")
    monkeypatch.setattr(dev, "ROOT", place)
    monkeypatch.setattr(dev, "CACHE", place / ".cache")
    return place


def git(place: Path, *arguments: str) -> None:
    somebody = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.com"]
    subprocess.run(["git", *somebody, *arguments], cwd=place, check=True)


def run_ci(checkout: Path, failing: str = "nothing") -> int:
    """Run CI in *checkout*, with *failing* as the command that does not pass; answer its exit code."""
    given = {"PATH": f"{checkout.parent / 'bin'}:/usr/bin:/bin", "FAILING": failing}
    return subprocess.run(["bash", ".ci/run"], cwd=checkout, env=given, capture_output=True, check=False).returncode


@pytest.mark.source("PQ-67")
def test_a_release_is_refused_without_a_green_run_of_its_commit(checkout: Path) -> None:
    with pytest.raises(dev.DevError, match="no green run of commit"):
        dev.refuse_release()

    assert run_ci(checkout) == 0
    dev.refuse_release()


def test_a_red_run_lets_nothing_be_released(checkout: Path) -> None:
    assert run_ci(checkout, failing="package") == 1

    with pytest.raises(dev.DevError, match="no green run of commit"):
        dev.refuse_release()


def test_a_green_run_with_changed_files_lets_nothing_be_released(checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text("[project.urls]\n")
    assert run_ci(checkout) == 0
    with pytest.raises(dev.DevError, match="files here differ"):
        dev.refuse_release()

    git(checkout, "checkout", "-q", ".")
    with pytest.raises(dev.DevError, match="no green run of commit"):
        dev.refuse_release()


def test_a_release_is_refused_while_the_project_has_no_address(checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text("[project]\n")
    git(checkout, "commit", "-qam", "Second")
    assert run_ci(checkout) == 0

    with pytest.raises(dev.DevError, match="public address"):
        dev.refuse_release()
