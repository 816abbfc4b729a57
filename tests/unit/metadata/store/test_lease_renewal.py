"""The thread that renews a lease, on a clock that stands still."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tidemill.metadata.store.lease_renewal import LeaseRenewal
from tidemill.testing.manual_clock import ManualClock

TIMEOUT_S = 0.05
"""The thread waits a fifth of it in real time; the clock is the test's."""
DEADLINE_S = 10.0


class Session:
    """Counts what the thread does."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.until = self.clock.boottime() + TIMEOUT_S
        self._renewals = 0
        self._renewed = threading.Condition()
        self.hung = threading.Event()
        self.renewal = LeaseRenewal(
            self.clock,
            TIMEOUT_S,
            renew=self._renew,
            lease_until=lambda: self.until,
            hung=self.hung.set,
        )
        self.renewal.start()

    def _renew(self) -> None:
        with self._renewed:
            self._renewals += 1
            self._renewed.notify_all()

    def renews(self) -> None:
        """Wait for two more renewals: the second began after this call."""
        with self._renewed:
            wanted = self._renewals + 2
            assert self._renewed.wait_for(lambda: self._renewals >= wanted, DEADLINE_S)

    @property
    def renewals(self) -> int:
        return self._renewals


@pytest.fixture
def session() -> Iterator[Session]:
    made = Session()
    yield made
    made.renewal.stop()


def test_a_loop_that_turns_keeps_the_lease(session):
    for _ in range(3):
        session.clock.advance(TIMEOUT_S)
        session.renewal.loop_turned()
        session.renews()
    assert not session.hung.is_set()


def test_a_stall_within_one_timeout_keeps_the_lease(session):
    session.clock.advance(0.9 * TIMEOUT_S)
    session.renews()
    assert not session.hung.is_set()


def test_a_loop_that_hangs_loses_the_session_after_its_lease_has_ended(session):
    session.renews()
    session.until = session.clock.boottime() + 10 * TIMEOUT_S
    session.clock.advance(2 * TIMEOUT_S)
    assert not session.hung.wait(4 * TIMEOUT_S)
    before = session.renewals
    assert not session.hung.wait(4 * TIMEOUT_S)
    assert session.renewals == before
    session.clock.advance(10 * TIMEOUT_S)
    assert session.hung.wait(DEADLINE_S)


def test_a_machine_that_slept_longer_than_its_session_begins_anew(session):
    session.clock.sleep_machine(100 * TIMEOUT_S)
    assert session.hung.wait(DEADLINE_S)
