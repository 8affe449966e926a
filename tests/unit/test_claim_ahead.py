"""How many jobs are claimed ahead: by the rate at which they end, and none where they are long."""

from __future__ import annotations

from holdfast.worker.claiming.claim_ahead import (
    EXCHANGES,
    HOLD_OFF_SECONDS,
    MOMENT_SECONDS,
    MOST_AHEAD,
    ClaimAhead,
)

SLOTS = 100


class Worker:
    """Ends attempts, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ended = 0
        self.ahead = ClaimAhead(lambda: SLOTS, lambda: self.now)

    def work(self, seconds: float, rate: float, exchange_seconds: float = 0.01) -> int:
        """Work for *seconds*, exchange once, and say how many are claimed ahead then."""
        self.now += seconds
        self.ended += round(seconds * rate)
        self.ahead.note_exchange(exchange_seconds, self.ended)
        return self.ahead.most


def test_nothing_is_claimed_ahead_before_anything_is_known() -> None:
    assert Worker().ahead.most == 0


def test_as_many_as_end_in_a_moment() -> None:
    assert Worker().work(0.1, rate=8_000) == 8_000 * MOMENT_SECONDS


def test_as_many_as_end_during_some_exchanges_if_these_take_long() -> None:
    assert Worker().work(0.1, rate=3_000, exchange_seconds=0.05) == 3_000 * EXCHANGES * 0.05


def test_never_more_than_a_bound() -> None:
    assert Worker().work(0.1, rate=1_000_000) == MOST_AHEAD


def test_nothing_where_it_takes_longer_than_a_moment_until_all_slots_come_free() -> None:
    assert Worker().work(1.0, rate=SLOTS / MOMENT_SECONDS) == 0


def test_nothing_because_long_jobs_have_ended_together() -> None:
    worker = Worker()
    worker.work(1.0, rate=0)

    assert [worker.work(0.001, rate=SLOTS / 0.001), worker.work(0.06, rate=0)] == [0, 0]


def test_who_has_grown_slow_claims_nothing_ahead_soon() -> None:
    worker = Worker()
    worker.work(0.1, rate=8_000)

    assert [worker.work(MOMENT_SECONDS, rate=0) > 0 for _ in range(6)] == [True] * 4 + [False] * 2


def test_who_was_idle_claims_nothing_ahead() -> None:
    worker = Worker()
    worker.work(0.1, rate=1_000_000)

    worker.now += 10.0
    assert worker.ahead.most == 0
    assert worker.work(0.01, rate=0) == 0


def test_nothing_after_a_claim_that_did_not_get_all_until_one_does() -> None:
    worker = Worker()
    worker.work(0.1, rate=8_000)

    worker.ahead.note_claim(399, 400)
    assert worker.ahead.most == 0

    worker.ahead.note_claim(100, 100)
    assert worker.ahead.most > 0


def test_nothing_for_some_seconds_after_some_were_given_back() -> None:
    worker = Worker()
    worker.work(0.1, rate=8_000)

    worker.ahead.note_given_back()
    assert worker.work(HOLD_OFF_SECONDS - 0.1, rate=8_000) == 0
    assert worker.work(0.1, rate=8_000) > 0
