"""Which leader epoch wrote which offsets: the basis for truncation (KIP-101, KIP-279).

One entry per epoch that wrote something: the epoch and the offset of its first batch. Both rise
strictly from entry to entry, so the list never has more entries than the log has offsets:

- an epoch that wrote nothing is replaced by the next one, which starts at the same offset;
- when the log's start moves up, entries before it merge into the one that holds the new start.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from struct import Struct
from typing import Final, final

from tidemill.core.errors import invariant
from tidemill.storage.files.checked_file import DamagedFile, decode_checked, encode_checked
from tidemill.storage.files.disk import Buffer

__all__ = ["NO_EPOCH", "LeaderEpochs"]

NO_EPOCH: Final = -1
_NO_OFFSET: Final = -1

_KIND: Final = b"EPOC"
_VERSION: Final = 1
_ENTRY: Final = Struct(">iq")  # leader epoch, its first offset


@final
class LeaderEpochs:
    """The epochs of one log, oldest first."""

    __slots__ = ("_epochs", "_starts", "latest", "version")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.latest = NO_EPOCH
        """The newest epoch, or NO_EPOCH."""
        self.version = 0
        """Rises with every change; tells whether the stored file is out of date."""
        for epoch, start_offset in entries:
            self.assign(epoch, start_offset)

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def oldest(self) -> int:
        """The oldest epoch, or NO_EPOCH."""
        return self._epochs[0] if self._epochs else NO_EPOCH

    @property
    def latest_start_offset(self) -> int:
        """Where the newest epoch begins, or -1."""
        return self._starts[-1] if self._starts else _NO_OFFSET

    def entries(self) -> tuple[tuple[int, int], ...]:
        """(epoch, start offset), oldest first."""
        return tuple(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """`epoch` writes from `start_offset` on. Repeating the newest epoch changes nothing."""
        if epoch == self.latest:
            return
        invariant(epoch > self.latest, f"leader epoch {epoch} follows {self.latest}")
        if self._starts:
            last = self._starts[-1]
            invariant(start_offset >= last, f"epoch {epoch} starts at {start_offset} < {last}")
            if start_offset == last:
                self._drop_last()
        self._epochs.append(epoch)
        self._starts.append(start_offset)
        self._changed()

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch that is not above `epoch`, and where it ended (T37).

        Everything of an epoch before the oldest entry was deleted: it ended where that entry
        begins, and a reader who had read it all has lost nothing. The same holds of a log without
        entries, which is empty: every epoch ended where it ends. (-1, -1) for no epoch. The caller
        refuses epochs that are yet to come: this list does not know the current epoch, which may
        have written nothing.
        """
        if epoch < 0:
            return NO_EPOCH, _NO_OFFSET
        following = bisect_right(self._epochs, epoch)
        end = self._starts[following] if following < len(self._starts) else log_end_offset
        return (self._epochs[following - 1] if following else epoch), end

    def epoch_at(self, offset: int) -> int:
        """The epoch that wrote `offset`, or NO_EPOCH."""
        index = bisect_right(self._starts, offset) - 1
        return self._epochs[index] if index >= 0 else NO_EPOCH

    def truncate_from_end(self, offset: int) -> None:
        """The log now ends at `offset`: forget epochs that began at or after it."""
        if not self._starts or self._starts[-1] < offset:
            return
        while self._starts and self._starts[-1] >= offset:
            self._drop_last()
        self._changed()

    def truncate_from_start(self, offset: int) -> None:
        """The log now starts at `offset`: the epoch that holds it begins there."""
        index = bisect_right(self._starts, offset) - 1
        if index < 0 or (index == 0 and self._starts[0] == offset):
            return
        del self._epochs[:index], self._starts[:index]
        self._starts[0] = offset
        self._changed()

    def clear(self) -> None:
        """The log starts over."""
        self._epochs.clear()
        self._starts.clear()
        self._changed()

    def encode(self) -> bytes:
        """The content of the `leader-epochs` file."""
        pairs = zip(self._epochs, self._starts, strict=True)
        return encode_checked(_KIND, _VERSION, b"".join(_ENTRY.pack(*pair) for pair in pairs))

    @classmethod
    def decode(cls, data: Buffer, *, name: str = "leader-epochs") -> LeaderEpochs:
        """Read what `encode` wrote. Raises DamagedFile, UserError."""
        payload = decode_checked(data, kind=_KIND, version=_VERSION, name=name)
        if len(payload) % _ENTRY.size:
            raise DamagedFile(f"{name}: half an entry")
        entries = list(_ENTRY.iter_unpack(payload))
        rising = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(entries))
        if not rising:
            raise DamagedFile(f"{name}: epochs do not rise")
        return cls(entries)

    def _drop_last(self) -> None:
        self._epochs.pop()
        self._starts.pop()

    def _changed(self) -> None:
        self.latest = self._epochs[-1] if self._epochs else NO_EPOCH
        self.version += 1
