from __future__ import annotations

import json
import re

import pytest

from tests.support.fake_cluster import FakeCluster
from tests.unit.cli.invoke import tidemill
from tidemill.core.clock import SystemClock
from tidemill.core.errors import ErrorCode
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from tidemill.wire.records import Record, build_batch, iter_records

SECOND_MS = 1000
DAY_MS = 86_400_000


def held(ticket: int, due_ms: int, *, name: str = "", **headers: str) -> Record:
    """A record as a view of what is held shows it."""
    all_headers = {"tidemill.ticket": str(ticket), "tidemill.due": str(due_ms)} | {
        f"tidemill.{key.replace('_', '-')}": value for key, value in headers.items()
    }
    pairs = [(key, value.encode()) for key, value in all_headers.items()]
    return Record(b"call ann", name.encode() or None, headers=pairs, timestamp=1)


def with_holds(*records: Record, partitions: int = 1) -> FakeCluster:
    """`calls` and its view; the records are held in the last partition."""
    cluster = FakeCluster()
    cluster.add_topic("calls", partitions)
    cluster.add_topic(
        "calls.held", partitions, **{"tidemill.view.of": "calls", "tidemill.view.held": "true"}
    )
    for record in records:
        cluster.topics["calls.held"].partitions[-1].append(build_batch([record]))
    return cluster


def due_in(length_ms: int) -> int:
    return SystemClock().wall_ms() + length_ms + SECOND_MS // 2


def commands(cluster: FakeCluster, partition: int = 0) -> list[list[tuple[str, bytes | None]]]:
    stored = cluster.topics["calls"].partitions[partition].batches
    return [list(record.headers) for batch in stored for record in iter_records(batch)]


# --- list ----------------------------------------------------------------------------------------


def test_list_shows_what_is_due_first_and_plots_all_of_it():
    cluster = with_holds(
        held(0, due_in(2 * DAY_MS), name="bob"),
        held(1, due_in(90 * SECOND_MS), name="ann", message_id="ann-7"),
        held(2, due_in(95 * SECOND_MS), message_id="w", schedule="0 9 * * 1"),
    )
    out = tidemill("delay", "list", "calls", "--limit", "2", cluster=cluster).stdout.splitlines()
    assert out[0] == "calls holds 3; the next is due in 1m30s"
    assert out[2].split() == ["DUE", "IN", "TICKET", "ID", "SCHEDULE", "KEY", "BYTES"]
    assert re.fullmatch(r"\S+ \S+Z +1m30s +0:1 +ann-7 +- +ann +11", out[3])
    assert re.fullmatch(r"\S+ \S+Z +1m35s +0:2 +w +0 9 \* \* 1 +- +8", out[4])
    assert [line.split() for line in out[6:]] == [
        ["overdue", "0"],
        ["in", "1m", "0"],
        ["in", "10m", "2", "#" * 40],
        ["in", "1h", "0"],
        ["in", "6h", "0"],
        ["in", "1d", "0"],
        ["in", "7d", "1", "#" * 20],
    ]


def test_list_as_json_has_counts_and_the_first_ones():
    due_ms = due_in(60 * SECOND_MS)
    cluster = with_holds(held(4, due_ms, name="ann"), held(5, 0))
    facts = json.loads(tidemill("delay", "list", "calls", "--json", cluster=cluster).stdout)
    assert (facts["topic"], facts["view"], facts["held"]) == ("calls", "calls.held", 2)
    assert facts["size_bytes"] == 19
    assert facts["due"][0] == {"when": "overdue", "held": 1}
    assert [one["ticket"] for one in facts["first"]] == [5, 4]
    assert facts["first"][1] == {
        **{"partition": 0, "ticket": 4, "offset": 0, "due_ms": due_ms, "id": None},
        **{"schedule": None, "key": "ann", "size_bytes": 11},
    }


def test_list_takes_the_name_of_the_view_too():
    cluster = with_holds()
    assert (
        tidemill("delay", "list", "calls.held", cluster=cluster).stdout == "calls holds nothing\n"
    )


def test_a_topic_without_a_view_of_what_is_held_says_how_to_make_one():
    cluster = FakeCluster()
    cluster.add_topic("calls", 1)
    result = tidemill("delay", "list", "calls", cluster=cluster)
    assert result.exit_code == 2
    assert "`tidemill view create calls.held --of calls --held`" in result.stderr


def test_a_topic_that_does_not_exist_is_said_to_be_missing():
    result = tidemill("delay", "list", "nothing", cluster=FakeCluster())
    assert result.exit_code == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION" in result.stderr


def test_S52_keys_and_ids_cannot_control_the_terminal():
    cluster = with_holds(held(0, 0, name="\x1b[2J", message_id="\x1b]0;x\x07"))
    for args in (("list", "calls"), ("show", "calls", "0:0")):
        assert "\x1b" not in tidemill("delay", *args, cluster=cluster).stdout


