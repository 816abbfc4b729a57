"""Filters stored batches for one fetch: of a view, or of a topic with veiled batches (the lens).

A batch that matches whole is a part of the answer as it is stored; one without a match is left out;
of any other the matching records are copied, with the same offsets, producer and transaction bits.
Control batches stay, so that a reader of committed records knows where a transaction ended. If the
last offset that was looked at is not that of a record sent, the answer ends in a skip batch: so
position, lag and commits pass what was filtered. Of a veiled batch no reader gets more than the
records that are not held, with their own times and without the mark. A view of what is held shows
the others, as long as they are held, and nothing else.

`steps` is the work in pieces of about a millisecond: it yields None after each, or a function that
must run in a thread and whose outcome it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import final

from tidemill.core.limits import (
    FILTER_BATCH_WORK,
    FILTER_LOOP_BATCH_BYTES_MAX,
    FILTER_WORK_PER_SLICE,
    HELD_RECORD_WORK,
    MATCHLESS_BYTES_MIN,
    RECORD_WORK,
    REPACKED_BYTES_MIN,
)
from tidemill.delivery.holds.copies.held_view import OpenHolds, held_batch, try_open_copy
from tidemill.delivery.holds.copies.own_batches import HeldCopy
from tidemill.delivery.matchless import MatchlessRanges
from tidemill.delivery.skip_batch import skip_batch
from tidemill.hot import header_match, record_pick
from tidemill.hot.header_match import Program
from tidemill.wire import compression
from tidemill.wire.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatch,
    iter_headers,
    rebuild,
    records_section,
)
from tidemill.wire.marks import MARKS, is_veiled, record_base
from tidemill.wire.records import iter_records

__all__ = ["Job", "ViewWalk"]

Buffer = bytes | bytearray | memoryview
Job = Callable[[], Buffer]
"""Something too long for the event loop."""
Steps = Generator[Job | None, Buffer | None, None]
Found = Generator[Job | None, Buffer | None, Buffer]
Verdict = Generator[Job | None, Buffer | None, bool]


@final
class ViewWalk:
    """One look at the batches from an offset on, and the answer made of them."""

    def __init__(
        self,
        program: Program | None,
        *,
        partition: int,
        fetch_offset: int,
        start_offset: int,
        leader_epoch: int,
        bytes_max: int,
        matchless: MatchlessRanges,
        holds: OpenHolds | None = None,
    ) -> None:
        """Nothing from `fetch_offset` to `start_offset` matches; it is of `leader_epoch`.

        Without a program every record matches that is not held; with `holds`, those that are.
        """
        self._program = program
        self._holds = holds
        self._partition = partition
        self._fetch_offset = fetch_offset
        self._leader_epoch = leader_epoch
        self._bytes_max = bytes_max
        self._matchless = matchless
        self._pieces: list[Buffer] = []
        self._size_bytes = 0
        self._chunk = memoryview(b"")
        self._run: tuple[int, int] | None = None
        """Where in the chunk the last piece of the answer is, if it is stored bytes."""
        self._sent_offset = -1
        """Of the last record in the answer."""
        self._quiet_from = start_offset
        self._quiet_bytes = 0
        """What was looked at since the last match."""
        self._work = 0
        self.next_offset = start_offset
        """Everything before it was looked at."""
        self.quiet: list[tuple[int, int]] = []
        """Ranges without a match that are worth remembering."""
        self.sent_batches: dict[int, list[int]] = {}
        """Base offsets of the transactional batches in the answer, by their producers."""

    # --- the answer ------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether no record matched; a skip batch may still be due."""
        return self._sent_offset < 0

    def answer(self) -> Buffer:
        """The batches for the client; empty if nothing was looked at."""
        pieces = self._pieces
        if self.next_offset > self._fetch_offset and self._sent_offset != self.next_offset - 1:
            pieces = [*pieces, self._skip()]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _skip(self) -> bytes:
        return skip_batch(self.next_offset - 1, leader_epoch=self._leader_epoch)

    # --- the work --------------------------------------------------------------------------------

    def steps(self, chunks: Sequence[Buffer]) -> Steps:
        """Look at whole batches until the answer is full; CorruptBatch."""
        for chunk in chunks:
            self._chunk, self._run = memoryview(chunk), None
            for position, header in iter_headers(self._chunk):
                yield from self._pace(FILTER_BATCH_WORK)
                if header.next_offset <= self.next_offset:
                    continue
                has_room = yield from self._look(position, header)
                if not has_room:
                    self._end_quiet()
                    return
                self.next_offset = header.next_offset
                self._leader_epoch = header.partition_leader_epoch
        self._end_quiet()

    def _look(self, position: int, header: BatchHeader) -> Verdict:
        """Add a batch, or its matches, to the answer. False: there is no room for it."""
        if self._holds is not None:
            return (yield from self._look_for_held(position, header, self._holds))
        if header.is_control:
            return self._add_stored(position, header, header.last_offset_delta)
        first = max(header.base_offset, self._fetch_offset)
        if self._matchless.end_from(first) > header.last_offset:
            self._quiet_bytes += header.size_bytes
            return True
        if self._program is None and not is_veiled(header):
            yield from self._pace(HEADER_BYTES)
            return self._add_stored(position, header, header.last_offset_delta)
        if header.record_count == 0:
            return True
        return (yield from self._filter(position, header))

    def _filter(self, position: int, header: BatchHeader) -> Verdict:
        section = yield from self._section(self._chunk[position:], header)
        if header.record_count > len(section):
            raise CorruptBatch(f"{header.record_count} records in {len(section)} bytes")
        verdicts = bytearray(header.record_count)
        is_stored = not is_veiled(header)
        try:
            if is_stored:
                matched, last_delta = yield from self._match(section, header, verdicts)
            else:
                matched, last_delta = yield from self._unveil(section, header, verdicts)
            if matched == 0:
                self._quiet_bytes += header.size_bytes
                return True
            if is_stored and matched == header.record_count:
                return self._add_stored(position, header, last_delta)
            picked = yield from self._pick(section, header, verdicts, matched)
        except ValueError as error:
            raise CorruptBatch(f"offset {header.base_offset}: {error}") from None
        self._run = None
        return self._add(picked, header, last_delta)

    def _look_for_held(self, position: int, header: BatchHeader, holds: OpenHolds) -> Verdict:
        yield from self._pace(HEADER_BYTES)
        copies: list[HeldCopy] = []
        if is_veiled(header):
            batch = yield from self._plain(self._chunk[position:], header)
            for record in iter_records(batch):
                copy = try_open_copy(record, header, holds)
                if copy is not None and record.offset >= self._fetch_offset:
                    copies.append(copy)
                yield from self._pace(HELD_RECORD_WORK)
        if not copies:
            self._quiet_bytes += header.size_bytes
            return True
        build = partial(held_batch, copies, leader_epoch=header.partition_leader_epoch)
        if len(copies) * HELD_RECORD_WORK <= FILTER_WORK_PER_SLICE:
            shown: Buffer | None = build()
        else:
            shown = yield build
        assert shown is not None
        self._run = None
        return self._add(shown, header, copies[-1].hold.offset - header.base_offset)

    def _plain(self, view: memoryview, header: BatchHeader) -> Found:
        """The same batch, not compressed."""
        section = yield from self._section(view, header)
        if header.codec == compression.NONE:
            return view[: header.size_bytes]
        return rebuild(
            header,
            section,
            record_count=header.record_count,
            max_timestamp=header.max_timestamp,
            delete_horizon_ms=None,
            codec=compression.NONE,
        )

    def _section(self, view: memoryview, header: BatchHeader) -> Found:
        """The records of a batch, decompressed: here if they are few, else in a thread."""
        if header.codec == compression.NONE:
            return view[HEADER_BYTES : header.size_bytes]
        yield from self._pace(header.size_bytes)
        try:
            packed = view[HEADER_BYTES : header.size_bytes]
            found = compression.decompress(
                header.codec, packed, bytes_max=FILTER_LOOP_BATCH_BYTES_MAX
            )
        except compression.DecompressedTooLarge:
            unpacked = yield partial(records_section, view, header)
            assert unpacked is not None
            return unpacked
        return found

    def _unveil(
        self, section: Buffer, header: BatchHeader, verdicts: bytearray
    ) -> Generator[Job | None, Buffer | None, tuple[int, int]]:
        """Like `_match`, for a veiled batch; `header` becomes that of the records one may see."""
        data = bytes(section)
        seen, last_delta, highest, position, done = 0, -1, None, 0, 0
        while done < header.record_count:
            count = min(header.record_count - done, record_pick.CHUNK_RECORDS)
            before = position
            position, more, last, delta = record_pick.judge(
                data,
                position,
                len(data),
                done,
                count,
                max(0, self._fetch_offset - header.base_offset),
                verdicts,
            )
            seen += more
            last_delta = max(last_delta, last)
            highest = delta if highest is None else max(highest, delta)
            done += count
            yield from self._pace(position - before + count * RECORD_WORK)
        assert highest is not None, "only called for a batch with records"
        header.base_timestamp = record_base(header, highest)
        header.attributes &= ~MARKS
        if self._program is None or seen == 0:
            return seen, last_delta
        matching = bytearray(header.record_count)
        yield from self._match(data, header, matching)
        both = [one & other for one, other in zip(verdicts, matching, strict=True)]
        verdicts[:] = bytes(both)
        return sum(both), len(both) - 1 - both[::-1].index(1) if any(both) else -1

    def _match(
        self, section: Buffer, header: BatchHeader, verdicts: bytearray
    ) -> Generator[Job | None, Buffer | None, tuple[int, int]]:
        """How many records match, and the offset delta of the last of them."""
        assert self._program is not None, "without one, all that is stored plain matches"
        append_time = NO_TIMESTAMP
        if header.attributes & LOG_APPEND_TIME:
            append_time = header.max_timestamp
        matched, last_delta, position, done = 0, -1, 0, 0
        while done < header.record_count:
            looked, work, position, more, last = header_match.match(
                self._program,
                section,
                position,
                len(section),
                done,
                min(header.record_count - done, header_match.CHUNK_RECORDS),
                header.base_timestamp,
                append_time,
                self._partition,
                max(0, self._fetch_offset - header.base_offset),
                FILTER_WORK_PER_SLICE,
                verdicts,
            )
            matched += more
            last_delta = max(last_delta, last)
            done += looked
            yield from self._pace(work + looked * RECORD_WORK)
        return matched, last_delta

    def _pick(
        self, section: Buffer, header: BatchHeader, verdicts: bytearray, matched: int
    ) -> Found:
        """A batch of the matching records."""
        out = bytearray(len(section))
        highest, position, out_at, done = None, 0, 0, 0
        while done < header.record_count:
            count = min(header.record_count - done, record_pick.CHUNK_RECORDS)
            before = position
            position, out_at, delta = record_pick.pick(
                section, position, len(section), done, count, verdicts, out, out_at
            )
            if delta is not None:
                highest = delta if highest is None else max(highest, delta)
            done += count
            yield from self._pace(position - before)
        assert highest is not None, "only called if a record matches"
        max_timestamp = header.max_timestamp
        if not header.attributes & LOG_APPEND_TIME:
            max_timestamp = min(max_timestamp, header.base_timestamp + highest)
        build = partial(
            rebuild,
            header,
            memoryview(out)[:out_at],
            record_count=matched,
            max_timestamp=max_timestamp,
            delete_horizon_ms=header.delete_horizon_ms,
            codec=_codec_of_picked(header.codec, out_at),
        )
        if out_at <= FILTER_LOOP_BATCH_BYTES_MAX:
            return build()
        built = yield build
        assert built is not None
        return built

    def _pace(self, work: int) -> Steps:
        self._work += work
        if self._work > FILTER_WORK_PER_SLICE:
            self._work = 0
            yield None

    # --- pieces of the answer --------------------------------------------------------------------

    def _add_stored(self, position: int, header: BatchHeader, last_delta: int) -> bool:
        """Add a stored batch: with those right before it, it is one piece."""
        end = position + header.size_bytes
        if not self._add(self._chunk[position:end], header, last_delta):
            return False
        start = position
        if self._run is not None and self._run[1] == position:
            start = self._run[0]
            self._pieces[-2:] = [self._chunk[start:end]]
        self._run = start, end
        return True

    def _add(self, piece: Buffer, header: BatchHeader, last_delta: int) -> bool:
        """Add a batch; False: there is no room for it."""
        if self._pieces and self._size_bytes + len(piece) > self._bytes_max:
            return False
        self._end_quiet()
        self._pieces.append(piece)
        self._size_bytes += len(piece)
        self._sent_offset = header.base_offset + last_delta
        self._quiet_from = header.next_offset
        if header.is_transactional and not header.is_control:
            self.sent_batches.setdefault(header.producer_id, []).append(header.base_offset)
        return True

    def _end_quiet(self) -> None:
        if self._quiet_bytes >= MATCHLESS_BYTES_MIN:
            self.quiet.append((self._quiet_from, self.next_offset))
        self._quiet_bytes = 0


def _codec_of_picked(codec: int, size_bytes: int) -> int:
    """The codec of records picked from a batch of `codec`.

    No other codec will do: a client that reads the base knows that one, and perhaps no other
    (kafkajs has gzip alone). gzip itself takes too long: 8 ms for a quarter of a megabyte.
    """
    is_packed = codec != compression.GZIP and size_bytes > REPACKED_BYTES_MIN
    return codec if is_packed else compression.NONE
