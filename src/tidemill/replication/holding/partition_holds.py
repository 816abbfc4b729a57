"""The holds of one partition on this broker: what is taken in, folded, released and kept.

Leader and followers fold each batch as they append it, so a new leader knows what is held. A book
that is behind its log, after a start or a cut, or because too much came at once, is *not whole*: a
replay brings it to the end (`hold_replay`).
Until then nothing is taken in or released, and retention drops nothing that may be held.

All methods run on the event loop and none suspends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.core.limits import (
    LOOP_FOLDED_BYTES_MAX,
    LOOP_FOLDED_RECORDS_MAX,
    RELEASE_BYTES_MAX,
    RELEASE_OVERHEAD_BYTES,
    RELEASE_RECORDS_MAX,
)
from tidemill.delivery.holds.events import concerns_holds, events_of, open_records
from tidemill.delivery.holds.hold import Axis, Hold
from tidemill.delivery.holds.hold_book import HoldBook
from tidemill.delivery.intake import Requests
from tidemill.replication.holding.hold_clocks import SteadyTime
from tidemill.replication.holding.hold_host import HoldHost
from tidemill.replication.holding.hold_policy import HoldPolicy
from tidemill.replication.holding.hold_spills import HoldSpills
from tidemill.replication.holding.request_checks import are_all_due, check_commands, check_held
from tidemill.storage.log.interface import PartitionLog
from tidemill.wire.batch import BatchHeader
from tidemill.wire.marks import veil
from tidemill.wire.produced_batch import BatchPolicy

__all__ = ["PartitionHolds"]

ACKS_ALL = -1


class HeldSettings(Protocol):
    """The topic keys that matter for holds."""

    @property
    def policy(self) -> BatchPolicy: ...

    @property
    def holds(self) -> HoldPolicy: ...

    @property
    def segment_bytes(self) -> int: ...


class HeldLog(Protocol):
    """The log of the partition, for what this broker writes about its holds."""

    def append_ours(self, batch: bytearray, *, now_ms: int) -> object:
        """Append a marked batch; KafkaError or StorageFault: nothing changed."""
        ...


class HeldPartition(Protocol):
    """The partition, as far as its holds need it."""

    @property
    def name(self) -> TopicPartition: ...

    @property
    def log(self) -> PartitionLog: ...

    @property
    def settings(self) -> HeldSettings: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def offline(self) -> bool: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def durable_offset(self) -> int: ...

    def check_writable(self, acks: int) -> None:
        """KafkaError if any append with these acks would be refused."""
        ...

    @property
    def as_leader(self) -> HeldLog: ...


@final
class PartitionHolds:
    """The book of one partition, and what its role makes of it."""

    __slots__ = (
        "_resumes_at",
        "_steady",
        "book",
        "cuts",
        "host",
        "is_whole",
        "partition",
        "spills",
    )

    def __init__(self, partition: HeldPartition, host: HoldHost) -> None:
        self.partition = partition
        self.host = host
        log = partition.log
        self.spills = HoldSpills(log)
        self.book = self.spills.new_book()
        self.is_whole = log.producers.first_veiled_offset < 0
        """The book holds everything that the log says."""
        self.cuts = 0
        """Rises with each cut: a replay that began before it is worth nothing."""
        self._resumes_at: int | None = None
        """The book, though behind, holds everything below: a replay may go on from here."""
        self._steady: SteadyTime | None = None
        host.partitions[self] = None
        if not self.is_whole:
            host.replay(self)

    # --- roles and cuts --------------------------------------------------------------------------

    def leads(self, *, is_new_epoch: bool) -> None:
        """The partition is led here. Steady time starts again with a leader epoch, not within."""
        if is_new_epoch:
            self._steady = None
        self.host.look_at(self)

    def was_cut(self) -> None:
        """The log lost its end, or all."""
        self.cuts += 1
        self._resumes_at = None
        self.book = self.spills.new_book()
        self.is_whole = self.partition.log.producers.first_veiled_offset < 0
        if not self.is_whole:
            self.host.replay(self)

    def lost_copies(self) -> None:
        """Records of open holds are gone: what ended them was cut by an unclean election, or no
        replica has them.

        They cannot be delivered, and all others would wait behind them. The log alone says what is
        left; snapshots know too much.
        """
        self.spills.distrust_snapshots()
        self.was_cut()

    def adopt(self, book: HoldBook) -> None:
        """A replay reached the end of the log."""
        self.book = book
        self.is_whole = True
        self.host.look_at(self)

    def try_resume(self) -> tuple[HoldBook, int] | None:
        """The book as it is and what it lacks, once: a replay that fails begins from the log."""
        resumes_at, self._resumes_at = self._resumes_at, None
        return None if resumes_at is None else (self.book, resumes_at)

    @property
    def changes(self) -> tuple[HoldBook, int]:
        """Another one after each cut, and after each end, move or carry of a hold."""
        return self.book, self.book.changes

    @property
    def replay_offset(self) -> int:
        """Where a replay begins: nothing before it is held."""
        log = self.partition.log
        return max(log.producers.first_veiled_offset, log.log_start_offset)

    # --- appended batches ------------------------------------------------------------------------

    def appended(self, batch: memoryview, header: BatchHeader) -> int:
        """Every batch of the log, in order, right after it was appended; what was opened of it."""
        if not self.is_whole or not concerns_holds(header):
            return 0
        before = self._next_dues()
        try:
            section = open_records(batch, header)
            events = events_of(batch, header, section=section)
            self.book.fold(events, offset=header.next_offset)
        except KafkaError:
            # The batch is in the log, whatever its records are: the replay says what is wrong.
            self.was_cut()
            return 0
        self.settle(self.book)
        spill = self.spills.try_take(self.book)
        if spill is not None:
            self.host.write_spill(self, self.book, spill)
        if self.partition.is_leader and self._next_dues() != before:
            self.host.look_at(self)
        return len(section)

    def appended_many(self, batches: memoryview, found: Sequence[tuple[int, BatchHeader]]) -> None:
        """The leader's batches, by their positions. Very many are left to the replay.

        A follower that catches up is sent megabytes at once, which may be packed.
        """
        concerned = [header.record_count for _, header in found if concerns_holds(header)]
        if self.is_whole and sum(concerned) > LOOP_FOLDED_RECORDS_MAX:
            self._leave_to_replay(found[0][1].base_offset)
            return
        opened_bytes = 0
        for position, header in found:
            if self.is_whole and opened_bytes > LOOP_FOLDED_BYTES_MAX:
                self._leave_to_replay(header.base_offset)
                return
            opened_bytes += self.appended(batches[position:], header)

    def _leave_to_replay(self, offset: int) -> None:
        """The book holds everything below: a replay goes on from there, in short turns."""
        self.is_whole = False
        self._resumes_at = offset
        self.host.replay(self)

    def _next_dues(self) -> tuple[int | None, int | None]:
        return self.book.next_due(Axis.WALL), self.book.next_due(Axis.STEADY)

    # --- intake ----------------------------------------------------------------------------------

    def take_in(
        self, requests: Requests, batch: memoryview, header: BatchHeader, *, acks: int
    ) -> None:
        """Check what a client's batch asks for, and veil it unless all of it is due already.

        KafkaError: nothing changed.
        """
        if not self.is_whole:
            detail = "the holds of the partition are being read"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, detail)
        settings = self.partition.settings
        steady_ms, wall_ms = self.steady_ms(), self.host.wall_ms()
        if requests.commands:
            if acks != ACKS_ALL:
                raise KafkaError(ErrorCode.INVALID_REQUIRED_ACKS, "commands need acks=all")
            check_commands(requests, header, self.book, settings.holds, wall_ms=wall_ms)
        if requests.held_count:
            check_held(requests, header, self.book, settings.holds, wall_ms=wall_ms)
        if requests.section_bytes + RELEASE_OVERHEAD_BYTES > settings.segment_bytes:
            raise KafkaError(ErrorCode.RECORD_LIST_TOO_LARGE, "a release would exceed a segment")
        if requests.commands or not are_all_due(requests, wall_ms=wall_ms):
            veil(batch, header, stamp_ms=steady_ms)

    # --- releases --------------------------------------------------------------------------------

    def steady_ms(self) -> int:
        """The steady time of this leadership."""
        if self._steady is None:
            self._steady = self.host.start_steady(self.book.newest_stamp_ms)
        return self.host.steady_ms(self._steady)

    def now_ms(self, axis: Axis) -> int:
        """The time that due times of this axis are compared with."""
        return self.host.wall_ms() if axis is Axis.WALL else self.steady_ms()

    def due(self) -> list[Hold]:
        """What is to be released now, in order."""
        count_max, bytes_max = self.batch_bounds()
        return list(
            self.book.due(
                wall_ms=self.host.wall_ms(),
                steady_ms=self.steady_ms(),
                count_max=count_max,
                bytes_max=bytes_max,
            )
        )

    def batch_bounds(self) -> tuple[int, int]:
        """Records and bytes of a batch of ours: with the headers that it adds it fits a segment."""
        segment_bytes = self.partition.settings.segment_bytes
        count_max = min(RELEASE_RECORDS_MAX, segment_bytes // (2 * RELEASE_OVERHEAD_BYTES))
        return max(1, count_max), min(RELEASE_BYTES_MAX, segment_bytes // 2)

    def ms_until_due(self) -> int | None:
        """How long until something is due; None if nothing is held."""
        wall, steady = self._next_dues()
        waits = []
        if wall is not None:
            waits.append(wall - self.host.wall_ms())
        if steady is not None:
            waits.append(steady - self.steady_ms())
        return max(0, min(waits)) if waits else None

    # --- retention -------------------------------------------------------------------------------

    def floor(self) -> int | None:
        """Retention drops nothing from here on: the oldest copy that is or may again be held."""
        if not self.is_whole:
            return self.replay_offset
        self.settle(self.book)
        if not self.partition.is_leader:
            # Only the leader knows which ends all others have flushed: its log start is followed.
            return self.partition.log.log_start_offset
        return self.book.floor()

    def settle(self, book: HoldBook) -> None:
        """Ends that no cut can take back need no copy any more; `book`: this one, or the next."""
        # Not what is durable here: a follower that has flushed an end may be the only one.
        book.settle(self.partition.durable_offset)
