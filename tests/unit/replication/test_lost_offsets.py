"""What no replica has: followers pass over it, and refuse to read it as their leader does."""

from __future__ import annotations

import pytest

from tests.support.follower_bench import EPOCH, GOOD, Bench, data, log, turns
from tests.support.partitions import SECOND, batch, image, refusal
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.storage.state.log_damage import DamagedRange
from tidemill.wire.generated.fetch import PartitionData

LOST = int(ErrorCode.CORRUPT_MESSAGE)


def lost(end_offset: int, *, epoch: int = EPOCH) -> PartitionData:
    return data(0, error_code=LOST, lost_end_offset=end_offset, lost_epoch=epoch)


def test_I16_a_follower_goes_on_behind_what_is_lost_and_notes_it(run):
    bench = Bench(log())

    async def main() -> None:
        await bench.fetch(data(0, GOOD))
        await bench.fetch(lost(5))
        await turns()
        assert await bench.fetch(data(0, batch(1, base_offset=5, epoch=EPOCH))) == [0]

    run(main())
    (follower,) = bench.partitions
    assert follower.log.log_end_offset == 6
    assert follower.log.damage.given_up == [DamagedRange(1, 5)]
    assert not follower.log.damage.is_open


@pytest.mark.parametrize("epoch", [EPOCH + 1, -1])
def test_S23_a_loss_in_an_epoch_that_cannot_follow_ours_is_refused(run, epoch):
    bench = Bench(log())

    async def main() -> None:
        await bench.fetch(data(0, GOOD))
        await bench.fetch(lost(5, epoch=epoch))
        await turns()
        assert await bench.fetch() == []  # it rests

    run(main())
    (follower,) = bench.partitions
    assert follower.log.log_end_offset == 1
    assert not follower.log.damage


def test_a_loss_below_our_end_drops_nothing_of_ours(run):
    bench = Bench(log())

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH)))
        await bench.fetch(lost(3))
        await turns()

    run(main())
    (follower,) = bench.partitions
    assert follower.log.log_end_offset == 4
    assert not follower.log.damage


def test_an_empty_log_begins_where_its_leader_says_even_if_that_is_lost(run):
    bench = Bench(log())

    async def main() -> None:
        out_of_range = int(ErrorCode.OFFSET_OUT_OF_RANGE)
        await bench.fetch(data(0, error_code=out_of_range, log_start_offset=3))
        for _ in range(2):
            await turns()
            await bench.fetch(lost(5))
        await turns()

    run(main())
    (follower,) = bench.partitions
    assert follower.log.log_start_offset == 3
    assert follower.log.log_end_offset == 5
    assert follower.log.damage.given_up == [DamagedRange(3, 5)]


class _SlowStore:
    """Another leader is elected while the note is stored."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    async def run(self, _step: object, _work: object) -> None:
        (follower,) = self._bench.partitions
        now = image(leader=SECOND, epoch=EPOCH + 1)
        follower.become_follower(now)
        self._bench.followers.role_changed(follower, now)


def test_a_loss_that_was_told_by_a_former_leader_is_taken_back(run):
    stored = log()
    stored.directory = "somewhere"
    bench = Bench(stored)
    bench.followers._answers._lost_offsets._disk = _SlowStore(bench)  # type: ignore[assignment]

    async def main() -> None:
        await bench.fetch(data(0, GOOD))
        await bench.fetch(lost(5))
        await turns()

    run(main())
    (follower,) = bench.partitions
    assert follower.log.log_end_offset == 1
    assert not follower.log.damage


def test_I17_what_is_lost_is_refused_by_the_follower_too(run):
    bench = Bench(log())
    (follower,) = bench.partitions

    async def main() -> None:
        await bench.fetch(lost(5))
        await turns()

    run(main())
    with pytest.raises(KafkaError) as caught:
        follower.log.damage.readable_end(2, 5)
    assert refusal(caught) is ErrorCode.CORRUPT_MESSAGE
