"""Fetch from a near replica (KIP-392): leaders send readers on, in-sync followers serve them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.server.one_broker import NODE_ID, NOW_MS, OneBroker
from tidemill.core.config.broker_config import RACK_AWARE_SELECTOR
from tidemill.core.errors import ErrorCode
from tidemill.core.loop.deferred import Deferred
from tidemill.wire.batch import iter_headers
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.records import Record, build_batch

FAR, NEAR = 2, 3
VERSION = 12
COMMITTED = 1
NOBODY = -1


def request(offset, *, rack="near", epoch=-1, last_epoch=-1, topic="orders", **fields):
    wanted = FetchPartition(
        partition=0,
        fetch_offset=offset,
        partition_max_bytes=1 << 20,
        current_leader_epoch=epoch,
        last_fetched_epoch=last_epoch,
    )
    topics = [FetchTopic(topic=topic, partitions=[wanted])]
    fields = {"max_bytes": 1 << 20, "min_bytes": 1, **fields}
    return FetchRequest(topics=topics, rack_id=rack, **fields)


def fetch(broker, offset, version=VERSION, **fields):
    return broker.call(request(offset, **fields), version).responses[0].partitions[0]


def bases(data):
    return [header.base_offset for _, header in iter_headers(data.records or b"")]


@pytest.fixture
def make():
    """Broker 1 is in no rack, 2 is far, 3 is near; the first of `replicas` leads."""
    made = []

    def make(replicas, *, overrides=None, **values):
        broker = OneBroker(**values)
        made.append(broker)
        broker.join_broker(FAR, rack="far")
        broker.join_broker(NEAR, rack="near")
        broker.make_topic("orders", -1, assignments={0: replicas}, overrides=overrides or {})
        return broker

    yield make
    for broker in made:
        broker.close()


@pytest.fixture
def leading(make):
    """This broker leads, and both followers have its two batches."""
    broker = make([NODE_ID, FAR, NEAR], **{"replica.selector.class": "rack"})
    broker.append("orders", NOW_MS)
    broker.append("orders", NOW_MS)
    followers_have(broker, 2)
    return broker


@pytest.fixture
def following(make):
    """This broker follows broker 2, and is in sync."""
    return make([FAR, NODE_ID, NEAR])


def followers_have(broker, offset, *brokers, start=0):
    for one in brokers or (FAR, NEAR):
        broker.partition("orders").follower_fetched(
            one,
            fetch_offset=offset,
            flushed_offset=offset,
            log_start_offset=start,
            now=broker.clock.monotonic(),
        )


def leader_sends(broker, count=0, *, mark, **producer):
    """What the leader's answer to one fetch does: `count` batches of one record, and its mark."""
    follower = broker.partition("orders").as_follower
    start, epoch = follower.log.log_end_offset, broker.partition("orders").leader_epoch
    records = [Record(b"v", timestamp=NOW_MS)]
    batches = b"".join(
        bytes(build_batch(records, base_offset=n, leader_epoch=epoch, **producer))
        for n in range(start, start + count)
    )
    follower.append(batches, high_watermark=mark, now_ms=NOW_MS)


def set_image(broker, **changes):
    partition = broker.partition("orders")
    partition.become_follower(replace(partition.image, **changes))


# --- the leader ----------------------------------------------------------------------------------


def test_T38_a_leader_sends_a_reader_to_the_in_sync_replica_in_its_rack(leading):
    data = fetch(leading, 0)
    assert data.preferred_read_replica == NEAR
    assert (data.error_code, bases(data), data.high_watermark) == (ErrorCode.NONE, [], 2)
    assert fetch(leading, 2).preferred_read_replica == NEAR
    assert leading.services.telemetry.readers_sent_on == 2


def test_T38_a_reader_is_sent_on_at_once_even_if_there_is_nothing_to_read(leading):
    answer = leading.call(request(2, max_wait_ms=60_000), VERSION)
    assert answer.responses[0].partitions[0].preferred_read_replica == NEAR


def test_T38_a_reader_is_not_sent_where_retention_has_dropped_what_it_wants(leading):
    """The follower would send it back, and so to and fro for as long as that lasts."""
    followers_have(leading, 2, NEAR, start=1)
    assert fetch(leading, 0).preferred_read_replica == NOBODY
    assert fetch(leading, 1).preferred_read_replica == NEAR


