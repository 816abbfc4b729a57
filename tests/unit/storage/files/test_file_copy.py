"""Copies between open files: any range, to any position, in bounded pieces."""

from __future__ import annotations

from tidemill.storage.files import file_copy


def test_a_range_is_copied_in_several_pieces(disk, monkeypatch):
    monkeypatch.setattr(file_copy, "_COPY_BYTES", 3)
    source, target = disk.open("/source", create=True), disk.open("/target", create=True)
    source.pwrite([b"0123456789"], 0)
    file_copy.copy_range(source, target, start=2, end=9, target_position=1)
    assert target.pread(100, 0) == b"\x002345678"


def test_an_empty_range_writes_nothing(disk):
    file = disk.open("/file", create=True)
    calls = disk.calls
    file_copy.copy_range(file, file, start=4, end=4, target_position=4)
    assert disk.calls == calls
