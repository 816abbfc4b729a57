"""Logs are made as the image says, without blocking the loop."""

from __future__ import annotations

import asyncio
import logging
from uuid import UUID

import pytest

from tests.support.coroutines import run
from tests.support.directories import opened
from tests.support.loop_watch import LoopWatch
from tests.support.partitions import OWN, SECOND, Flushes, image
from tidemill.core.errors import DiskBusy, StorageFault
from tidemill.core.ids import TopicId
from tidemill.core.loop.steps import finished
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.metadata_image import (
    MetadataImage,
    TopicImage,
    difference,
)
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.storage.directory.directory_meta import try_read_topic_id
from tidemill.testing.manual_clock import ManualClock
from tidemill.testing.sim.disk import SimDisk
from tidemill.upkeep.log_opener import LOGS_PER_GROUP, PARTITIONS_PER_SLICE, LogOpener

TURNS = 20


class Place:
    """One broker's partitions over a data directory on a simulated disk."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.directory = opened(self.disk)
        self.replicas = ReplicaManager(OWN, self.directory, Flushes(), clock=ManualClock())
        self.opener = self.new_opener()
        self.metadata = MetadataImage()

    def new_opener(self) -> LogOpener:
        return LogOpener(
            self.disk,
            self.directory,
            self.replicas,
            log_changes=asyncio.Lock(),
            settled=lambda: None,
        )

    def restart(self, *, fail_to_load: str) -> None:
        """Open the directory again, without one log, and follow the same image."""
        self.disk = self.disk.restart()
        self.disk.fail("pread", fail_to_load, times=1)
        self.open_again()
        assert [str(name) for name in self.directory.report.failed] == [fail_to_load]

    def open_again(self) -> None:
        """Open the directory, and follow the same image."""
        self.directory = opened(self.disk)
        self.replicas = ReplicaManager(OWN, self.directory, Flushes(), clock=ManualClock())
        self.opener = self.new_opener()
        finished(self.replicas.apply(difference(MetadataImage(), self.metadata)))

    def put(
        self,
        partitions: int,
        name: str = "t",
        number: int = 1,
        replicas: tuple[int, ...] | None = None,
    ) -> None:
        topic = TopicImage(
            name=name,
            topic_id=TopicId(UUID(int=number)),
            partitions=tuple(image(replicas=replicas) for _ in range(partitions)),
            config=TopicConfig(),
        )
        draft = ImageDraft(self.metadata)
        draft.put_topic(topic)
        self._apply(draft)

    def drop(self, name: str = "t") -> None:
        draft = ImageDraft(self.metadata)
        draft.drop_topic(name)
        self._apply(draft)

    def _apply(self, draft: ImageDraft) -> None:
        delta = draft.finish()
        self.metadata = delta.after
        finished(self.replicas.apply(delta))

    async def open_all(self, topic: str = "t") -> None:
        """Run the opener until every log of the topic has been tried."""
        running = asyncio.create_task(self.opener.run())
        await self.replicas.pending_logs.wait_tried([topic])
        running.cancel()

    def open_pending(self) -> None:
        run(self.opener.open_pending())

    def open_next(self) -> None:
        run(self.opener.open_group(self.replicas.pending_logs.take(LOGS_PER_GROUP)))


@pytest.fixture
def place() -> Place:
    return Place()


def test_F77_every_partition_of_a_large_topic_is_led_when_waiting_ends(run, place):
    place.put(2 * LOGS_PER_GROUP + 1)
    run(place.open_all())
    assert len(place.replicas) == len(place.directory.logs()) == 2 * LOGS_PER_GROUP + 1
    assert all(partition.is_leader for partition in place.replicas)


def test_logs_that_find_no_room_in_the_queue_of_the_disk_are_tried_again(run, place, monkeypatch):
    async def busy(_operation, _work=None):
        raise DiskBusy("too many reads wait for the disk")

    place.put(3)
    with monkeypatch.context() as patched:
        patched.setattr(place.disk, "run", busy)
        run(place.open_all())
        assert len(place.replicas) == 0
    place.open_pending()
    assert len(place.replicas) == 3


def test_S11_other_tasks_get_turns_while_partitions_are_opened(run, place):
    place.put(LOGS_PER_GROUP)

    async def turns() -> int:
        work = place.opener.open_group(place.replicas.pending_logs.take(LOGS_PER_GROUP))
        opening = asyncio.create_task(work)
        count = 0
        while not opening.done():
            await asyncio.sleep(0)
            count += 1
        return count

    assert run(turns()) >= LOGS_PER_GROUP // PARTITIONS_PER_SLICE


def test_a_log_that_cannot_be_made_does_not_hold_up_the_others(place):
    place.put(3)
    place.disk.fail("create", "t-1/")
    place.open_next()
    assert place.replicas.find("t", 1) is None
    assert [partition.name.partition for partition in place.replicas] == [0, 2]


def test_a_failed_log_is_tried_again(place):
    place.put(1)
    place.disk.fail("create", "t-0/")
    place.open_pending()
    assert place.replicas.find("t", 0) is None
    place.open_pending()
    assert place.replicas.find("t", 0) is not None
    assert len(place.replicas.pending_logs) == 0


def test_a_failure_is_logged_once_however_often_it_is_retried(place, caplog):
    place.put(1)
    place.disk.fail("create", "t-0/", times=2)
    with caplog.at_level(logging.ERROR):
        place.open_pending()
        place.open_pending()
    assert len(caplog.messages) == 1
    assert "t-0 cannot be opened" in caplog.text


def test_a_removal_that_keeps_failing_is_logged_once_until_it_succeeds(place, caplog):
    place.put(3)
    place.open_next()
    place.drop()
    place.disk.fail("sync_directory", times=2)
    with caplog.at_level(logging.ERROR):
        place.open_pending()
        place.open_pending()
    assert place.directory.has_unsettled_removals
    (line,) = caplog.messages
    assert "removing deleted logs failed" in line
    place.open_pending()
    assert not place.directory.has_unsettled_removals


def test_R12_a_failed_directory_opens_no_log(place):
    place.put(2)
    place.directory.fail(StorageFault("EIO"))
    place.open_next()
    assert len(place.replicas) == 0


def test_the_deletion_of_a_topic_becomes_durable_in_the_background(place):
    place.put(3)
    place.open_next()
    place.drop()
    assert place.directory.has_unsettled_removals
    place.open_pending()
    assert not place.directory.has_unsettled_removals


def test_a_deleted_topic_is_renamed_and_synced_in_a_thread(run, place):
    place.put(3)
    place.open_pending()
    watch = LoopWatch(place.disk)
    place.drop()
    run(place.opener.open_pending())
    assert watch.slow_calls == []
    assert [call for call, _ in watch.threaded] == ["rename"] * 3 + ["sync_directory"]


def test_the_log_of_a_partition_that_moved_away_is_removed_at_once(run, place):
    place.put(1)
    place.open_pending()
    place.replicas.pending_logs._work_came.clear()
    place.put(1, replicas=(SECOND,))

    async def removed() -> None:
        running = asyncio.create_task(place.opener.run())
        for _ in range(TURNS):
            await asyncio.sleep(0)
        running.cancel()

    run(removed())
    assert not place.disk.exists(f"{place.directory.path}/t-0")


def test_I34_a_topic_created_again_at_once_waits_for_no_retry(run, place):
    place.put(1)
    place.open_pending()
    old = place.replicas.find("t", 0)
    place.drop()
    place.put(1, number=2)
    run(place.opener.open_pending())
    new = place.replicas.find("t", 0)
    assert new is not None
    assert new.log is not old.log
    assert try_read_topic_id(place.disk, new.log.directory) == TopicId(UUID(int=2))


def test_I34_a_topic_deleted_while_removals_are_settled_keeps_its_name_until_the_next_settling(
    run, place
):
    """The directory of the new log must not be renamed for the old one's deletion."""
    place.put(1)
    place.open_pending()
    place.disk.fail("rename", "t-0", times=2)
    place.drop()
    place.put(1, number=2)
    run(place.opener.open_pending())
    assert place.replicas.find("t", 0) is None
    run(place.opener.open_pending())
    found = place.replicas.find("t", 0)
    assert found is not None
    run(place.opener.open_pending())
    assert place.disk.exists(found.log.directory)
    assert try_read_topic_id(place.disk, found.log.directory) == TopicId(UUID(int=2))


