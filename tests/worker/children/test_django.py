"""The children of `manage.py holdfast_worker` set the project up as it does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SETTINGS = """
SECRET_KEY = "of tests"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "holdfast.integrations.django", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}}
HOLDFAST = {"database": "default"}
"""
TASKS = """
import os

from django.contrib.auth.models import User

from holdfast.integrations.django import tasks
from holdfast.sync import Context


@tasks.task(run_in="process")
def add_user(ctx: Context, name: str) -> int:
    with ctx.complete() as tx:
        User.objects.create(username=name)
        return tx.finish(os.getpid())
"""
ASK = """
import django

django.setup()

from django.contrib.auth.models import User
from shop.tasks import add_user

from holdfast.integrations.django import holdfast

chain = holdfast().sync.start(add_user(name="Ada"))
print(holdfast().sync.wait([chain], timeout=60)[0].output, User.objects.get().username)
"""


@pytest.mark.long
def test_a_task_of_a_django_project_runs_in_a_child_with_its_models(tmp_path: Path) -> None:
    (tmp_path / "site_settings.py").write_text(SETTINGS)
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "tasks.py").write_text(TASKS)
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "site_settings"}
    django = [sys.executable, "-m", "django"]
    subprocess.run([*django, "migrate", "-v0"], cwd=tmp_path, env=environment, check=True)

    with subprocess.Popen([*django, "holdfast_worker", "--children", "1"], cwd=tmp_path, env=environment) as worker:
        try:
            ask = [sys.executable, "-c", ASK]
            said = subprocess.run(
                ask, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True, timeout=120
            ).stdout
        finally:
            worker.terminate()

    pid, name = said.split()
    assert int(pid) != worker.pid
    assert name == "Ada"
