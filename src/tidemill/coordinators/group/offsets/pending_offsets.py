"""Offsets of open transactions: committed or dropped when the producer's marker comes (T55).

A pending offset is hidden. It becomes the committed offset if its transaction commits, unless a
later record of the log has set or deleted the same offset: the order of the records decides, not
that of the markers, as it does for compaction. So a record that counts drops whatever is pending
for its key from before.

A producer asks its coordinator before it adds a record (`Verification`). The answer counts only if
no marker of the producer came meanwhile: its transaction would have ended, and nothing would ever
commit or drop the record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import final

from tidemill.coordinators.group.base.records import try_decode_key
from tidemill.coordinators.runtime.shard import ProducerName
from tidemill.core.errors import invariant
from tidemill.wire.generated.offset_commit_record import OffsetCommitKey

__all__ = ["PendingOffsets", "Verification"]

_NONE_PENDING: Mapping[bytes, tuple[str, int]] = {}


@final
class Verification:
    """A question to the coordinator; void when the producer's marker comes first."""

    __slots__ = ("producer_id",)

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id


@final
class _OpenTransaction:
    """What one producer has committed in its open transaction."""

    __slots__ = ("epoch", "values")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.values: dict[bytes, bytes | None] = {}


@final
class PendingOffsets:
    """All pending offsets of one shard; hard state, except for the verifications."""

    def __init__(self) -> None:
        self._open: dict[int, _OpenTransaction] = {}
        self.by_key: dict[bytes, list[int]] = {}
        """For each key, the producers that have an offset pending, in the order of the log."""
        self._groups: dict[str, dict[bytes, tuple[str, int]]] = {}
        """For each group, the keys with something pending: topic and partition."""
        self._verifications: dict[int, set[Verification]] = {}
        """Bounded by the requests in flight."""

    # --- reading ---------------------------------------------------------------------------------

    def is_open(self, producer: ProducerName) -> bool:
        """Whether the producer has pending offsets of this epoch here."""
        found = self._open.get(producer.producer_id)
        return found is not None and found.epoch == producer.epoch

    def has_any(self, group_id: str) -> bool:
        return group_id in self._groups

    def of(self, group_id: str) -> Mapping[bytes, tuple[str, int]]:
        """Topic and partition of each pending offset of the group, by the key of its record."""
        return self._groups.get(group_id, _NONE_PENDING)

    # --- replay ----------------------------------------------------------------------------------

    def add(self, key: bytes, value: bytes | None, producer: ProducerName) -> str:
        """Keep an offset until the marker comes; the group that it belongs to."""
        name = _name(key)
        found = self._open.setdefault(producer.producer_id, _OpenTransaction(producer.epoch))
        found.epoch = max(found.epoch, producer.epoch)
        found.values[key] = value
        producers = self.by_key.setdefault(key, [])
        if producer.producer_id in producers:
            producers.remove(producer.producer_id)
        producers.append(producer.producer_id)
        self._groups.setdefault(name.group, {})[key] = (name.topic, name.partition)
        return name.group

    def take(
        self, producer: ProducerName, *, is_commit: bool
    ) -> Iterable[tuple[bytes, bytes | None]]:
        """The producer's transaction ends: what it commits; nothing if the marker is an old one."""
        found = self._open.get(producer.producer_id)
        if found is None or producer.epoch < found.epoch:
            return ()
        taken = list(found.values.items())
        for key, _ in taken:
            if is_commit:
                self._drop_older(key, producer.producer_id)
            self._drop(key, producer.producer_id)
        del self._open[producer.producer_id]
        return taken if is_commit else ()

    def supersede(self, key: bytes) -> None:
        """A later record decides about this offset."""
        for producer_id in list(self.by_key.get(key, ())):
            self._drop(key, producer_id)

    def _drop_older(self, key: bytes, producer_id: int) -> None:
        producers = self.by_key[key]
        for older in producers[: producers.index(producer_id)]:
            self._drop(key, older)

    def _drop(self, key: bytes, producer_id: int) -> None:
        # The transaction stays known, even without offsets: its marker is still to come.
        del self._open[producer_id].values[key]
        producers = self.by_key[key]
        producers.remove(producer_id)
        if producers:
            return
        del self.by_key[key]
        group_id = _name(key).group
        keys = self._groups[group_id]
        del keys[key]
        if not keys:
            del self._groups[group_id]

    # --- verifications ---------------------------------------------------------------------------

    def begin_verification(self, producer_id: int) -> Verification:
        made = Verification(producer_id)
        self._verifications.setdefault(producer_id, set()).add(made)
        return made

    def void_verifications(self, producer_id: int) -> None:
        """A marker of the producer comes."""
        self._verifications.pop(producer_id, None)

    def end_verification(self, verification: Verification) -> bool:
        """Forget it; whether it still counts: not after a marker, and not in another shard."""
        asked = self._verifications.get(verification.producer_id, set())
        still_counts = verification in asked
        asked.discard(verification)
        if not asked:
            self._verifications.pop(verification.producer_id, None)
        return still_counts


def _name(key: bytes) -> OffsetCommitKey:
    name = try_decode_key(key)
    invariant(isinstance(name, OffsetCommitKey), "a pending record with another kind of key")
    assert isinstance(name, OffsetCommitKey)
    return name
