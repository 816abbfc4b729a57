"""What a broker's coordinator of transactions says of itself."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.partitions import OWN, SECOND, image, partition
from tidemill.coordinators.transaction.transaction_coordinator import TransactionCoordinator
from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.live_config import LiveConfig
from tidemill.core.ids import TopicPartition
from tidemill.core.loop.timers import LoopTimers
from tidemill.metadata.image.metadata_image import TRANSACTION_STATE_TOPIC
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk


@pytest.mark.parametrize(
    ("leaders", "opened", "knows_all", "is_loading"),
    [
        ([], [], True, False),
        ([], [], False, True),
        ([OWN, OWN], [0, 1], False, False),
        ([OWN, SECOND], [0], True, False),
        ([OWN, OWN], [1], True, True),
    ],
)
def test_a_coordinator_whose_log_is_not_open_does_not_know_all_its_ids(
    run, leaders, opened, knows_all, is_loading
):
    topic = SimpleNamespace(partitions=tuple(image(leader=one) for one in leaders))
    metadata = SimpleNamespace(topics={TRANSACTION_STATE_TOPIC: topic} if leaders else {})

    async def ask() -> bool:
        clock = ManualClock()
        coordinator = TransactionCoordinator(
            LiveConfig(BrokerConfig(node_id=OWN)),
            clock=clock,
            timers=LoopTimers(clock),
            disk=SimDisk(),
            image=lambda: metadata,
            knows_all_topics=lambda: knows_all,
            carry_out=lambda *_decided: None,
        )
        for index in opened:
            led = partition()
            led.become_leader(image(), now=0.0)
            coordinator.role_changed(TopicPartition(TRANSACTION_STATE_TOPIC, index), led)
        return coordinator.is_loading

    assert run(ask()) is is_loading
