"""Wrong hosts of tenants: each is ours with one rule of looking, serving or sharing taken away.

What a mutant is, `tests/mutants/__init__.py` says; `tests/worker/test_host_mutants.py` runs the test that each names.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from holdfast.worker.claiming.slot_share import Share, SlotShare
from holdfast.worker.hosts import glances
from holdfast.worker.hosts.dividing import Divided
from holdfast.worker.hosts.tenant import HostedTenant
from tests.mutants import wrong_host
from tests.unit import test_hosted_tenant, test_slot_share
from tests.worker import test_hosts


@wrong_host(
    "glance fails with its broken tenant",
    "I-85",
    test_hosts.test_a_tenant_whose_tables_are_gone_is_left_out_and_said_so,
    "did not happen",
)
def _(patch: pytest.MonkeyPatch) -> None:
    async def undivided(
        members: Sequence[Any], act: Callable[[Sequence[Any]], Awaitable[Sequence[Any]]], is_theirs: object
    ) -> Divided[Any, Any]:
        return Divided(list(zip(members, await act(members), strict=True)), [])

    patch.setattr(glances, "divide", undivided)


@wrong_host(
    "tenant name used where place belongs",
    "I-52",
    test_hosts.test_each_tenant_is_served_from_its_own_place,
    "did not happen",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostedTenant, "place", property(lambda self: self.name, lambda self, place: None), raising=False)


@wrong_host(
    "grant kept for who does not answer",
    "I-85",
    test_slot_share.test_nobody_can_keep_the_ring_by_never_answering,
    "assert 0 == 1",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SlotShare, "_watch", lambda self: None)


@wrong_host(
    "free slot taken by who has just left it",
    "I-85",
    test_slot_share.test_a_slot_that_comes_free_goes_to_who_waits,
    "assert 0 == 1",
)
def _(patch: pytest.MonkeyPatch) -> None:
    def ask(self: Share, used: int, wanted: int) -> int:
        self._note_used(used)
        return max(0, min(wanted, self._slots.free))

    patch.setattr(Share, "ask", ask)


@wrong_host(
    "worker closed before its host's mark is sure",
    "I-85",
    test_hosted_tenant.test_a_worker_is_not_closed_before_the_hosts_mark_is_sure,
    "assert not True",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostedTenant, "is_ready_to_leave", True)


@wrong_host(
    "worker opened again for what the last one could not do",
    "I-85",
    test_hosted_tenant.test_what_a_worker_could_not_do_opens_no_other_until_it_changes,
    "assert not True",
)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HostedTenant, "note_closed", lambda self, has_worked: None)