def test_I34_a_topic_created_again_while_its_logs_are_made_gets_its_own_logs(run, place):
    place.put(1)
    group = place.replicas.pending_logs.take(1)
    place.drop()
    place.put(1, number=2)
    run(place.opener.open_group(group))
    assert place.replicas.find("t", 0) is None
    run(place.open_all())
    partition = place.replicas.find("t", 0)
    assert partition is not None
    assert partition.topic_id == UUID(int=2)


def test_a_topic_whose_log_was_not_loaded_can_be_deleted_and_created_again(place):
    place.put(1)
    place.open_pending()
    place.directory.write_checkpoint()
    place.restart(fail_to_load="t-0")
    place.open_pending()
    assert place.replicas.find("t", 0) is None

    place.drop()
    place.put(1, number=2)
    place.open_pending()
    assert place.replicas.find("t", 0).is_leader


def restarted_without(place, lost, *, is_clean):
    """The same broker, which finds all its logs but one."""
    if is_clean:
        place.directory.close()
    else:
        place.directory.write_checkpoint()
        place.directory.release_lock()
    place.disk = place.disk.restart()
    for name in place.disk.list_names(f"/data/{lost}"):
        place.disk.unlink(f"/data/{lost}/{name}")
    place.disk.remove_directory(f"/data/{lost}")
    place.open_again()


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_whose_directory_is_gone_is_announced_when_an_empty_one_takes_its_place(
    place, caplog, is_clean
):
    place.put(2)
    place.open_pending()
    restarted_without(place, "t-1", is_clean=is_clean)
    with caplog.at_level(logging.ERROR):
        place.open_pending()
        place.open_pending()
    (line,) = [one.getMessage() for one in caplog.records]
    assert "1 logs are gone" in line
    assert "t-1" in line
    assert "t-0" not in line
    assert len(place.replicas) == 2


@pytest.mark.parametrize(
    ("topic", "advice"),
    [("__transaction_state", "transaction list --hanging"), ("__consumer_offsets", "offset.reset")],
)
def test_lost_state_of_a_coordinator_is_announced_with_what_follows_from_it(
    place, caplog, topic, advice
):
    place.put(1, name=topic)
    place.open_pending()
    restarted_without(place, f"{topic}-0", is_clean=True)
    with caplog.at_level(logging.ERROR):
        place.open_pending()
    assert any(advice in one.getMessage() for one in caplog.records)


def test_a_log_of_a_topic_that_was_deleted_and_created_again_is_not_missed(place, caplog):
    place.put(1)
    place.open_pending()
    restarted_without(place, "t-0", is_clean=False)
    place.drop()
    place.put(1, number=2)
    with caplog.at_level(logging.ERROR):
        place.open_pending()
    assert caplog.records == []
    assert len(place.replicas) == 1
