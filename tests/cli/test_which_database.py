"""Which database a command uses: it names it, makes none by accident, and says where to put the address."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import forked

JOB = "01980f00-6e1c-7000-8000-5a1c2f9e0b77"
APP = 'from holdfast import Holdfast\n\nhf = Holdfast("jobs.db")\n'


def holdfast(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    return forked.run(
        [forked.COMMAND, *arguments], cwd=directory, env=environment, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    "command",
    [
        ("migrate",),
        ("migrate", "--check"),
        ("migrate", "--sql"),
        ("webhooks", "add", "https://example.com/hooks"),
        ("webhooks", "list"),
        ("webhooks", "deliveries"),
        ("watch", JOB),
    ],
    ids=" ".join,
)
def test_a_command_without_a_database_makes_none_and_says_where_to_name_it(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    told = holdfast(tmp_path, *command)

    assert (told.returncode, told.stdout) == (2, "")
    assert told.stderr.startswith("holdfast: no database is given; name it with --database")
    assert "HOLDFAST_DATABASE" in told.stderr
    assert ("APP" in told.stderr) == (command[0] in ("migrate", "watch"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "command",
    [
        ("webhooks", "list"),
        ("webhooks", "add", "https://example.com/hooks"),
        ("webhooks", "remove", JOB),
        ("webhooks", "deliveries"),
        ("watch", JOB),
    ],
    ids=" ".join,
)
def test_a_command_does_not_create_a_database_file_that_does_not_exist(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    told = holdfast(tmp_path, *command, "--database", "typo.db")

    assert (told.returncode, told.stdout) == (5, "")
    assert f"there is no database file {tmp_path / 'typo.db'}; check the path" in told.stderr
    assert "holdfast migrate typo.db" in told.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [("watch", JOB, "shop:hf"), ("retention", "shop:hf")], ids=" ".join)
def test_a_command_with_app_creates_no_database_file_either(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)

    told = holdfast(tmp_path, *command)

    assert told.returncode == 5
    assert f"there is no database file {tmp_path / 'jobs.db'}" in told.stderr
    assert not (tmp_path / "jobs.db").exists()


def test_migrate_takes_the_import_path_of_an_application(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)

    told = holdfast(tmp_path, "migrate", "shop:hf")

    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("took 0001_kernel, ")
    assert (tmp_path / "jobs.db").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("migrate", "jobs.db"),
        ("migrate", "shop:hf"),
        ("migrate", "--check", "--database", "jobs.db"),
        ("webhooks", "list", "--database", "jobs.db"),
        ("webhooks", "list", "--database", "jobs.db", "--json"),
        ("watch", JOB, "shop:hf"),
        ("retention", "shop:hf"),
    ],
    ids=" ".join,
)
def test_a_command_names_the_database_on_stderr(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    holdfast(tmp_path, "migrate", "jobs.db")

    told = holdfast(tmp_path, *command)

    assert told.stderr.splitlines()[0] == f"database: {tmp_path / 'jobs.db'}"
    assert "database: " not in told.stdout


def test_a_command_names_a_server_without_its_password(tmp_path: Path) -> None:
    told = holdfast(tmp_path, "webhooks", "list", "--database", "postgresql://app:hunter2@127.0.0.1:1/shop")

    assert told.stderr.splitlines()[0] == "database: postgresql://app:***@127.0.0.1:1/shop"
    assert "hunter2" not in told.stderr
