"""The note of the newest metadata in a data directory."""

from __future__ import annotations

import pytest

from tidemill.core.errors import UserError
from tidemill.storage.directory.metadata_note import NOTE_NAME, MetadataNote, noted_version
from tidemill.testing.sim.disk import SimDisk

DATA = "/data"


def disk_with_directory() -> SimDisk:
    disk = SimDisk()
    disk.make_directories(DATA)
    return disk


def test_what_was_noted_is_read_in_the_next_life():
    disk, versions = disk_with_directory(), [(3, 7), (4, 8)]
    note = MetadataNote(disk, DATA, lambda: versions.pop(0))
    assert noted_version(disk, DATA) == (0, 0)
    note.take()()
    assert noted_version(disk, DATA) == (3, 7)
    note.take()()
    assert noted_version(disk, DATA) == (4, 8)


def test_a_version_is_noted_as_it_was_when_it_was_taken():
    disk, versions = disk_with_directory(), [(1, 1), (2, 2)]
    note = MetadataNote(disk, DATA, lambda: versions.pop(0))
    earlier, later = note.take(), note.take()
    later()
    earlier()
    assert noted_version(disk, DATA) == (2, 2)


def test_a_damaged_note_is_refused_with_what_to_do():
    disk = disk_with_directory()
    disk.write_file_atomically(f"{DATA}/{NOTE_NAME}", b"seven")
    with pytest.raises(UserError, match="remove it to start without it"):
        noted_version(disk, DATA)
