from __future__ import annotations

from uuid import UUID

import pytest

from tidemill.core.ids import TopicId
from tidemill.core.loop.steps import finished
from tidemill.metadata.image import stored_fields
from tidemill.metadata.image.head import HEAD, MEMBERS, PARTS, SETTINGS, Head, page_path
from tidemill.metadata.image.metadata_image import PartitionImage
from tidemill.metadata.image.page import StoredTopic, decode_page, page_of, page_value
from tidemill.metadata.image.stored_fields import BadNode

TOPIC_ID = TopicId(UUID(int=7))
USUAL = PartitionImage(
    leader=1, leader_epoch=5, replicas=(1, 2), isr=(1, 2), last_known_leader=1, partition_epoch=9
)
ODD = PartitionImage(
    leader=-1,
    leader_epoch=6,
    replicas=(1, 2, 3),
    isr=(),
    elr=(3,),
    last_known_leader=2,
    partition_epoch=4,
)
MOVING = PartitionImage(
    leader=1,
    leader_epoch=8,
    replicas=(4, 1, 2, 3),
    isr=(1,),
    elr=(2,),
    last_known_leader=1,
    partition_epoch=4,
    suspects=(3,),
    adding=(4,),
    removing=(2, 3),
    unclean_epoch=6,
    flags=5,
)
TOPIC = StoredTopic("orders", TOPIC_ID, {"retention.ms": "5"}, (USUAL, ODD, MOVING), 2)


def test_a_page_survives_the_round_trip_with_the_epochs_of_its_partitions():
    stored = stored_fields.dump(finished(page_value(12, [TOPIC])))
    assert finished(decode_page(7, stored)) == (12, (TOPIC,))


def test_a_page_of_thousands_of_partitions_is_packed_and_survives_the_round_trip():
    large = TOPIC._replace(partitions=(USUAL, ODD) * 5_000)
    stored = stored_fields.dump(finished(page_value(12, [large])))
    assert len(stored) < 100_000
    assert finished(decode_page(7, stored)).topics == (large,)


def test_I17_no_bit_of_a_stored_page_can_change_what_it_says():
    stored = stored_fields.dump(finished(page_value(12, [TOPIC])))
    refused = 0
    for bit in range(8 * len(stored)):
        damaged = bytearray(stored)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert finished(decode_page(7, bytes(damaged))) == (12, (TOPIC,)), bit
        except BadNode:
            refused += 1
    assert refused >= 8 * (len(stored) - len(b',"sum":"00000000"}'))


def test_a_page_of_an_earlier_version_has_no_move_no_doubt_and_no_stored_minimum():
    (topic,) = finished(decode_page(7, GOOD)).topics
    (partition,) = topic.partitions
    assert topic.min_isr == 0
    assert (partition.suspects, partition.adding, partition.removing) == ((), (), ())
    assert (partition.unclean_epoch, partition.flags) == (-1, 0)


def test_topics_spread_over_all_pages_by_their_ids():
    assert {page_of(UUID(int=number)) for number in range(200)} == set(range(64))


GOOD = (
    b'{"v":1,"seq":3,"topics":[{"id":"00000000-0000-0000-0000-000000000007","name":"t",'
    b'"overrides":{},"partitions":[{"r":[1,2,3],"l":1,"e":5,"p":0,"i":[1,2],"x":[3]}]}]}'
)
"""As an earlier version wrote it."""
TOPIC_TEXT = GOOD[GOOD.index(b"[{") + 1 : -2]


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        (b'"seq":3', b'"seq":-1'),
        (b'"topics":[', b'"topic":['),
        (b"000007", b"000008"),
        (b'"id":"0', b'"id":"x'),
        (b'"name":"t"', b'"name":".."'),
        (b'"name":"t"', b'"name":"t\\n"'),
        (b'"overrides":{}', b'"overrides":{"a":1}'),
        (b'"overrides":{}', b'"overrides":[]'),
        (b'[{"r"', b'[5,{"r"'),
        (b'"r":[1,2,3]', b'"r":[]'),
        (b'"r":[1,2,3]', b'"r":[1,2,3,3]'),
        (b'"r":[1,2,3]', b'"r":[1,2,"3"]'),
        (b'"e":5', b'"e":-1'),
        (b'"e":5', b'"e":true'),
        (b'"e":5', b'"e":2147483648'),
        (b'"e":5', b'"e":' + b"9" * 5000),
        (b'"e":5', b'"e":5.0'),
        (b'"p":0', b'"p":-1'),
        (b"[1,2],", b"[1,1],"),
        (b"[1,2],", b"[1,9],"),
        (b"[1,2],", b"[2],"),
        (b'"x":[3]', b'"x":[2]'),
        (b'"x":[3]', b'"x":3'),
        (b'"x":[3]', b'"s":[2]'),
        (b'"x":[3]', b'"a":[9]'),
        (b'"x":[3]', b'"a":[3],"d":[3]'),
        (b'"x":[3]', b'"d":[1,2,3]'),
        (b'"x":[3]', b'"u":-2'),
        (b'"x":[3]', b'"f":"1"'),
        (b'"name":"t"', b'"name":"t","m":0'),
        (b"]}]}", b"]}," + TOPIC_TEXT + b"]}"),
    ],
)
def test_S46_S8_a_page_that_we_did_not_write_is_bad(part, instead):
    assert finished(decode_page(7, GOOD)).topics[0].partitions[0].leader == 1
    assert part in GOOD
    with pytest.raises(BadNode, match="/pages/07"):
        finished(decode_page(7, GOOD.replace(part, instead)))


# --- the head ---


def test_a_head_survives_the_round_trip():
    head = Head().after([MEMBERS, page_path(63)], epoch=4).after([SETTINGS], epoch=5)
    assert Head.decode(head.encode()) == head
    assert (head.epoch, head.seq) == (5, 2)
    assert {path: seq for path, seq in head.parts.items() if seq} == {
        MEMBERS: 1,
        page_path(63): 1,
        SETTINGS: 2,
    }


def test_the_epoch_of_a_head_never_falls():
    assert Head(epoch=7).after([MEMBERS], epoch=3).epoch == 7


def test_a_head_has_room_in_every_multi():
    head = Head(2**62, 2**62, dict.fromkeys(PARTS, 2**62))
    assert len(head.encode()) < 4_096


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        (b'"seq":1', b'"seq":-1'),
        (b'"epoch":4', b'"epoch":null'),
        (b'"members":1', b'"members":2'),
        (b'"pages":[0,', b'"pages":['),
        (b'"pages":[0,', b'"pages":[2,'),
        (b'"pages":[0,', b'"pages":["0",'),
    ],
)
def test_S46_a_head_that_we_did_not_write_is_bad(part, instead):
    good = Head().after([MEMBERS], epoch=4).encode()
    assert part in good
    with pytest.raises(BadNode, match=HEAD):
        Head.decode(good.replace(part, instead))
