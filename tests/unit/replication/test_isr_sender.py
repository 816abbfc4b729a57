"""What the sender of proposals does when the controller is silent."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidemill.client.network.errors import ConnectionLost
from tidemill.core.errors import KafkaError
from tidemill.core.ids import NO_LEADER
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.replication.proposing.isr_sender import CONTACT_INTERVAL_S, IsrSender
from tidemill.testing.manual_clock import ManualClock

LAG_S = 10.0
EPOCH = 5


class SilentLink:
    async def request(self, *_what: object, **_how: object) -> None:
        raise ConnectionLost("no answer")


class FakeCluster:
    """The sender's part of a cluster whose controller is broker 2."""

    broker_id, broker_epoch, is_controller = 0, 1, False

    def __init__(self) -> None:
        self.image = MetadataImage(controller_broker_id=2, controller_epoch=EPOCH)
        self.unheard = -1
        self.times_aside = 0

    def report_unheard(self, controller_epoch: int) -> None:
        self.unheard = controller_epoch

    async def step_aside(self) -> None:
        self.times_aside += 1


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster()
        cluster: Any = self.cluster
        link: Any = SilentLink()
        self.sender = IsrSender(cluster, link, clock=self.clock, lag_s=lambda: LAG_S)

    async def ask_for(self, seconds: float, *, stands_still: bool = True) -> None:
        """Ask every second, and do what follows."""
        for _ in range(int(seconds)):
            with pytest.raises(KafkaError):
                await self.sender.send([])
            await self.sender.attend(stands_still=stands_still)
            self.clock.advance(1.0)


def test_a_silent_controller_is_reported_after_one_lag_limit_and_left_after_two(run):
    bench = Bench()
    run(bench.ask_for(LAG_S))
    assert (bench.cluster.unheard, bench.cluster.times_aside) == (-1, 0)
    run(bench.ask_for(LAG_S))
    assert (bench.cluster.unheard, bench.cluster.times_aside) == (EPOCH, 0)
    run(bench.ask_for(1))
    assert bench.cluster.times_aside == 1


def test_a_broker_whose_partitions_go_on_does_not_step_aside(run):
    bench = Bench()
    run(bench.ask_for(5 * LAG_S, stands_still=False))
    assert (bench.cluster.unheard, bench.cluster.times_aside) == (EPOCH, 0)


def test_while_there_is_no_controller_a_broker_does_not_step_aside(run):
    bench = Bench()
    run(bench.ask_for(1))
    bench.cluster.image = replace(bench.cluster.image, controller_broker_id=NO_LEADER)
    run(bench.ask_for(5 * LAG_S))
    assert bench.cluster.times_aside == 0


def test_a_broker_that_wants_nothing_asks_the_controller_now_and_then(run):
    bench = Bench()
    assert not bench.sender.is_contact_due
    bench.clock.advance(CONTACT_INTERVAL_S)
    assert bench.sender.is_contact_due


def test_the_controller_does_not_ask_itself(run):
    bench = Bench()
    bench.cluster.is_controller = True
    bench.clock.advance(CONTACT_INTERVAL_S)
    assert not bench.sender.is_contact_due
