"""What one log remembers about its producers: sequences, epochs, transactions (T29, I18, I19, I23).

HOT PATH: `check` and `update` run once per produced batch (goal: 1.5 us for both).

A producer numbers its records per partition. The log keeps, for each producer id, its epoch and
the last five batches. A batch is then one of:

    next in line        base_sequence follows the last one          append it
    a retry             same epoch and range as one of the five     answer with that one's offset
    a newer epoch       must begin at sequence 0                    append it, forget the old window
    an older epoch      a zombie                                    INVALID_PRODUCER_EPOCH
    anything else       a gap, or older than the window             OUT_OF_ORDER_SEQUENCE_NUMBER
    an unknown id       any sequence: its state may have expired    append it

A transactional batch opens a transaction, or continues the one that is open; a marker ends it. A
marker carries an epoch too: from then on nothing of an older one is appended.

The state is a function of the log: replaying batches through `update` and `end_transaction`
rebuilds it, and a snapshot only saves the replay. Entries without a transaction are kept in the
order of their last append, so all bounds are cheap: by age (`expire`), by count (the producer that
was silent longest is dropped first), and by the count over all logs (`producer_bound`). An entry
with an open transaction is never dropped, because its transaction must end in the log first. Where
they take all the room, no further transaction is opened.

A snapshot is captured on the loop as a few lists and encoded in a thread. A capture begins a new
*generation*: an entry of an older one may be in a capture, so the next batch of its producer
changes a copy.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import chain
from typing import Protocol, final

from tidemill.core.limits import IDEMPOTENCE_WINDOW_BATCHES, PRODUCER_IDS_PER_LOG_MAX
from tidemill.storage.files.disk import Buffer
from tidemill.storage.state.ended_transactions import EndedTransactions
from tidemill.storage.state.producer_capture import (
    ProducerCapture,
    TransactionFacts,
    decode_capture,
)
from tidemill.storage.state.producer_entry import (
    NO_OFFSET,
    ActiveProducer,
    ProducerEntry,
    sequence_after,
)
from tidemill.storage.state.producer_refusals import (
    check_unusual,
    expired_epoch,
    fenced_coordinator,
    not_transactional,
    still_open,
    too_many_open,
)
from tidemill.wire.batch import NO_SEQUENCE, TRANSACTIONAL, BatchHeader
from tidemill.wire.marks import VEILED
from tidemill.wire.transaction_marker import TransactionMarker

__all__ = ["DuplicateOf", "ProducerStates", "ProducerWatch"]


@final
@dataclass(slots=True)
class DuplicateOf:
    """The batch is already in the log: its offsets, and the timestamp to answer with."""

    base_offset: int
    last_offset: int
    max_timestamp: int


class ProducerWatch(Protocol):
    """Hears of entries as they come and go, and bounds them over many logs."""

    def counted(self, states: ProducerStates, difference: int) -> None:
        """The number of entries changes by so much."""
        ...

    def opened(self, states: ProducerStates, difference: int) -> None:
        """The number of open transactions has changed by so much."""
        ...

    def may_open(self) -> bool:
        """Whether there is room for one more open transaction."""
        ...


@final
class ProducerStates:
    """The producers of one log."""

    __slots__ = (
        "_ended",
        "_generation",
        "_last_unsequenced_offset",
        "_open",
        "_producers",
        "_watch",
        "first_abort_offset",
        "first_veiled_offset",
        "last_abort_offset",
        "last_veiled_offset",
        "producer_ids_max",
    )

    def __init__(self, *, producer_ids_max: int = PRODUCER_IDS_PER_LOG_MAX) -> None:
        self.producer_ids_max = producer_ids_max
        self._producers: OrderedDict[int, ProducerEntry] = OrderedDict()
        """Those without an open transaction, the one silent longest first."""
        self._open: OrderedDict[int, ProducerEntry] = OrderedDict()
        """Those with one, the oldest transaction first."""
        self._ended = EndedTransactions()
        self._last_unsequenced_offset = NO_OFFSET
        """Of the last batch of a producer that is in no window: a marker, or one of our own."""
        self.first_abort_offset = NO_OFFSET
        """Of the first and of the last marker that aborted records; -1 if there was none."""
        self.last_abort_offset = NO_OFFSET
        self.first_veiled_offset = NO_OFFSET
        """Where the first veiled batch begins, and where the last one ends; -1 if there was none.

        Whoever reads behind the last one needs no lens, and a replay of holds begins at the first.
        """
        self.last_veiled_offset = NO_OFFSET
        self._generation = 0
        self._watch: ProducerWatch | None = None

    def __len__(self) -> int:
        return len(self._producers) + len(self._open)

    @property
    def fact_count(self) -> int:
        """What a snapshot must hold: each entry, and whether there ever was a marker or a veil."""
        has_markers, has_veils = self._last_unsequenced_offset >= 0, self.first_veiled_offset >= 0
        return len(self) + has_markers + has_veils

    def watch(self, watch: ProducerWatch | None) -> None:
        """Tell `watch` of every change from now on; with None, nobody."""
        self._watch = watch

    def active(self) -> list[ActiveProducer]:
        """Every remembered producer, those with an open transaction last."""
        return [
            one.described(producer_id)
            for producer_id, one in chain(self._producers.items(), self._open.items())
        ]

    # --- checks, before anything is appended ------------------------------------------------------

    def check(self, header: BatchHeader) -> DuplicateOf | None:
        """None if this batch may be appended, or the batch in the log that it repeats.

        Raises KafkaError OUT_OF_ORDER_SEQUENCE_NUMBER, INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE,
        and THROTTLING_QUOTA_EXCEEDED if too many transactions are open.
        """
        producer = self._producers.get(header.producer_id)
        if producer is None:
            return self._check_open_or_new(header)
        is_next = header.base_sequence == producer.next_sequence
        if not is_next or header.producer_epoch != producer.epoch:
            found = check_unusual(producer, header)
            if found is not None:
                return DuplicateOf(*found)
        if header.attributes & TRANSACTIONAL:
            self._check_room()
        return None

    def _check_open_or_new(self, header: BatchHeader) -> DuplicateOf | None:
        producer = self._open.get(header.producer_id)
        if producer is None:
            if header.attributes & TRANSACTIONAL:
                self._check_room()
            return None
        self._check_joins(producer, header)
        if header.base_sequence == producer.next_sequence:
            return None
        found = check_unusual(producer, header)
        return None if found is None else DuplicateOf(*found)

    def try_next_sequence(self, producer_id: int, producer_epoch: int) -> int | None:
        """With what the next batch of this producer epoch begins; None: the producer is unknown.

        Whether a transaction is open does not count. NO_SEQUENCE: the epoch is an older one.
        """
        producer = self._producers.get(producer_id) or self._open.get(producer_id)
        if producer is None:
            return None
        if producer_epoch == producer.epoch:
            return producer.next_sequence
        return 0 if producer_epoch > producer.epoch else NO_SEQUENCE

    def check_unsequenced(self, header: BatchHeader) -> None:
        """The same for a transactional batch of this broker's own, which has no sequence."""
        producer = self._open.get(header.producer_id)
        if producer is not None:
            self._check_joins(producer, header)
            return
        producer = self._producers.get(header.producer_id)
        if producer is not None and header.producer_epoch < producer.epoch:
            raise expired_epoch(header.producer_id, producer, header.producer_epoch)
        self._check_room()

    def _check_joins(self, producer: ProducerEntry, header: BatchHeader) -> None:
        """KafkaError unless the batch may be part of the transaction that is open."""
        if header.producer_epoch < producer.epoch:
            raise expired_epoch(header.producer_id, producer, header.producer_epoch)
        if not header.attributes & TRANSACTIONAL:
            raise not_transactional(header.producer_id)
        if header.producer_epoch > producer.epoch:
            raise still_open(header.producer_id, producer)

    def _check_room(self) -> None:
        watch = self._watch
        if len(self._open) >= self.producer_ids_max or (watch and not watch.may_open()):
            raise too_many_open(len(self._open))

    def continues(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a transaction of this producer and epoch is open: a batch opens none."""
        producer = self._open.get(producer_id)
        return producer is not None and producer.epoch == producer_epoch

    def marker_count(self, producer_id: int) -> int:
        """A number that changes with every marker of this producer; -1 if it is unknown."""
        producer = self._open.get(producer_id) or self._producers.get(producer_id)
        return -1 if producer is None else producer.marker_count

    def check_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, is_bumped: bool
    ) -> bool:
        """Whether to append this marker; False: it repeats one, and nothing is open.

        One that a newer coordinator repeats is appended, so that the log knows that coordinator:
        a late copy from the older one must not end the producer's next transaction (I22).
        With `is_bumped` its epoch is above that of the transaction, so it cannot be meant for one
        that is open in the same epoch (I22). Raises KafkaError INVALID_PRODUCER_EPOCH,
        TRANSACTION_COORDINATOR_FENCED.
        """
        opened = self._open.get(producer_id)
        producer = self._producers.get(producer_id) if opened is None else opened
        if producer is None:
            return True
        is_late = is_bumped and opened is not None and producer_epoch == producer.epoch
        if producer_epoch < producer.epoch or is_late:
            raise expired_epoch(producer_id, producer, producer_epoch)
        if coordinator_epoch < producer.coordinator_epoch:
            raise fenced_coordinator(producer_id, producer, coordinator_epoch)
        has_newer_coordinator = coordinator_epoch > producer.coordinator_epoch
        if opened is not None or producer_epoch > producer.epoch or has_newer_coordinator:
            return True
        producer.marker_count += 1  # whoever verified a batch before must verify it again
        return False

    def span_ended_at(self, producer_id: int, marker_offset: int) -> tuple[int, int]:
        """For a marker at this offset: its transaction's first offset, and the stable offset."""
        first_offset = NO_OFFSET
        stable_offset = marker_offset + 1
        for other_id, producer in self._open.items():
            if other_id != producer_id:
                stable_offset = producer.txn_first_offset
                break
        ended = self._open.get(producer_id)
        if ended is not None:
            first_offset = ended.txn_first_offset
        return first_offset, stable_offset

    # --- what was appended ------------------------------------------------------------------------

    def update(self, header: BatchHeader, now_ms: int) -> None:
        """Remember a batch of records that was appended or is replayed."""
        producer_id = header.producer_id
        if header.attributes & VEILED:
            self.note_veiled(header)
        if producer_id < 0:
            return
        if header.attributes & TRANSACTIONAL or (self._open and producer_id in self._open):
            producer = self._in_transaction(header, now_ms)
        else:
            found = self._producers.get(producer_id)
            if found is None or found.generation != self._generation:
                producer = self._make_changeable(producer_id, found, header, now_ms)
            else:
                producer = found
            self._producers.move_to_end(producer_id)
        if producer.epoch != header.producer_epoch:
            producer.begin_epoch(header.producer_epoch)
        producer.last_append_ms = now_ms
        if header.base_sequence < 0:
            self._last_unsequenced_offset = header.base_offset + header.last_offset_delta
            return
        last_sequence = header.last_sequence
        producer.next_sequence = sequence_after(last_sequence)
        base_offset = header.base_offset
        window = producer.window
        window.append(
            (
                header.base_sequence,
                last_sequence,
                base_offset,
                base_offset + header.last_offset_delta,
                header.max_timestamp,
            )
        )
        if len(window) > IDEMPOTENCE_WINDOW_BATCHES:
            del window[0]

    def note_veiled(self, header: BatchHeader) -> None:
        """Remember where a veiled batch is, whoever sent it."""
        if self.first_veiled_offset < 0:
            self.first_veiled_offset = header.base_offset
        self.last_veiled_offset = header.base_offset + header.last_offset_delta

    def _in_transaction(self, header: BatchHeader, now_ms: int) -> ProducerEntry:
        """The entry of a producer whose transaction is open, or is opened by this batch."""
        producer_id = header.producer_id
        opened = self._open.get(producer_id)
        if opened is not None:
            if opened.generation != self._generation:
                opened = self._open[producer_id] = opened.copy(self._generation)
            return opened
        idle = self._producers.get(producer_id)
        if idle is None or idle.generation != self._generation:
            idle = self._make_changeable(producer_id, idle, header, now_ms)
        del self._producers[producer_id]
        idle.txn_first_offset = header.base_offset
        self._open[producer_id] = idle
        self._count_open(1)
        return idle

    def end_transaction(self, header: BatchHeader, marker: TransactionMarker, now_ms: int) -> None:
        """Remember a marker that was appended or is replayed."""
        producer_id = header.producer_id
        producer = self._open.pop(producer_id, None)
        was_open = producer is not None
        if producer is None:
            producer = self._producers.get(producer_id)
        if producer is None or producer.generation != self._generation:
            producer = self._make_changeable(producer_id, producer, header, now_ms)
        if was_open:
            self._ended.add(producer.txn_first_offset, header.base_offset)
            producer.txn_first_offset = NO_OFFSET
        if producer.epoch != header.producer_epoch:
            producer.begin_epoch(header.producer_epoch)
        producer.last_append_ms = now_ms
        producer.marker_count += 1
        producer.marker_offset = self._last_unsequenced_offset = header.last_offset
        producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
        self._producers[producer_id] = producer
        self._producers.move_to_end(producer_id)
        if was_open:
            self._count_open(-1)
        if marker.aborts_records:
            self.last_abort_offset = header.last_offset
            if self.first_abort_offset < 0:
                self.first_abort_offset = header.last_offset

    def _make_changeable(
        self, producer_id: int, known: ProducerEntry | None, header: BatchHeader, now_ms: int
    ) -> ProducerEntry:
        """A new entry, or a copy of one that a capture may have."""
        if known is not None:
            producer = self._producers[producer_id] = known.copy(self._generation)
            return producer
        if len(self) >= self.producer_ids_max and self._producers:
            self._producers.popitem(last=False)
        else:
            self._count(1)
        producer = ProducerEntry(header.producer_epoch, now_ms, self._generation)
        self._producers[producer_id] = producer
        return producer

    # --- forgetting -------------------------------------------------------------------------------

    def expire(
        self, now_ms: int, expiration_ms: int, *, entries_max: int = PRODUCER_IDS_PER_LOG_MAX
    ) -> int:
        """Forget up to `entries_max` producers without an append for this long; how many."""
        forgotten = 0
        oldest_ms = now_ms - expiration_ms
        while forgotten < entries_max and self._producers:
            if next(iter(self._producers.values())).last_append_ms > oldest_ms:
                break
            self._producers.popitem(last=False)
            forgotten += 1
        self._count(-forgotten)
        return forgotten

    def try_oldest_ms(self) -> int | None:
        """When the producer that may be dropped first appended; None if none may be."""
        if not self._producers:
            return None
        return next(iter(self._producers.values())).last_append_ms

    def drop_oldest(self) -> None:
        """Forget the producer that is silent longest, of those without a transaction."""
        self._producers.popitem(last=False)
        self._count(-1)

    def clear(self) -> None:
        """The log starts over."""
        self.replace(ProducerStates())

    def replace(self, other: ProducerStates) -> None:
        """Take over the entries of `other`, which is not used again."""
        difference, opened = len(other) - len(self), len(other._open) - len(self._open)
        self._producers = other._producers
        self._open = other._open
        self._ended = other._ended
        self._last_unsequenced_offset = other._last_unsequenced_offset
        self.first_abort_offset = other.first_abort_offset
        self.last_abort_offset = other.last_abort_offset
        self.first_veiled_offset = other.first_veiled_offset
        self.last_veiled_offset = other.last_veiled_offset
        self._generation = max(self._generation, other._generation) + 1
        self._count(difference)
        self._count_open(opened)

    def _count(self, difference: int) -> None:
        if difference and self._watch is not None:
            self._watch.counted(self, difference)

    def _count_open(self, difference: int) -> None:
        if difference and self._watch is not None:
            self._watch.opened(self, difference)

    # --- looking ----------------------------------------------------------------------------------

    @property
    def open_count(self) -> int:
        """Transactions that are open."""
        return len(self._open)

    def stable_offset(self, high_watermark: int) -> int:
        """Up to where, at most the watermark, every transaction has ended for good (T34, I23)."""
        if not self._open and not self._ended:
            return high_watermark
        stable = high_watermark
        held = self._ended.settle(high_watermark)
        if held >= 0:
            stable = min(stable, held)
        if self._open:
            stable = min(stable, next(iter(self._open.values())).txn_first_offset)
        return stable

    def last_append_ms(self, producer_id: int) -> int | None:
        """When this producer last appended; None if it is unknown."""
        producer = self._producers.get(producer_id) or self._open.get(producer_id)
        return producer.last_append_ms if producer is not None else None

    def reaches(self, offset: int) -> bool:
        """Whether any batch that is part of this state is at or after `offset`."""
        if self._last_unsequenced_offset >= offset or self.last_veiled_offset >= offset:
            return True
        entries = chain(self._producers.values(), self._open.values())
        return any(one.window[-1][3] >= offset for one in entries if one.window)

    def window_offsets(self) -> list[int]:
        """Base offsets of all batches that a replay needs to know each producer as it is."""
        entries = [*self._producers.values(), *self._open.values()]
        offsets = [batch[2] for producer in entries for batch in producer.window]
        return offsets + [one.marker_offset for one in entries if one.marker_offset >= 0]

    # --- snapshots --------------------------------------------------------------------------------

    def capture(self, offset: int) -> ProducerCapture:
        """The state as it is now, after everything below `offset` was appended."""
        self._generation += 1
        return ProducerCapture(
            offset,
            [*self._producers, *self._open],
            [*self._producers.values(), *self._open.values()],
            self._generation,
            TransactionFacts(
                self._last_unsequenced_offset,
                self.first_abort_offset,
                self.last_abort_offset,
                self._ended.entries(),
                self.first_veiled_offset,
                self.last_veiled_offset,
            ),
        )

    @classmethod
    def restored(
        cls, capture: ProducerCapture, *, producer_ids_max: int = PRODUCER_IDS_PER_LOG_MAX
    ) -> ProducerStates:
        """A second state with the same entries."""
        states = cls(producer_ids_max=producer_ids_max)
        states._generation = capture.generation
        for producer_id, one in zip(capture.producer_ids, capture.producers, strict=True):
            entries = states._producers if one.txn_first_offset < 0 else states._open
            entries[producer_id] = one
        facts = capture.facts
        states._last_unsequenced_offset = facts.last_unsequenced_offset
        states.first_abort_offset = facts.first_abort_offset
        states.last_abort_offset = facts.last_abort_offset
        states.first_veiled_offset = facts.first_veiled_offset
        states.last_veiled_offset = facts.last_veiled_offset
        states._ended = EndedTransactions(facts.ended)
        return states

    def encode(self, offset: int) -> bytes:
        """A snapshot: the state after everything below `offset` was appended."""
        return self.capture(offset).encode()

    @classmethod
    def decode(
        cls,
        data: Buffer,
        *,
        name: str = "producer snapshot",
        producer_ids_max: int = PRODUCER_IDS_PER_LOG_MAX,
    ) -> tuple[ProducerStates, int]:
        """The state and its offset. Raises DamagedFile, UserError."""
        capture = decode_capture(data, name=name)
        return cls.restored(capture, producer_ids_max=producer_ids_max), capture.offset
