from __future__ import annotations

import json

import pytest

from tidemill.metadata.features.feature_levels import OLDER_SOFTWARE, THIS_SOFTWARE
from tidemill.metadata.image import nodes, stored_fields
from tidemill.metadata.image.metadata_image import BrokerImage, MemberImage
from tidemill.metadata.image.nodes import BadNode
from tidemill.metadata.store.coord import Node


def test_a_broker_survives_the_round_trip():
    broker = BrokerImage(broker_id=4, epoch=8, host="h", port=9092, rack="r")
    assert nodes.decode_broker("/brokers/4", Node(nodes.encode_broker(broker), 0)) == broker


def test_the_other_nodes_survive_the_round_trip():
    controller = nodes.StoredController(3, 9, 77)
    assert nodes.decode_controller("/c", Node(nodes.encode_controller(controller), 0)) == controller
    assert nodes.decode_counter("/n", Node(nodes.encode_counter(1000), 0)) == 1000
    assert nodes.decode_cluster_id("/x", Node(nodes.encode_cluster_id("aB_-1"), 0)) == "aB_-1"
    members = {
        4: MemberImage(broker_id=4, epoch=8, rack="r"),
        0: MemberImage(broker_id=0, epoch=1, awaits_share=True),
    }
    stored = stored_fields.dump(nodes.members_value(5, members))
    assert nodes.decode_members(stored) == (5, members)


def test_paths_give_back_what_they_were_made_from():
    assert nodes.try_broker_id(nodes.broker_path(3)) == 3
    assert nodes.try_broker_id("/brokers/03") is None


def test_a_long_value_is_stored_packed_and_a_short_one_as_text():
    short, long = {"a": "x" * 1_000}, {"a": "x" * 20_000}
    assert stored_fields.dump(short).startswith(b'{"v":1')
    stored = stored_fields.dump(long)
    assert len(stored) < 1_000
    assert stored_fields.load("/p", stored).text("a") == long["a"]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b" " * (stored_fields.NODE_STORED_BYTES_MAX + 1),
        b'{"v":2}',
        b'{"v":1,"a":{"host":"\\uD800"}}',
        b'{"v":1,"\\udfff":1}',
        stored_fields.zlib.compress(b"[]"),
        stored_fields.zlib.compress(b'{"v":1}') + b"more",
        stored_fields.zlib.compress(b'{"v":1,"a":"' + b"x" * 20_000 + b'"}')[:-9],
        stored_fields.zlib.compress(b" " * (stored_fields.NODE_INFLATED_BYTES_MAX + 1)),
    ],
    ids=range(14),
)
def test_S46_a_value_that_we_did_not_write_is_bad(value):
    with pytest.raises(BadNode):
        stored_fields.load("/p", value)


def test_a_character_beyond_the_first_plane_is_text():
    stored = stored_fields.dump({"a": "\U0001f600"})
    assert b"\\ud83d" in stored
    assert stored_fields.load("/p", stored).text("a") == "\U0001f600"


def test_S46_bad_paths_and_ids_are_bad_nodes():
    broker = nodes.encode_broker(BrokerImage(broker_id=4, epoch=8, host="h", port=9092))
    with pytest.raises(BadNode):
        nodes.decode_broker("/brokers/x", Node(broker, 0))
    with pytest.raises(BadNode):
        nodes.decode_broker("/brokers/9999999999", Node(broker, 0))
    with pytest.raises(BadNode):
        nodes.decode_cluster_id("/cluster", Node(nodes.encode_cluster_id("../x"), 0))
    with pytest.raises(BadNode):
        nodes.decode_cluster_id("/cluster", Node(b'{"v":1,"id":"of-form-1"}', 0))
    with pytest.raises(BadNode):
        nodes.decode_members(b'{"v":1,"seq":1,"brokers":{"-1":{"epoch":1,"rack":""}}}')
    with pytest.raises(BadNode):
        nodes.decode_members(b'{"v":1,"seq":1,"brokers":{"1":5}}')


# --- software and features in a registration -----------------------------------------------------


def registration(**changed):
    """The stored form of a registration, with some fields changed or, by None, left out."""
    broker = BrokerImage(broker_id=4, epoch=8, host="h", port=9092, software=THIS_SOFTWARE)
    value = {**json.loads(nodes.encode_broker(broker)), **changed}
    kept = {name: one for name, one in value.items() if one is not None}
    return Node(json.dumps(kept).encode(), 0)


def test_a_registration_names_the_software_and_its_ranges():
    assert nodes.decode_broker("/brokers/4", registration()).software == THIS_SOFTWARE


def test_a_registration_without_features_is_one_of_the_software_before():
    old = nodes.decode_broker("/brokers/4", registration(features=None, version=None))
    assert old.software == OLDER_SOFTWARE


@pytest.mark.parametrize(
    "changed",
    [
        {"version": None},
        {"version": 7},
        {"version": "v" * 101},
        {"version": "1\n2"},
        {"features": []},
        {"features": {"a": 1}},
        {"features": {"a": {"from": 2, "to": 1}}},
        {"features": {"a": {"from": -1, "to": 1}}},
        {"features": {"a": {"from": 1, "to": 1 << 15}}},
        {"features": {"a b": {"from": 1, "to": 1}}},
        {"features": {"a" * 101: {"from": 1, "to": 1}}},
        {"features": {f"f{n}": {"from": 1, "to": 1} for n in range(101)}},
    ],
)
def test_S46_a_registration_with_damaged_features_is_bad(changed):
    with pytest.raises(nodes.BadNode):
        nodes.decode_broker("/brokers/4", registration(**changed))
