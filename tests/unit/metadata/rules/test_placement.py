from __future__ import annotations

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.ids import TopicId
from tidemill.core.loop.steps import finished
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.metadata_image import (
    BrokerImage,
    Delta,
    MetadataImage,
    TopicImage,
)
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.metadata.rules.election import new_partition
from tidemill.metadata.rules.placement import ClusterLoad, Load, place


def brokers(*racks: str) -> dict[int, BrokerImage]:
    return {
        number: BrokerImage(broker_id=number, epoch=1, host="h", port=1, rack=rack)
        for number, rack in enumerate(racks)
    }


def idle(live: dict[int, BrokerImage]) -> dict[int, Load]:
    return {number: Load() for number in live}


@given(
    live=st.integers(1, 7),
    partitions=st.integers(1, 40),
    data=st.data(),
)
def test_F03_leaders_and_replicas_are_spread_evenly_and_never_share_a_broker(
    live, partitions, data
):
    factor = data.draw(st.integers(1, live))
    cluster = brokers(*[""] * live)
    replicas = finished(
        place(cluster, idle(cluster), partitions=partitions, replication_factor=factor)
    )
    assert len(replicas) == partitions
    assert all(len(set(one)) == factor for one in replicas)
    leaders = Counter(dict.fromkeys(cluster, 0))
    leaders.update(one[0] for one in replicas)
    held = Counter(dict.fromkeys(cluster, 0))
    held.update(number for one in replicas for number in one)
    assert max(leaders.values()) - min(leaders.values()) <= 1
    assert max(held.values()) - min(held.values()) <= 1


def test_replicas_go_to_different_racks_if_possible():
    cluster = brokers("east", "east", "west", "west")
    for one in finished(place(cluster, idle(cluster), partitions=8, replication_factor=2)):
        assert {cluster[number].rack for number in one} == {"east", "west"}


def test_a_new_broker_gets_the_next_partitions():
    cluster = brokers("", "")
    load = {0: Load(leaders=5, replicas=5), 1: Load()}
    replicas = finished(place(cluster, load, partitions=5, replication_factor=1))
    assert replicas == ((1,),) * 5
    assert load[1] == Load(leaders=5, replicas=5)


def topic(number: int, *replicas: tuple[int, ...]) -> TopicImage:
    return TopicImage(
        name=f"t{number}",
        topic_id=TopicId(UUID(int=number)),
        partitions=tuple(new_partition(one) for one in replicas),
        config=TopicConfig(),
    )


def whole(image: MetadataImage) -> Delta:
    """The delta from an empty image to this one."""
    return Delta(
        before=MetadataImage(),
        after=image,
        topics_changed=tuple(image.topics),
        brokers_changed=tuple(image.brokers),
    )


@pytest.mark.parametrize("step", ["create", "grow", "recreate", "delete", "broker"])
def test_the_load_follows_the_image(step):
    base = ImageDraft(MetadataImage(brokers=brokers("", "")))
    base.put_topic(topic(1, (0, 1), (1, 0)))
    before = base.finish().after
    load = ClusterLoad()
    finished(load.follow(whole(before)))
    draft = ImageDraft(before)
    match step:
        case "create":
            draft.put_topic(topic(2, (0,)))
        case "grow":
            draft.put_topic(topic(1, (0, 1), (1, 0), (0, 1)))
        case "recreate":
            draft.drop_topic("t1")
            draft.put_topic(replace(topic(9, (1,)), name="t1"))
        case "delete":
            draft.drop_topic("t1")
        case "broker":
            draft.put_broker(BrokerImage(broker_id=2, epoch=1, host="h", port=1))
    delta = draft.finish()
    finished(load.follow(delta))
    fresh = ClusterLoad()
    finished(fresh.follow(whole(delta.after)))
    assert load.copy() == fresh.copy()
