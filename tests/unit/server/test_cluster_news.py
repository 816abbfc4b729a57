"""A broker's log says who comes, who goes, who is the controller and why it leads more or less."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from tidemill.broker import cluster_news
from tidemill.broker.cluster_news import ClusterNews
from tidemill.core.ids import NO_LEADER, TopicId
from tidemill.core.limits import LOGGED_NAMES_MAX
from tidemill.core.loop.steps import finished
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
    difference,
)
from tidemill.metadata.image.topic_config import TopicConfig

OWN, OTHER = 0, 1


def broker(broker_id: int, epoch: int = 1) -> BrokerImage:
    return BrokerImage(broker_id=broker_id, epoch=epoch, host="localhost", port=9092)


def topic(name: str, *leaders: int) -> TopicImage:
    partitions = tuple(
        PartitionImage(leader=one, leader_epoch=1, replicas=(OWN, OTHER), isr=(OWN, OTHER))
        for one in leaders
    )
    topic_id = TopicId(UUID(bytes=name.encode().rjust(16)))
    return TopicImage(name=name, topic_id=topic_id, partitions=partitions, config=TopicConfig())


def image(*brokers: BrokerImage, controller: int = OWN, topics=()) -> MetadataImage:
    return MetadataImage(
        controller_broker_id=controller,
        brokers={one.broker_id: one for one in brokers},
        topics={one.name: one for one in topics},
        names={one.topic_id: one.name for one in topics},
    )


BOTH = (broker(OWN), broker(OTHER))


@pytest.fixture
def told(caplog):
    """The lines about a change of the image."""

    def told(before: MetadataImage, after: MetadataImage) -> list[str]:
        with caplog.at_level("INFO", cluster_news.__name__):
            finished(ClusterNews(OWN).follow(difference(before, after)))
        return [record.getMessage() for record in caplog.records]

    return told


def test_a_broker_that_is_gone_is_named_with_what_is_led_instead_of_it(told):
    before = image(*BOTH, controller=OTHER, topics=[topic("t", OTHER, OWN, OTHER)])
    gone = image(broker(OWN), controller=OWN, topics=[topic("t", OWN, OWN, OWN)])
    assert told(before, gone) == [
        "broker 1 is gone: it has ended, or its session has",
        "broker 0 is the controller",
        "leads now what broker 1 led: t-0, t-2",
    ]


def test_partitions_that_are_handed_over_are_named(told):
    before = image(*BOTH, topics=[topic("t", OWN, OWN)])
    assert told(before, image(*BOTH, topics=[topic("t", OTHER, NO_LEADER)])) == [
        "does not lead any more what has no leader: t-1",
        "does not lead any more what broker 1 leads: t-0",
    ]


def test_a_broker_that_returns_or_stops_or_fails_is_named(told):
    again = broker(OTHER, epoch=2)
    assert told(image(*BOTH), image(broker(OWN), again))[-1] == "broker 1 has registered again"
    leaving = image(broker(OWN), replace(again, leaving=True))
    assert told(image(broker(OWN), again), leaving)[-1] == "broker 1 is about to stop"
    failed = image(broker(OWN), replace(again, failed=True))
    last = told(image(broker(OWN), again), failed)[-1]
    assert last == "broker 1 says that its data directory is offline"
    assert told(image(broker(OWN)), image(*BOTH))[-1] == "broker 1 has registered"


def test_a_thousand_leaderships_that_move_are_one_line(told):
    before = image(*BOTH, topics=[topic(f"t{index:04}", OTHER) for index in range(1_000)])
    after = image(*BOTH, topics=[topic(f"t{index:04}", OWN) for index in range(1_000)])
    (line,) = told(before, after)
    assert line.startswith("leads now what broker 1 led: t0000-0, t0001-0, ")
    assert line.endswith(f" and {1_000 - LOGGED_NAMES_MAX} more")


def test_new_topics_and_a_broker_that_is_alone_say_nothing(told):
    assert told(image(*BOTH), image(*BOTH, topics=[topic("t", OWN)])) == []
    alone = image(broker(OWN), controller=NO_LEADER)
    assert told(alone, image(broker(OWN, epoch=2))) == []
