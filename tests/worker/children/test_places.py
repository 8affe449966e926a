"""Where objects are, and how a child finds them again, also those of a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import Misuse
from holdfast.worker.children.bootstrap import import_object, import_path_of
from tests.worker.children import application

SCRIPT = """
import asyncio
import os

from holdfast import Holdfast

print("imported as", __name__)
hf = Holdfast("jobs.db")


@hf.task(run_in="process")
def ours(n: int) -> int:
    return n * os.getpid()


async def main() -> None:
    async with hf, hf.worker(children=1):
        assert await (await hf.start(ours(n=1))).result(timeout=60) != os.getpid()


if __name__ == "__main__":
    asyncio.run(main())
    print("the task was", ours.name)
"""


def test_an_object_is_found_by_the_name_that_it_has_at_the_top_of_a_module() -> None:
    assert import_path_of(application.hf, [application.__name__]) == f"{application.__name__}:hf"
    assert import_object(f"{application.__name__}:hf") is application.hf


def test_it_is_found_wherever_it_is() -> None:
    assert import_path_of(application.in_child) == f"{application.__name__}:in_child"


def test_what_has_no_name_has_no_place() -> None:
    assert import_path_of(object()) is None


def test_a_script_that_has_it_from_elsewhere_is_not_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "imported", application.in_child, raising=False)

    assert import_path_of(application.in_child) == f"{application.__name__}:in_child"


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(Misuse, match=r"tests\.worker\.children\.application:nothing does not exist"):
        import_object(f"{application.__name__}:nothing")


@pytest.mark.parametrize(
    "how", [["script.py"], pytest.param(["-m", "script"], marks=pytest.mark.long)], ids=["file", "module"]
)
def test_a_script_is_imported_by_its_children_under_another_name(tmp_path: Path, how: list[str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    done = subprocess.run(
        [sys.executable, *how], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "imported as __main__",
        "imported as __mp_main__",
        "the task was script.ours",
    ]
