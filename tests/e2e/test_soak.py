"""The soak in short; `make soak` is the long one. Its ledger finds what it is there to find."""

from __future__ import annotations

import re
from time import monotonic

import pytest

from tests.campaign.soak import SoakRun
from tests.campaign.soak_ledger import SoakLedger
from tests.support.clients import DEADLINE_S

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECONDS = 12.0
LOG = ("t", 0)
KILLED = 1


def test_I36_brokers_that_nobody_disturbs_hold_no_election_and_lose_nothing(tmp_path):
    run = SoakRun(tmp_path, rate=200, sample_s=2.0, retention_s=15.0)
    summary = run.run(SECONDS, until=lambda so_far: so_far.records_deleted > 0)
    assert (summary.violations, summary.events) == ([], [])
    assert summary.is_whole
    assert summary.committed > 1
    assert summary.aborted > 0
    assert summary.acknowledged > SECONDS * 100
    assert summary.read == dict.fromkeys(("classic", "consumer"), summary.acknowledged)


def test_a_broker_that_dies_in_a_soak_is_an_event_with_all_that_follows(tmp_path):
    run = SoakRun(tmp_path, rate=50, sample_s=1.0)
    led = r"soak-orders-\d: leader \S+, epoch 0 -> \d, 1"
    wanted = [f"broker {KILLED} was started again", f"broker {KILLED} ended with SIGKILL", led]
    run.cluster.kill_broker(KILLED)
    deadline = monotonic() + DEADLINE_S

    def missing(so_far):
        return [one for one in wanted if not re.search(one, "\n".join(so_far.events))]

    summary = run.run(0.0, until=lambda so_far: not missing(so_far) or monotonic() > deadline)
    assert missing(summary) == [], summary.events
    assert [one for one in summary.violations if one.startswith("I")] == []


@pytest.fixture
def ledger():
    return SoakLedger(["a", "b"])


def sent(ledger, count):
    for number in range(count):
        ledger.acknowledge(LOG, ledger.send(LOG), number)


def seen(ledger, *numbers):
    for number in numbers:
        for reader in ("a", "b"):
            ledger.see(LOG, number, number, reader)


def test_the_ledger_forgets_what_all_have_seen(ledger):
    sent(ledger, 3)
    seen(ledger, 0, 1, 2)
    ledger.check_all_seen()
    assert (ledger.violations, ledger.pending()) == ([], 0)


def test_the_ledger_finds_a_record_that_readers_passed(ledger):
    sent(ledger, 3)
    seen(ledger, 0, 2)
    ledger.check()
    assert ledger.violations == ["I1: ('t', 0) 1 at 1: passed and not seen by ['a', 'b']"]


def test_the_ledger_finds_a_record_that_never_came(ledger):
    sent(ledger, 1)
    ledger.check_all_seen()
    assert ledger.violations == ["I1: ('t', 0) 0 at 0: not seen by ['a', 'b']"]


def test_the_ledger_finds_records_that_come_twice_or_out_of_order(ledger):
    sent(ledger, 3)
    for number, offset in ((0, 0), (2, 1), (2, 2), (1, 3)):
        ledger.see(LOG, number, offset, "a")
    found = [one[:2] for one in ledger.violations]
    assert found == ["I2", "I4", "I5", "I2"]


def test_the_ledger_finds_an_aborted_record_however_early_it_is_seen(ledger):
    early, late = ledger.send(LOG), ledger.send(LOG)
    ledger.see(LOG, early, 0, "a")
    for number in (early, late):
        ledger.void(LOG, number)
    ledger.see(LOG, late, 1, "a")
    assert [one[:3] for one in ledger.violations] == ["I21", "I21"]


def test_the_ledger_finds_an_offset_given_twice_and_a_record_that_nobody_sent(ledger):
    for _ in range(2):
        ledger.acknowledge(LOG, ledger.send(LOG), 7)
    ledger.see(LOG, 2, 9, "b")
    assert [one[:2] for one in ledger.violations] == ["I2", "I3"]
