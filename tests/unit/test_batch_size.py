"""Batches of what has ended: bounded by number and bytes, halved after each that was not answered in time."""

from __future__ import annotations

import pytest

from holdfast.outcomes import COMPLETED_WITH_NOTHING, Kind, Outcome
from holdfast.store.jobs.claiming import Token
from holdfast.store.jobs.settling import Settlement
from holdfast.worker.claiming.batch_size import MOST, MOST_BYTES, QUICK_SECONDS, BatchSize


def ended(count: int, size: int = 0) -> list[Settlement]:
    outcome = Outcome(Kind.COMPLETE, output="x" * size) if size else COMPLETED_WITH_NOTHING
    return [Settlement(Token(n, 1, "nonce"), outcome) for n in range(count)]


@pytest.mark.parametrize(
    ("settlements", "fitting"),
    [
        (ended(0), 0),
        (ended(1), 1),
        (ended(MOST), MOST),
        (ended(MOST + 1), MOST),
        (ended(10, MOST_BYTES // 5), 4),
        (ended(3, 2 * MOST_BYTES), 1),
    ],
    ids=["none", "one", "as many as may be", "too many", "too much", "one that is too large"],
)
def test_a_batch_is_bounded_and_has_at_least_one(settlements: list[Settlement], fitting: int) -> None:
    assert BatchSize().fit(settlements) == fitting


def test_after_each_miss_it_is_half_as_large_down_to_one() -> None:
    size, batch = BatchSize(), ended(60, 10_000)
    sizes = []
    for _ in range(5):
        size.note_missed(batch[: size.fit(batch)])
        sizes.append(size.fit(batch))

    assert sizes == [30, 15, 7, 3, 1]
    assert size.is_least


def test_bytes_are_halved_too_for_the_next_may_be_larger() -> None:
    size = BatchSize()
    size.note_missed(ended(4, 1_000_000))

    assert size.fit(ended(4, 2_000_000)) == 1


def test_it_grows_again_when_batches_get_through() -> None:
    size = BatchSize()
    size.note_missed(ended(2))
    assert size.is_least

    for _ in range(10):
        size.note_answered(0.1)

    assert size.fit(ended(MOST + 1)) == MOST


def test_it_does_not_grow_while_batches_get_through_slowly() -> None:
    size = BatchSize()
    size.note_missed(ended(8, 100_000))

    size.note_answered(QUICK_SECONDS)

    assert size.fit(ended(8, 100_000)) == 4


def test_a_claim_that_was_not_answered_says_nothing_about_batches() -> None:
    size = BatchSize()
    size.note_missed([])

    assert size.fit(ended(MOST)) == MOST
