"""`manage.py holdfast_worker`: the options, the middleware and the exit codes of `holdfast worker`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from holdfast import Holdfast, NotMigrated
from holdfast.cli.worker import worker
from holdfast.integrations.django import tidy_connections
from holdfast.integrations.django.management.commands import holdfast_worker
from holdfast.supervisor.launch import ProcessOptions
from tests.integrations.django_site import on_sqlite


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a worker is to serve, in the place of one that runs until it is told to stop."""
    served: list[Any] = []

    def work(find: Callable[[], Holdfast], options: Any, process: ProcessOptions) -> int:
        served.append((find(), options, process))
        return 5

    monkeypatch.setattr(holdfast_worker, "work", work)
    return served


def test_it_has_every_option_of_holdfast_worker_with_its_default() -> None:
    told = holdfast_worker.Command().create_parser("manage.py", "holdfast_worker").format_help()

    assert not [each for option in worker.params for each in option.opts if each.startswith("--") and each not in told]
    assert "[default: 100]" in told


@on_sqlite
def test_it_serves_the_project_and_leaves_with_the_code_of_the_worker(site: Holdfast, served: list[Any]) -> None:
    with pytest.raises(SystemExit) as left:
        call_command(
            "holdfast_worker",
            *("--queues", "mail, reports", "--concurrency", "7", "--grace", "1.5", "--no-webhooks"),
            *("--processes", "2", "--health-file", "health.json", "--children", "3", "--child-jobs", "50"),
            *("--log-level", "debug", "--log-format", "json"),
        )

    assert left.value.code == 5
    assert served == [
        (
            site,
            {
                "queues": ["mail", "reports"],
                "concurrency": 7,
                "name": None,
                "grace": 1.5,
                "poll": 2.0,
                "webhooks": False,
                "children": 3,
                "child_jobs": 50,
                "child_megabytes": None,
                "middleware": [tidy_connections],
                "app": "holdfast.integrations.django.child:hf",
            },
            ProcessOptions(processes=2, health_file=Path("health.json"), log_level="debug", log_format="json"),
        )
    ]


@pytest.mark.parametrize("value", ["0", "many"])
def test_an_option_that_does_not_fit_is_refused(served: list[Any], value: str) -> None:
    with pytest.raises(CommandError, match="argument --concurrency"):
        call_command("holdfast_worker", "--concurrency", value)

    assert served == []


@on_sqlite
def test_an_error_of_ours_is_one_line_and_the_exit_code_of_its_family(
    site: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(*_: Any, **__: Any) -> int:
        raise NotMigrated("run `holdfast migrate`", found=0, needed=1)

    monkeypatch.setattr(holdfast_worker, "work", work)

    with pytest.raises(CommandError, match="run `holdfast migrate`") as refused:
        call_command("holdfast_worker")

    assert refused.value.returncode == 5