def test_T38_a_session_tells_where_to_go_although_nothing_else_is_new(leading):
    followers_have(leading, 1, NEAR)
    first = leading.call(request(2, session_epoch=0), VERSION)
    assert first.responses[0].partitions[0].preferred_read_replica == NOBODY
    followers_have(leading, 2, NEAR)
    quiet = FetchRequest(
        session_id=first.session_id, session_epoch=1, rack_id="near", min_bytes=1, max_bytes=1000
    )
    second = leading.call(quiet, VERSION)
    assert second.responses[0].partitions[0].preferred_read_replica == NEAR


@pytest.mark.parametrize(
    ("offset", "fields"),
    [(0, {"rack": ""}), (0, {"rack": "elsewhere"}), (0, {"rack": "near", "version": 10})],
    ids=["no rack", "a rack without a replica", "a version without racks"],
)
def test_T38_other_readers_stay_at_the_leader(leading, offset, fields):
    data = fetch(leading, offset, **fields)
    assert data.preferred_read_replica == NOBODY
    assert bases(data) == [0, 1]


def test_T38_without_a_selector_the_leader_serves_everybody(make):
    broker = make([NODE_ID, FAR, NEAR])
    broker.append("orders", NOW_MS)
    followers_have(broker, 1)
    assert bases(fetch(broker, 0)) == [0]


def test_T38_kafkas_name_of_the_selector_is_understood(make):
    broker = make([NODE_ID, FAR, NEAR], **{"replica.selector.class": RACK_AWARE_SELECTOR})
    followers_have(broker, 0)
    assert fetch(broker, 0).preferred_read_replica == NEAR


def test_T38_a_leader_in_the_rack_of_its_reader_serves_it(make):
    broker = make([NODE_ID, NEAR], **{"replica.selector.class": "rack", "broker.rack": "near"})
    followers_have(broker, 0, NEAR)
    assert fetch(broker, 0).preferred_read_replica == NOBODY


def test_T38_a_reader_is_not_sent_to_a_replica_that_lacks_its_offset(leading):
    partition = leading.partition("orders")
    partition.follower_restarted(NEAR)
    assert bases(fetch(leading, 0)) == [0, 1]
    followers_have(leading, 1, NEAR)
    assert fetch(leading, 1).preferred_read_replica == NEAR
    assert fetch(leading, 2).preferred_read_replica == NOBODY


def test_T38_a_reader_is_not_sent_to_a_replica_that_is_out_of_sync(leading):
    partition = leading.partition("orders")
    image = replace(partition.image, isr=(NODE_ID, FAR), partition_epoch=9)
    partition.become_leader(image, now=leading.clock.monotonic())
    assert bases(fetch(leading, 0)) == [0, 1]


@pytest.mark.parametrize("offset", [-1, 3])
def test_T38_an_offset_out_of_range_is_judged_by_the_leader(leading, offset):
    data = fetch(leading, offset)
    assert data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert data.preferred_read_replica == NOBODY


@pytest.mark.parametrize(
    ("value", "rack", "chosen"),
    [
        ("leader", "near", NOBODY),
        ("nearest", "near", NEAR),
        ("nearest", "elsewhere", NOBODY),
        ("followers", "near", NEAR),
        ("followers", "elsewhere", FAR),
        ("followers", "", NOBODY),
    ],
)
def test_F86_a_topic_says_which_replica_is_read(make, value, rack, chosen):
    broker = make([NODE_ID, FAR, NEAR], overrides={"tidemill.read.from": value})
    followers_have(broker, 0)
    assert fetch(broker, 0, rack=rack).preferred_read_replica == chosen


# --- the follower --------------------------------------------------------------------------------


def test_F65_a_follower_serves_what_its_leader_has_confirmed_and_nothing_beyond(following):
    leader_sends(following, 3, mark=2)
    data = fetch(following, 0)
    assert (data.error_code, data.high_watermark) == (ErrorCode.NONE, 2)
    assert bases(data) == [0, 1]
    assert following.services.telemetry.follower_read_bytes == len(data.records)


def test_F65_a_reader_ahead_of_the_followers_mark_waits_for_it(following):
    leader_sends(following, 3, mark=1)
    answer, _ = following.start(request(3, max_wait_ms=1_000), VERSION)
    assert isinstance(answer, Deferred)
    assert not answer.resolved
    leader_sends(following, 1, mark=4)
    following.run(_turns())
    heard = []
    answer.then(heard.append)
    assert bases(heard[0].responses[0].partitions[0]) == [3]


async def _turns():
    """Ends when what the loop had to do is done."""


