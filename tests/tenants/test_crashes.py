"""The command is killed at every commit of `create`, `drop` and `migrate`; run again, it comes to its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.database.tx import Tx
from holdfast.fault_points import VARIABLE
from tests.support.factories import greet
from tests.support.processes import forked
from tests.tenants.conftest import CONTROL
from tests.tenants.test_registry import back_to_the_release_before

pytestmark = pytest.mark.long

COMMAND = str(Path(sys.executable).with_name("holdfast"))


def at_commit(*operations: str) -> list[str]:
    return [f"{each}.{when}_commit" for each in operations for when in ("before", "after")]


CREATE = [
    *at_commit("tenants.begin_creating"),
    *(f"migrations.step.{when}_commit:{step}" for step in range(1, 8) for when in ("before", "after")),
    *at_commit("tenants.end_creating"),
]
ENDS_OF_DROP = at_commit("tenants.begin_dropping", "tenants.end_dropping")
DROP = [
    *(("sqlite", each) for each in (*ENDS_OF_DROP, *at_commit("migrations.drop_unused"))),
    *(("postgres", each) for each in ENDS_OF_DROP),
]
MIGRATE = [f"migrations.step.{when}_commit:{step}" for step in (1, 2) for when in ("before", "after")]


def middle(point: str) -> list[pytest.MarkDecorator]:
    """Leave the steps between the first and the last to the long part."""
    return [pytest.mark.long] if point[-1] in "23456" else []


class Place:
    """A control place, and the command on it."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self._environment = {
            "HOLDFAST_DATABASE": hf.settings.database,
            "HOLDFAST_SCHEMA_NAME": hf.settings.schema_name,
            "HOLDFAST_DEADLINE_SECONDS": "20",
        }

    def __call__(self, *arguments: str, crash: str | None = None) -> subprocess.CompletedProcess[str]:
        armed = {} if crash is None else {VARIABLE: crash}
        environment = {**os.environ, **self._environment, **armed}
        return forked.run(
            [COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False, env=environment
        )

    def read(self, *arguments: str) -> Any:
        told = self(*arguments, "--json")
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)

    def states(self) -> dict[str, str]:
        return {each.name: each.state for each in self.hf.sync.tenants.list()}


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, new_control: Callable[..., Holdfast]) -> Place:
    """An empty control place."""
    hf = new_control(request.param)
    hf.sync.migrate()
    return Place(hf)


@pytest.mark.parametrize("point", [pytest.param(each, marks=middle(each)) for each in CREATE])
def test_create_goes_on_after_a_kill(place: Place, point: str) -> None:
    assert place("tenants", "create", "acme", "--by", "ada", crash=point).returncode == -signal.SIGKILL

    left = place.states()
    assert left in ({}, {"acme": "creating"}, {"acme": "active"})
    if left != {"acme": "active"}:
        assert place.read("tenants", "create", "acme")["state"] == "active"
    chain = place.hf.tenant("acme").sync.start(greet(name="Ada"))
    assert place.hf.tenant("acme").sync.get_job(chain).status == "pending"


@pytest.mark.parametrize(("place", "point"), DROP, indirect=["place"])
def test_drop_goes_on_after_a_kill(place: Place, point: str, tmp_path: Path) -> None:
    place.hf.sync.tenants.create("acme")
    place.hf.tenant("acme").sync.start(greet(name="Ada"))
    place.hf.sync.tenants.suspend("acme")
    place.hf.tenant("acme").sync.close()
    assert place("tenants", "drop", "acme", "--yes", crash=point).returncode == -signal.SIGKILL

    left = place.states()
    assert left in ({}, {"acme": "dropping"}, {"acme": "suspended"})
    if left:
        assert place.read("tenants", "drop", "acme", "--yes") == {"dropped": "acme"}
    assert place.states() == {}
    if place.hf.store.database == "sqlite":
        assert list((tmp_path / "jobs.db.tenants").iterdir()) == []
    else:
        assert place.hf.store.read_sync(schemas) == [CONTROL]


async def schemas(tx: Tx) -> list[str]:
    sql = f"SELECT nspname FROM pg_namespace WHERE starts_with(nspname, '{CONTROL}')"
    return [name for (name,) in await tx.fetch_all(sql)]


@pytest.mark.parametrize("point", MIGRATE)
def test_migrate_goes_on_after_a_kill(place: Place, point: str) -> None:
    for name in ("acme", "beta", "zeta"):
        place.hf.sync.tenants.create(name)
        chain = place.hf.tenant(name).sync.start(greet(name=name))
        place.hf.tenant(name).store.run_sync(back_to_the_release_before)
        place.hf.tenant(name).sync.close()
    assert place("migrate", "--tenants", crash=point).returncode == -signal.SIGKILL

    done = place.read("migrate", "--tenants")

    assert done["failed"] == {}
    assert done["tenants"].keys() == {"acme", "beta", "zeta"}
    assert all(len(steps) <= 1 for steps in done["tenants"].values())
    for name in ("acme", "beta", "zeta"):
        (job,) = place.hf.tenant(name).sync.list_jobs().items
        assert str(job.input) == f"greet(name={name!r})"
    assert chain.id == job.id
