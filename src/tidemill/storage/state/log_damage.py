"""What is known to be damaged in one log, until another replica's batches replace it (ADR 0025).

Two things are told apart:

- *Ranges*: offsets whose bytes are no longer what was appended, found while the log was in use. The
  log knows everything else about them (producers, epochs, holds), so only their bytes are replaced.
  Until then nobody gets them. If no replica has them, they are given up, and reading them fails.
- A *cut*: recovery found damage in what it replayed, or missed flushed records at the end. What
  the log says from there on may be wrong, so a follower drops it and fetches it again.

The file `damage` beside the segments keeps both over restarts: a checkpoint that passes the damage
would hide it. An entry that is out of date costs a look at its segment, never a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError
from typing import final

from tidemill.core.errors import ErrorCode, KafkaError, StorageFault
from tidemill.storage.files.checked_file import encode_checked, read_checked
from tidemill.storage.files.disk import Disk
from tidemill.storage.files.log_file_names import DAMAGE_NAME

__all__ = ["DamagedRange", "LogDamage", "load_damage", "store_damage"]

_KIND = b"DAMG"
_VERSION = 1
_CUT = Struct(">q")  # offset, or _NO_CUT
_RANGE = Struct(">qq?")  # first offset, the offset after the last, whether it was given up
_NO_CUT = -1
_OFFSET_MAX = 2**63 - 1


@final
@dataclass(frozen=True, slots=True, order=True)
class DamagedRange:
    """The offsets from `start_offset` up to `end_offset`, where a valid batch begins again."""

    start_offset: int
    end_offset: int


@final
class LogDamage:
    """The damage of one log; almost always none."""

    __slots__ = ("_given_up", "_to_mend", "cut_offset", "has_ranges")

    def __init__(
        self, ranges: Iterable[DamagedRange] = (), *, cut_offset: int | None = None
    ) -> None:
        self._keep(sorted(ranges), [])
        self.cut_offset = cut_offset
        """What follows is to be fetched again, as soon as this replica follows a leader."""

    def __bool__(self) -> bool:
        return self.has_ranges or self.cut_offset is not None

    @property
    def ranges(self) -> list[DamagedRange]:
        """All of them, also those that were given up."""
        return sorted({*self._to_mend, *self._given_up})

    @property
    def to_mend(self) -> list[DamagedRange]:
        """Those that another replica may have."""
        return list(self._to_mend)

    @property
    def given_up(self) -> list[DamagedRange]:
        """Those that no replica has."""
        return list(self._given_up)

    @property
    def is_open(self) -> bool:
        """Whether this replica lacks what another one may have."""
        return self.cut_offset is not None or bool(self._to_mend)

    def readable_end(self, offset: int, end_offset: int) -> int:
        """Up to where a read from `offset` on may go; KafkaError if it would begin in damage."""
        for is_given_up, ranges in ((False, self._to_mend), (True, self._given_up)):
            for one in ranges:
                if offset < one.start_offset:
                    end_offset = min(end_offset, one.start_offset)
                    break
                if offset < one.end_offset:
                    _refuse(one, is_given_up=is_given_up)
        return end_offset

    def try_find(self, offset: int) -> DamagedRange | None:
        """The range for which a read from `offset` on is refused, if there is one."""
        for one in (*self._to_mend, *self._given_up):
            if one.start_offset <= offset < one.end_offset:
                return one
        return None

    def try_given_up(self, offset: int) -> DamagedRange | None:
        """The range with this offset that no replica has, if there is one."""
        for one in self._given_up:
            if one.start_offset <= offset < one.end_offset:
                return one
        return None

    def touches(self, start_offset: int, end_offset: int) -> bool:
        """Whether some of these offsets are damaged."""
        return any(
            one.start_offset < end_offset and start_offset < one.end_offset
            for ranges in (self._to_mend, self._given_up)
            for one in ranges
        )

    def note(self, found: DamagedRange) -> None:
        """A range was found; it counts as one with those that it touches.

        What was given up stays so: a batch without records is there, which looks whole to a mend.
        """
        apart = [one for one in self._to_mend if not _touch(one, found)]
        joined = [found, *(one for one in self._to_mend if _touch(one, found))]
        start = min(one.start_offset for one in joined)
        end = max(one.end_offset for one in joined)
        self._keep(sorted([*apart, DamagedRange(start, end)]), self._given_up)

    def mended(self, start_offset: int, end_offset: int) -> None:
        """Everything between the two is as it was appended."""
        self._keep(
            _without(self._to_mend, start_offset, end_offset),
            _without(self._given_up, start_offset, end_offset),
        )

    def verified(self, start_offset: int, end_offset: int) -> None:
        """All batches between the two are valid; where something was given up, they are empty."""
        self._keep(_without(self._to_mend, start_offset, end_offset), self._given_up)

    def found_again(self, one: DamagedRange, *, but: Iterable[DamagedRange]) -> None:
        """Another replica had it after all, except for some of it: its batches are there again."""
        parts, given_up = [one], self._given_up
        for lost in but:
            parts = _without(parts, lost.start_offset, lost.end_offset)
        for part in parts:
            given_up = _without(given_up, part.start_offset, part.end_offset)
        self._keep(self._to_mend, given_up)

    def give_up(self, one: DamagedRange) -> None:
        """No replica has it. It stays apart from what it touches, which may have another fate."""
        self.mended(one.start_offset, one.end_offset)
        self._keep(self._to_mend, sorted([*self._given_up, one]))

    def cut_to(self, offset: int) -> None:
        """The log ends here now."""
        self.mended(offset, _OFFSET_MAX)
        if self.cut_offset is not None and self.cut_offset >= offset:
            self.cut_offset = None

    def start_at(self, offset: int) -> None:
        """The log starts here now: nobody misses what is below."""
        self.mended(0, offset)

    def _keep(self, to_mend: list[DamagedRange], given_up: list[DamagedRange]) -> None:
        self._to_mend = to_mend
        """Rising, without overlaps; no more than the log has batches."""
        self._given_up = given_up
        """The same; of a compacted log both can have an offset, as all of it is fetched again."""
        self.has_ranges = bool(to_mend or given_up)
        """Readers ask it for every fetch."""

    def encode(self) -> bytes | None:
        """For `store_damage`."""
        if not self:
            return None
        cut = _NO_CUT if self.cut_offset is None else self.cut_offset
        ranges = [
            _RANGE.pack(one.start_offset, one.end_offset, is_given_up)
            for is_given_up, found in ((True, self._given_up), (False, self._to_mend))
            for one in found
        ]
        return encode_checked(_KIND, _VERSION, b"".join([_CUT.pack(cut), *ranges]))


def _touch(one: DamagedRange, other: DamagedRange) -> bool:
    return one.start_offset <= other.end_offset and other.start_offset <= one.end_offset


def _refuse(one: DamagedRange, *, is_given_up: bool) -> None:
    where = f"offsets {one.start_offset} to {one.end_offset - 1} are damaged"
    if is_given_up:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{where}, and no replica has them")
    # Clients try this error again, and may take the other one for the end of their work.
    raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{where}, and being fetched again")


def _without(
    ranges: Iterable[DamagedRange], start_offset: int, end_offset: int
) -> list[DamagedRange]:
    """What is left of them below and above these offsets."""
    left: list[DamagedRange] = []
    for one in ranges:
        below = DamagedRange(one.start_offset, min(one.end_offset, start_offset))
        above = DamagedRange(max(one.start_offset, end_offset), one.end_offset)
        left += [part for part in (below, above) if part.start_offset < part.end_offset]
    return left


def load_damage(disk: Disk, directory: str) -> LogDamage:
    """What the file says; if it is damaged itself, everything is in doubt until it was checked."""
    path = f"{directory}/{DAMAGE_NAME}"
    try:
        payload = read_checked(disk, path, kind=_KIND, version=_VERSION)
        (cut,) = _CUT.unpack_from(payload)
        stored = list(_RANGE.iter_unpack(payload[_CUT.size :]))
    except (StorageFault, StructError):
        return LogDamage([DamagedRange(0, _OFFSET_MAX)])
    damage = LogDamage(cut_offset=None if cut == _NO_CUT else cut)
    for start_offset, end_offset, is_given_up in stored:
        one = DamagedRange(start_offset, end_offset)
        damage.give_up(one) if is_given_up else damage.note(one)
    return damage


def store_damage(disk: Disk, directory: str, data: bytes | None) -> None:
    """Make durable what `LogDamage.encode` said; without damage there is no file."""
    path = f"{directory}/{DAMAGE_NAME}"
    if data is not None:
        disk.write_file_atomically(path, data)
    elif disk.exists(path):
        disk.unlink(path)
        disk.sync_directory(directory)
