from __future__ import annotations

import json

import pytest

from tidemill.core.errors import UserError
from tidemill.core.ids import TopicPartition
from tidemill.spark.options.offset_json import QueryOffset, parse_partition_numbers

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def test_spark_rule_2_offsets_are_sorted_in_any_input_order():
    there = QueryOffset({B0: 3, A1: 2, A0: 1}, {"b": "x", "a": "y"}, "g", {A1: 2, A0: 0})
    back = QueryOffset({A0: 1, A1: 2, B0: 3}, {"a": "y", "b": "x"}, "g", {A0: 0, A1: 2})
    assert json.dumps(there.to_json()) == json.dumps(back.to_json())
    assert list(there.to_json()) == ["_v", "a", "b"]


def test_spark_rule_2_partitions_are_sorted_by_number_not_by_text():
    offset = QueryOffset({TopicPartition("a", n): n for n in (10, 9, 2)})
    assert json.dumps(offset.to_json()) == '{"a": {"2": 2, "9": 9, "10": 10}}'


def test_spark_rule_2_an_offset_survives_a_round_trip():
    offset = QueryOffset({A0: 1, B0: 3}, {"a": "y"}, "g", {A0: 0}, initial=True, epochs={B0: 7})
    assert QueryOffset.from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_spark_rule_2_an_offset_of_the_kafka_source_is_understood():
    assert QueryOffset.from_json({"a": {"0": 23, "1": 5}}) == QueryOffset({A0: 23, A1: 5})


def test_spark_rule_2_our_offset_is_understood_as_starting_offsets():
    text = json.dumps(QueryOffset({A0: 23}, {"a": "id"}, "g").to_json())
    assert parse_partition_numbers(text, "startingOffsets") == {A0: 23}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"a": 5}', '{"a": {"x": 5}}', '{"a": {"0": "5"}}', '{"a": {"-1": 5}}']
)
def test_malformed_offsets_are_refused_by_name(text):
    with pytest.raises(UserError, match="startingOffsets"):
        parse_partition_numbers(text, "startingOffsets")


@pytest.mark.parametrize("private", [[], {"ids": 1}, {"starts": "x"}, {"epochs": 3}])
def test_a_damaged_private_part_is_refused(private):
    with pytest.raises(UserError, match="_v"):
        QueryOffset.from_json({"a": {"0": 1}, "_v": private})


def test_a_batch_begins_where_the_one_before_it_ended():
    before, end = QueryOffset({A0: 5}, {"a": "x"}), QueryOffset({A0: 9}, {"a": "x"})
    assert before.start_of(A0, end) == 5


def test_spark_rule_1_the_first_batch_begins_where_its_end_says_not_at_a_new_initial_offset():
    end = QueryOffset({A0: 9}, starts={A0: 5})
    assert QueryOffset({A0: 7}, initial=True).start_of(A0, end) == 5


def test_spark_rule_1_a_first_batch_that_found_nothing_stays_empty():
    first = QueryOffset({A0: 5}, initial=True)
    assert QueryOffset({A0: 7}, initial=True).start_of(A0, first) == 5


def test_a_partition_that_appeared_begins_where_the_end_says():
    end = QueryOffset({A0: 9, A1: 4}, {"a": "x"}, starts={A1: 2})
    assert QueryOffset({A0: 5}, {"a": "x"}).start_of(A1, end) == 2


def test_a_recreated_topic_begins_where_the_end_says():
    end = QueryOffset({A0: 9}, {"a": "new"}, starts={A0: 0})
    assert QueryOffset({A0: 500}, {"a": "old"}).start_of(A0, end) == 0


def test_an_offset_without_topic_ids_continues_at_its_position():
    assert QueryOffset({A0: 5}).start_of(A0, QueryOffset({A0: 9}, {"a": "x"})) == 5


def test_an_offset_without_epochs_is_understood():
    old = {"a": {"0": 5}, "_v": {"ids": {"a": "x"}}}
    assert QueryOffset.from_json(old) == QueryOffset({A0: 5}, {"a": "x"})


def test_a_log_that_a_new_leader_cut_off_begins_where_the_end_says():
    end = QueryOffset({A0: 9}, {"a": "x"}, starts={A0: 3}, epochs={A0: 2})
    assert QueryOffset({A0: 5}, {"a": "x"}, epochs={A0: 1}).start_of(A0, end) == 3


def test_an_offset_is_no_batch_after_itself():
    offset = QueryOffset({A0: 5}, {"a": "x"}, starts={A0: 0}, epochs={A0: 1})
    assert offset.start_of(A0, offset) == 5
