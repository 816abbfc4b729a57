"""The loop that asks the controller for other in-sync sets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.support.memory_peer import simulated
from tests.support.partitions import OWN, SECOND, Lease, append, fetched, image
from tests.unit.replication.test_replica_manager import Place, topic
from tidemill.client.network.errors import ConnectionLost
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.ids import TopicId
from tidemill.core.limits import ISR_PROPOSALS_MAX
from tidemill.metadata.image.isr_proposal import IsrAnswer, IsrProposal
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.replication.led_replicas import LAG_S_MAX
from tidemill.replication.proposing import isr_proposals
from tidemill.replication.proposing.isr_proposals import LOOK_INTERVAL_S, IsrProposals
from tidemill.replication.proposing.isr_sender import IsrSender
from tidemill.testing.manual_clock import ManualClock
from tidemill.wire.message import Message
from tidemill.wire.primitives import Reader, Writer


class Controller:
    """Answers as a test says, and counts the requests."""

    def __init__(self) -> None:
        self.requests: list[list[IsrProposal]] = []
        self.answers: list[IsrAnswer] = []
        self.error: Exception | None = None
        self.asked = asyncio.Event()

    async def alter_isr(self, proposals: Sequence[IsrProposal]) -> list[IsrAnswer]:
        self.requests.append(list(proposals))
        self.asked.set()
        if self.error is not None:
            raise self.error
        return self.answers


class Bench:
    """Three partitions of which a follower has caught up with two."""

    def __init__(self) -> None:
        self.place = Place()
        self.place.put(topic(image(), image(), image()))
        self.partitions = list(self.place.replicas)
        self.controller = Controller()
        self.lease = Lease()
        self.proposals = IsrProposals(
            self.place.replicas,
            self.controller.alter_isr,
            clock=self.place.clock,
            lease=self.lease,
        )

    def catch_up(self, *indexes: int) -> None:
        for index in indexes:
            append(self.partitions[index])
            fetched(SECOND, self.partitions[index], 1, now=self.place.clock.monotonic())


def accepted(version: int = 1) -> IsrAnswer:
    return IsrAnswer(ErrorCode.NONE, image(isr=(OWN, SECOND), version=version))


def test_H13_all_proposals_of_a_broker_go_out_in_one_request(run):
    bench = Bench()
    bench.catch_up(0, 2)
    bench.controller.answers = [accepted(), accepted()]
    run(bench.proposals.look())
    assert [[one.partition for one in sent] for sent in bench.controller.requests] == [[0, 2]]
    assert [one.isr for one in bench.partitions] == [(OWN, SECOND), (OWN,), (OWN, SECOND)]
    run(bench.proposals.look())
    assert len(bench.controller.requests) == 1


def test_a_change_is_logged_also_if_the_image_brings_it_before_the_answer(run, caplog):
    bench = Bench()
    bench.catch_up(0)

    async def alter_isr(proposals: Sequence[IsrProposal]) -> list[IsrAnswer]:
        changed = image(isr=(OWN, SECOND), version=1)
        bench.place.put(topic(changed, image(), image()))
        return [accepted()]

    with caplog.at_level("INFO", isr_proposals.__name__):
        run(IsrProposals(bench.place.replicas, alter_isr, clock=bench.place.clock).look())
    assert [record.getMessage() for record in caplog.records] == [
        f"{bench.partitions[0].name}: in sync ({OWN}) -> ({OWN}, {SECOND})"
    ]


def test_changes_that_are_alike_are_one_line(run, caplog):
    bench = Bench()
    bench.catch_up(0, 1, 2)
    refused = IsrAnswer(ErrorCode.FENCED_LEADER_EPOCH, None)
    bench.controller.answers = [accepted(), refused, accepted()]
    with caplog.at_level("INFO", isr_proposals.__name__):
        run(bench.proposals.look())
    first, second, third = (one.name for one in bench.partitions)
    assert [record.getMessage() for record in caplog.records] == [
        f"{first}, {third}: in sync ({OWN}) -> ({OWN}, {SECOND})",
        f"{second}: in-sync set not changed: FENCED_LEADER_EPOCH",
    ]


def test_what_one_request_has_no_room_for_goes_out_first_in_the_next(run, monkeypatch):
    """A request with more elements than brokers read would never be answered."""
    monkeypatch.setattr(isr_proposals, "ISR_PROPOSALS_MAX", 2)
    bench = Bench()
    bench.catch_up(0, 1, 2)
    bench.controller.error = KafkaError(ErrorCode.REQUEST_TIMED_OUT, "slow")
    for _ in range(3):
        run(bench.proposals.look())
    sent = [[one.partition for one in request] for request in bench.controller.requests]
    assert sent == [[0, 1], [2, 0], [1, 2]]


class LinkOfBytes:
    """Reads what is sent as a broker does, and never answers."""

    def __init__(self) -> None:
        self.read: list[Message] = []

    async def request(self, message: Message, _type: object, *, version: int, timeout_s: float):
        writer = Writer()
        message.write(writer, version)
        reader = Reader(memoryview(b"".join(writer.chunks())))
        self.read.append(type(message).read(reader, version))
        raise ConnectionLost("not a broker")


def test_S4_the_longest_request_has_no_more_elements_than_a_broker_reads(run):
    replicas = 30
    longest = [
        IsrProposal(
            topic_id=TopicId(UUID(int=index)),
            partition=0,
            leader_epoch=1,
            partition_epoch=1,
            isr=tuple((broker_id, 1) for broker_id in range(replicas)),
        )
        for index in range(ISR_PROPOSALS_MAX)
    ]
    link: Any = LinkOfBytes()
    cluster: Any = SimpleNamespace(
        broker_id=OWN, broker_epoch=1, is_controller=False, image=MetadataImage(cluster_id="")
    )
    sender = IsrSender(cluster, link, clock=ManualClock(), lag_s=lambda: 10.0)
    with pytest.raises(KafkaError):
        run(sender.send(longest))
    assert len(link.read) == 1


@pytest.mark.parametrize(
    "error", [StoreUnavailable("gone"), KafkaError(ErrorCode.NOT_CONTROLLER, "moved")]
)
def test_H1_a_request_without_an_answer_leaves_every_proposal_in_doubt(run, error):
    bench = Bench()
    bench.catch_up(0, 2)
    bench.controller.error = error
    run(bench.proposals.look())
    run(bench.proposals.look())
    first, second = bench.controller.requests
    assert first == second
    for index in (0, 2):
        append(bench.partitions[index])
        assert bench.partitions[index].high_watermark == 1


def test_a_proposal_that_the_answer_does_not_mention_is_in_doubt(run):
    bench = Bench()
    bench.catch_up(0, 2)
    bench.controller.answers = [accepted()]
    run(bench.proposals.look())
    assert bench.partitions[0].isr == (OWN, SECOND)
    append(bench.partitions[2])
    assert bench.partitions[2].high_watermark == 1


def test_one_refusal_concerns_its_partition_alone(run):
    bench = Bench()
    bench.catch_up(0, 2)
    bench.controller.answers = [IsrAnswer(ErrorCode.INELIGIBLE_REPLICA), accepted()]
    run(bench.proposals.look())
    assert [one.isr for one in bench.partitions] == [(OWN,), (OWN,), (OWN, SECOND)]


def test_without_a_lease_nothing_is_proposed_until_it_is_back(run):
    bench = Bench()
    bench.lease.may_act = False
    bench.catch_up(0)
    run(bench.proposals.look())
    assert bench.controller.requests == []
    bench.lease.may_act = True
    bench.controller.answers = [accepted()]
    run(bench.proposals.look())
    assert len(bench.controller.requests) == 1


def test_without_a_lease_marks_go_on_where_followers_vouch_again(run):
    bench = Bench()
    partition = bench.partitions[1]
    partition.marks_are_held = True  # the fetch that moves them came before the vouch
    bench.lease.may_act = False
    assert partition.may_act
    run(bench.proposals.look())
    assert not partition.marks_are_held


def test_a_follower_that_catches_up_is_proposed_at_once(run):
    async def main() -> None:
        bench = Bench()
        bench.controller.answers = [accepted()]
        loop = asyncio.ensure_future(bench.proposals.run())
        await asyncio.sleep(0)
        bench.catch_up(0)
        await asyncio.wait_for(bench.controller.asked.wait(), 0.4)
        loop.cancel()

    run(main())


@simulated
async def test_marks_do_not_wait_for_a_controller_that_does_not_answer():
    bench = Bench()
    forever = asyncio.Event()

    async def hang(_proposals: Sequence[IsrProposal]) -> list[IsrAnswer]:
        await forever.wait()
        return []

    proposals = IsrProposals(bench.place.replicas, hang, clock=bench.place.clock, lease=bench.lease)
    running = asyncio.ensure_future(proposals.run())
    await asyncio.sleep(0)
    bench.catch_up(0)
    await asyncio.sleep(LOOK_INTERVAL_S)
    held = bench.partitions[1]
    append(held)
    waited_for = bench.partitions[2]
    bench.catch_up(2)  # it becomes a candidate, and stops
    append(waited_for)
    held.marks_are_held = True
    bench.place.clock.advance(1.0 + LAG_S_MAX)
    await asyncio.sleep(2 * LOOK_INTERVAL_S)
    running.cancel()
    assert not held.marks_are_held
    assert waited_for.high_watermark == 2
