"""Built-in tasks: every worker has its own, and what their arguments are is read once."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.worker.builtin import builtin_task
from holdfast.worker.builtin.bulk import make_bulk


def test_a_second_worker_reads_no_arguments_of_builtin_tasks_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host opens a worker for each tenant with work, and the others wait meanwhile."""
    Holdfast("first.db").worker()
    read: list[object] = []
    monkeypatch.setattr(builtin_task, "read_signature", lambda *given: read.append(given))

    Holdfast("second.db").worker()

    assert read == []


def test_each_worker_runs_its_own_function_of_a_builtin_task() -> None:
    one, other = (make_bulk(hf.store, hf.__holdfast_engine__.runtime) for hf in (Holdfast("a.db"), Holdfast("b.db")))

    assert one.function is not other.function
    assert not one.is_same(other)
    assert one.record() == other.record()
