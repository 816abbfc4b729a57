"""What a follower cuts when its leader has other records, and what it does not."""

from __future__ import annotations

import asyncio
import logging

import pytest

from tests.support.follower_bench import (
    EPOCH,
    GOOD,
    GOOD_AFTER,
    TOPIC_ID,
    Bench,
    Waiting,
    data,
    diverging,
    log,
    turns,
)
from tests.support.memory_peer import simulated
from tests.support.partitions import SECOND, batch, image
from tidemill.core.errors import ErrorCode
from tidemill.replication.following import RefusedCut
from tidemill.wire.generated.fetch import (
    FetchableTopicResponse,
    FetchResponse,
)


def test_I13_a_cut_of_committed_records_is_refused_once_and_the_others_go_on(run, caplog):
    bench = Bench(log(), log(), unclean_epoch=-1)

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=3), data(1))
        await bench.fetch(diverging(0, 2), data(1))
        assert await bench.fetch(data(1, GOOD)) == []

    with caplog.at_level(logging.ERROR):
        run(main())
    assert bench.partitions[0].log.log_end_offset == 4
    assert bench.partitions[1].log.log_end_offset == 1
    assert len(caplog.records) == 1


def test_the_log_says_which_uncommitted_records_a_follower_drops(run, caplog):
    bench = Bench(log(), unclean_epoch=-1)

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=2))
        await bench.fetch(diverging(0, 2))

    with caplog.at_level(logging.INFO):
        run(main())
    assert any("drops offsets 2 to 3" in record.getMessage() for record in caplog.records)


def test_I13_a_refusal_is_known_until_another_epoch_begins(run):
    bench = Bench(log(), unclean_epoch=-1)

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=3))
        await bench.fetch(diverging(0, 2))

    run(main())
    follower = bench.partitions[0].as_follower
    assert follower.refused_cut == RefusedCut(EPOCH, offset=2, committed_offset=3)
    bench.partitions[0].become_follower(image(leader=SECOND, epoch=EPOCH, isr=(SECOND,)))
    assert follower.refused_cut is not None
    bench.partitions[0].become_follower(image(leader=SECOND, epoch=EPOCH + 1))
    assert follower.refused_cut is None


def test_I13_where_the_metadata_does_not_say_the_cut_is_made_with_an_alarm(run, caplog):
    bench = Bench(log())

    async def main() -> None:
        await bench.fetch(data(0, batch(2, epoch=EPOCH), high_watermark=2))
        await bench.fetch(data(0, batch(2, base_offset=2, epoch=EPOCH), high_watermark=3))
        await bench.fetch(diverging(0, 2))

    with caplog.at_level(logging.ERROR):
        run(main())
    assert bench.partitions[0].log.log_end_offset == 2
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("start", "alarms"), [(9, 0), (4, 0), (3, 1)])
def test_a_log_begins_anew_where_the_leaders_begins_and_loses_only_what_is_after(
    run, caplog, start, alarms
):
    bench = Bench(log())

    async def main() -> None:
        await bench.fetch(data(0, batch(4, epoch=EPOCH), high_watermark=4))
        out = int(ErrorCode.OFFSET_OUT_OF_RANGE)
        await bench.fetch(data(0, error_code=out, log_start_offset=start))

    with caplog.at_level(logging.ERROR):
        run(main())
    assert bench.partitions[0].log.log_end_offset == start
    assert len(caplog.records) == alarms


@simulated
async def test_a_cut_that_takes_long_does_not_stop_the_other_partitions():
    bench = Bench(log(), log())
    await bench.fetch(data(0, GOOD), data(1, GOOD))
    bench.cutter.may_cut.clear()
    assert await bench.fetch(diverging(0, 0), data(1, GOOD_AFTER)) == [0, 1]
    assert await bench.fetch() == [1]
    bench.cutter.may_cut.set()
    await turns()
    assert bench.partitions[0].log.log_end_offset == 0
    assert await bench.fetch(data(0, GOOD)) == [0]
    assert bench.partitions[0].log.log_end_offset == 1


@simulated
async def test_two_answers_that_ask_for_the_same_cut_make_one():
    waiting = Waiting(log())
    bench = waiting.bench
    await bench.fetch(data(0, GOOD))
    await waiting.begin()
    waiting.lane.follow(bench.partitions[0])
    await turns()
    bench.cutter.may_cut.clear()
    for future in list(waiting.connection.waiting):
        answered = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=[diverging(0, 0)])
        future.set_result(FetchResponse(session_id=9, responses=[answered]))
        waiting.connection.waiting.remove(future)
        await waiting.step
        waiting.step = asyncio.ensure_future(
            waiting.lane._fetch_once(waiting.connection)  # type: ignore[arg-type]
        )
        await turns()
    assert bench.cutter.begun == 1
    bench.cutter.may_cut.set()
    await turns()
    assert bench.partitions[0].log.log_end_offset == 0
    await waiting.end()
