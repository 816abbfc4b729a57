"""How many topics a client may create by asking for their metadata."""

from __future__ import annotations

from tidemill.server.limits.quotas import AUTO_CREATE_BURST, AUTO_CREATE_TOPICS_PER_S, Quotas
from tidemill.server.limits.token_buckets import CLIENTS_MAX

BURST = int(AUTO_CREATE_BURST)


def test_S39_a_burst_is_granted_and_then_ten_topics_a_second():
    quotas = Quotas()
    assert quotas.take_auto_create("a", BURST + 50, now=0.0) == BURST
    assert quotas.take_auto_create("a", 50, now=0.0) == 0
    granted = sum(quotas.take_auto_create("a", 50, now=second / 4) for second in range(1, 41))
    assert granted == 10 * AUTO_CREATE_TOPICS_PER_S


def test_S39_what_was_not_used_does_not_add_up_beyond_the_burst():
    quotas = Quotas()
    quotas.take_auto_create("a", 1, now=0.0)
    assert quotas.take_auto_create("a", 10_000, now=1e6) == BURST


def test_S39_clients_do_not_share_their_quota():
    quotas = Quotas()
    quotas.take_auto_create("a", BURST, now=0.0)
    assert quotas.take_auto_create("b", 5, now=0.0) == 5


def test_S38_only_so_many_clients_are_remembered():
    quotas = Quotas()
    for number in range(CLIENTS_MAX + 500):
        quotas.take_auto_create(f"client {number}", 1, now=0.0)
    assert len(quotas) == CLIENTS_MAX
