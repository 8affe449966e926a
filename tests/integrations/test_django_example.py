"""The example in Django by its own commands: its tests by Django's runner, and the worker as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast, Status
from tests.support.conditions import until

ROOT = Path(__file__).resolve().parent.parent.parent
MANAGE = [sys.executable, "-W", "error", "-m", "examples.orders_django.manage"]
ORDER = """
from django.test import Client
order = {"item": "kettle", "cents": 3900}
print(Client().post("/orders", order, content_type="application/json").json()["job_id"])
"""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def variables(request: pytest.FixtureRequest, empty_database: Callable[[str], str]) -> dict[str, str]:
    """The environment of the example, with an empty database."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "SHOP_DATABASE": empty_database(request.param)}


def manage(variables: dict[str, str], *words: str) -> str:
    """Run a command of the project, and give all that it said."""
    variables = {name: value for name, value in variables.items() if name != "DJANGO_ALLOW_ASYNC_UNSAFE"}
    done = subprocess.run([*MANAGE, *words], check=False, capture_output=True, text=True, timeout=60, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_its_own_tests_pass(variables: dict[str, str]) -> None:
    assert "Ran 5 tests" in manage(variables, "test", "examples.orders_django", "--noinput")


@pytest.mark.long  # by default, `test_django_command.py` tests the command in one process
async def test_the_worker_runs_jobs_until_it_is_told_to_stop(variables: dict[str, str]) -> None:
    manage(variables, "migrate", "--verbosity=0")
    job_id = manage(variables, "shell", "--verbosity=0", "-c", ORDER).strip()
    face = Holdfast(variables["SHOP_DATABASE"]).sync

    process = subprocess.Popen([*MANAGE, "holdfast_worker", "--concurrency", "2", "--name", "shop"], env=variables)
    try:
        await until(lambda: face.get_job(job_id).status is Status.COMPLETED, "the job is done", timeout=30)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
    assert str(face.get_job(job_id).completed_by).startswith("shop-")
    face.close()
