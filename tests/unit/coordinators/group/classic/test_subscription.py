"""Which subscriptions of classic members can be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.coordinators.group.classic.subscription import try_subscribed_topics
from tidemill.wire.generated.consumer_protocol_subscription import (
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tidemill.wire.primitives import Writer


def _encoded(version: int, said_version: int | None = None) -> bytes:
    writer = Writer()
    writer.buf += (version if said_version is None else said_version).to_bytes(2, "big")
    ConsumerProtocolSubscription(
        topics=["a", "b"],
        user_data=b"sticky",
        owned_partitions=[TopicPartition(topic="a", partitions=[0])],
        generation_id=3,
        rack_id="r",
    ).write(writer, version)
    return bytes(writer.buf)


@pytest.mark.parametrize("version", range(4))
def test_T43_topics_are_read_from_every_version(version):
    assert try_subscribed_topics(_encoded(version)) == {"a", "b"}


def test_T43_topics_are_read_from_a_version_that_is_not_known_yet():
    assert try_subscribed_topics(_encoded(3, said_version=9) + b"new field") == {"a", "b"}


def test_T43_truncated_subscription_is_an_unknown_one():
    whole = _encoded(1)
    for end in range(len(whole)):
        assert try_subscribed_topics(whole[:end]) is None


def test_negative_version_is_no_subscription():
    assert try_subscribed_topics(b"\xff\xff" + _encoded(0)[2:]) is None


def test_S41_count_that_does_not_fit_its_bytes_is_refused_before_room_is_made():
    assert try_subscribed_topics(b"\x00\x00\x7f\xff\xff\xff") is None


@given(st.binary(max_size=64))
def test_S41_bytes_of_any_kind_are_no_crash(metadata):
    topics = try_subscribed_topics(metadata)
    assert topics is None or all(isinstance(topic, str) for topic in topics)
