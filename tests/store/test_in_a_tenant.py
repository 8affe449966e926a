"""The contract of the store is run inside a tenant, too: a part by default, and the whole in the long part."""

from __future__ import annotations

import pytest

from tests.conftest import TENANT
from tests.support.factories import make_job
from tests.support.ways import TENANT_WAYS, Way


async def test_such_a_way_is_a_tenant_and_the_control_place_has_none_of_its_jobs(
    way: Way, request: pytest.FixtureRequest
) -> None:
    is_in_tenant = request.node.callspec.params["way"] in TENANT_WAYS
    job = await make_job(way)

    assert way.hf._starter.tenant.name == (TENANT if is_in_tenant else None)
    assert (await way.face.get_job(job)).id == job
    if is_in_tenant:
        control = way.hf._origin()
        assert control is not None
        assert control.sync.list_jobs().items == ()