def test_F65_beyond_the_followers_log_the_leader_is_asked(following):
    leader_sends(following, 3, mark=3)
    assert fetch(following, 4).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_F65_a_follower_says_nothing_until_its_leader_has_confirmed_its_mark(following):
    assert fetch(following, 0).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    leader_sends(following, 2, mark=2)
    set_image(following, leader=NEAR, leader_epoch=5)
    assert fetch(following, 0).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    leader_sends(following, mark=1)  # the new leader does not know its own mark yet
    assert fetch(following, 0).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
    leader_sends(following, mark=2)
    assert bases(fetch(following, 0, epoch=5)) == [0, 1]


def test_F65_another_leader_epoch_is_refused_by_followers_too(following):
    leader_sends(following, 1, mark=1)
    epoch = following.partition("orders").leader_epoch
    assert fetch(following, 0, epoch=epoch + 1).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    set_image(following, leader_epoch=epoch + 1)
    leader_sends(following, mark=1)
    assert fetch(following, 0, epoch=epoch).error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_F65_a_follower_out_of_sync_sends_its_readers_back(following):
    leader_sends(following, 1, mark=1)
    answer, _ = following.start(request(1, max_wait_ms=1_000, min_bytes=1_000), VERSION)
    set_image(following, isr=(FAR, NEAR))
    following.run(_turns())
    heard = []
    answer.then(heard.append)
    data = heard[0].responses[0].partitions[0]
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert data.current_leader.leader_id == FAR


def test_F65_a_follower_without_a_lease_sends_its_readers_back(following):
    leader_sends(following, 1, mark=1)
    following.store.suspend(following.session)
    assert fetch(following, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(("rack", "version"), [("", 12), ("near", 10)])
def test_F65_a_follower_serves_nobody_who_cannot_be_sent_on(following, rack, version):
    leader_sends(following, 1, mark=1)
    data = fetch(following, 0, version, rack=rack)
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_F86_a_follower_of_a_topic_that_only_its_leader_serves_sends_readers_back(make):
    broker = make([FAR, NODE_ID, NEAR], overrides={"tidemill.read.from": "leader"})
    leader_sends(broker, 1, mark=1)
    assert fetch(broker, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_F65_a_reader_of_committed_records_stops_at_the_followers_stable_offset(following):
    open_one = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    leader_sends(following, 1, mark=1)
    leader_sends(following, 1, mark=2, **open_one)
    data = fetch(following, 0, isolation_level=COMMITTED)
    assert (data.last_stable_offset, data.high_watermark) == (1, 2)
    assert bases(data) == [0]
    waiting, _ = following.start(request(1, isolation_level=COMMITTED, max_wait_ms=1_000), VERSION)
    leader_sends(following, 1, mark=3)  # held by the open transaction
    following.run(_turns())
    assert not waiting.resolved


def test_F65_an_epoch_that_the_follower_has_no_record_of_is_no_divergence(following):
    leader_sends(following, 2, mark=2)
    set_image(following, leader=NEAR, leader_epoch=5)
    leader_sends(following, mark=2)
    data = fetch(following, 2, last_epoch=5)
    assert (data.error_code, data.diverging_epoch) == (ErrorCode.NONE, None)


def test_F65_a_view_is_served_by_followers_too(following):
    view = {"tidemill.view.of": "orders", "tidemill.view.filter": "color IS NULL"}
    following.make_topic("all_orders", -1, overrides=view)
    leader_sends(following, 3, mark=2)
    answer = following.start_deferred(request(0, topic="all_orders"), VERSION)
    heard = []
    answer.then(heard.append)
    while not heard:
        following.run(_turns())
    data = heard[0].responses[0].partitions[0]
    assert bases(data) == [0, 1]


# --- views ---------------------------------------------------------------------------------------


def test_F86_a_view_is_read_from_where_its_base_says(make):
    broker = make([NODE_ID, FAR, NEAR], overrides={"tidemill.read.from": "followers"})
    broker.make_topic("orders.all", -1, overrides={"tidemill.view.of": "orders"})
    broker.append("orders", NOW_MS)
    followers_have(broker, 1)
    assert fetch(broker, 0, rack="nowhere").preferred_read_replica in (FAR, NEAR)
    assert fetch(broker, 0, rack="nowhere", topic="orders.all").preferred_read_replica in (
        FAR,
        NEAR,
    )


def test_F86_a_view_of_a_topic_that_only_its_leader_serves_is_not_read_from_a_follower(make):
    broker = make([FAR, NODE_ID, NEAR], overrides={"tidemill.read.from": "leader"})
    broker.make_topic("orders.all", -1, overrides={"tidemill.view.of": "orders"})
    leader_sends(broker, 1, mark=1)
    for topic in ("orders", "orders.all"):
        assert fetch(broker, 0, topic=topic).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
