"""When many partitions count as led; nothing is started."""

from __future__ import annotations

from bench.cluster_scale_rows import are_in_sync, are_led, are_led_as_preferred
from bench.rows import ROWS
from bench.topics import Led


def test_a_start_has_ended_when_every_partition_is_there_and_led():
    led = [Led(0, 0), Led(1, 2)]
    assert are_led(led, 2)
    assert not are_led(led, 3)
    assert not are_led([Led(0, 0), Led(-1, 2)], 2)


def test_an_election_has_ended_when_every_leader_is_the_preferred_one():
    assert are_led_as_preferred([Led(0, 0), Led(2, 2)], 2)
    assert not are_led_as_preferred([Led(0, 0), Led(1, 2)], 2)
    assert not are_led_as_preferred([Led(0, 0)], 2)


def test_an_election_begins_when_every_replica_is_in_sync():
    assert are_in_sync([Led(0, 0, 3), Led(1, 2, 3)], 2)
    assert not are_in_sync([Led(0, 0, 3), Led(1, 2, 2)], 2)


def test_the_rows_about_several_brokers_are_there():
    assert {"spread-100", "spread-1k", "cluster-partitions"} <= {row.key for row in ROWS}