# --- show ----------------------------------------------------------------------------------------


def test_show_finds_by_ticket_and_by_id():
    cluster = with_holds(held(0, 0), held(1, due_in(600_000), name="ann", message_id="ann-7"))
    for target in ("0:1", "ann-7", "id:ann-7"):
        lines = tidemill("delay", "show", "calls", target, cluster=cluster).stdout.splitlines()
        assert lines[0].endswith("in 10m")
        assert lines[1:3] == ["ticket     0:1", "id         ann-7"]
        assert "value      call ann" in lines
    facts = json.loads(tidemill("delay", "show", "calls", "0:1", "--json", cluster=cluster).stdout)
    assert (facts["ticket"], facts["value"]) == (1, "call ann")
    assert {"key": "tidemill.message-id", "value": "ann-7"} in facts["headers"]


def test_show_of_what_is_not_held_says_so():
    result = tidemill("delay", "show", "calls", "0:9", cluster=with_holds())
    assert result.exit_code == 2
    assert "calls holds nothing under 9" in result.stderr


# --- cancel and move -----------------------------------------------------------------------------


def test_cancel_sends_a_command_to_the_partition_of_the_ticket():
    cluster = with_holds(partitions=3)
    result = tidemill("delay", "cancel", "calls", "2:17", cluster=cluster)
    assert result.stdout == "cancelled 2:17\n"
    assert commands(cluster, 2) == [
        [("tidemill.command", b"cancel"), ("tidemill.target", b"17")],
    ]
    [request] = cluster.asked(ApiKey.PRODUCE)
    assert request.acks == -1


def test_an_id_is_looked_for_when_there_are_several_partitions():
    cluster = with_holds(held(0, 0, message_id="ann-7"), partitions=3)
    assert tidemill("delay", "cancel", "calls", "ann-7", cluster=cluster).exit_code == 0
    assert commands(cluster, 2) == [
        [("tidemill.command", b"cancel"), ("tidemill.target", b"id:ann-7")],
    ]
    result = tidemill("delay", "cancel", "calls", "bob-1", cluster=cluster)
    assert "calls holds nothing under bob-1" in result.stderr


def test_an_id_in_two_partitions_needs_to_be_told_apart():
    cluster = with_holds(held(0, 0, message_id="ann-7"), partitions=2)
    view = cluster.topics["calls.held"].partitions[0]
    view.append(build_batch([held(0, 0, message_id="ann-7")]))
    result = tidemill("delay", "cancel", "calls", "ann-7", cluster=cluster)
    assert "ann-7 is held in partitions 0 and 1; choose one with --partition" in result.stderr
    tidemill("delay", "cancel", "calls", "ann-7", "--partition", "1", cluster=cluster)
    assert len(commands(cluster, 1)) == 1


def test_a_command_that_is_refused_says_why():
    cluster = with_holds()
    refused = PartitionProduceResponse(
        index=0, error_code=ErrorCode.INVALID_RECORD, error_message="17 was delivered already"
    )
    answer = TopicProduceResponse(name="calls", partition_responses=[refused])
    broker = cluster.brokers[1]
    broker.handlers[ApiKey.PRODUCE] = lambda request, version: ProduceResponse(responses=[answer])
    result = tidemill("delay", "cancel", "calls", "0:17", cluster=cluster)
    assert result.exit_code == 1
    assert "17 was delivered already" in result.stderr


def test_move_sends_a_new_delay_or_a_new_time():
    cluster = with_holds()
    result = tidemill("delay", "move", "calls", "0:17", "--in", "1h30m", cluster=cluster)
    assert result.stdout == "moved 0:17\n"
    time = "2026-12-24T18:00:00Z"
    tidemill("delay", "move", "calls", "ann-7", "--at", time, cluster=cluster)
    assert commands(cluster) == [
        [
            ("tidemill.command", b"move"),
            ("tidemill.target", b"17"),
            ("tidemill.delay-ms", b"5400000"),
        ],
        [
            ("tidemill.command", b"move"),
            ("tidemill.target", b"id:ann-7"),
            ("tidemill.deliver-at", b"1798135200000"),
        ],
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("move", "calls", "0:1"), "one of --in and --at"),
        (("move", "calls", "0:1", "--in", "1h", "--at", "2026-12-24"), "one of --in and --at"),
        (("move", "calls", "0:1", "--in", "soon"), "--in: 'soon': expected a length of time"),
        (("move", "calls", "0:1", "--at", "soon"), "--at soon: expected a time"),
        (("cancel", "calls", "0:1", "--partition", "2"), "0:1 is in partition 0, not in 2"),
        (("cancel", "calls", "id:"), "a target is a ticket such as 0:17, or an id"),
        (("show", "calls"), "TARGET"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_sent(args, said):
    cluster = with_holds()
    result = tidemill("delay", *args, cluster=cluster)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not cluster.requests
