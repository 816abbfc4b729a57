from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.invoke import tidemill
from tidemill.wire.batch import assign_offsets
from tidemill.wire.records import Record, build_batch


def batch(offset: int, *values: bytes) -> bytes:
    records = [Record(value, b"k", timestamp=1000 + n) for n, value in enumerate(values)]
    data = build_batch(records, producer_id=9, producer_epoch=1, base_sequence=offset)
    assign_offsets(data, offset, 2)
    return bytes(data)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory: `t-0` with two segments of three batches, `t-1` empty, and other files."""
    first = tmp_path / "logs" / "t-0"
    first.mkdir(parents=True)
    (first / f"{0:020}.log").write_bytes(batch(0, b"a", b"b") + batch(2, b"c\x1b[2J"))
    (first / f"{3:020}.log").write_bytes(batch(3, b"\xff"))
    (first / "leader-epochs").write_bytes(b"not a segment")
    second = tmp_path / "logs" / "t-1"
    second.mkdir()
    (second / f"{0:020}.log").write_bytes(b"")
    (tmp_path / "coord.db").write_bytes(b"not a log")
    return tmp_path


def damage_second_batch(data_dir: Path) -> None:
    path = data_dir / "logs" / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_verify_counts_intact_batches(data_dir):
    result = tidemill("log", "verify", str(data_dir), "--json")

    facts = json.loads(result.stdout)
    first, second = facts["partitions"]
    assert result.exit_code == 0
    assert (first["segments"], first["batches"], first["records"]) == (2, 3, 4)
    assert (first["first"], first["next"], first["damage"]) == (0, 4, 0)
    assert (second["partition"], second["batches"]) == ("t-1", 0)
    assert facts["damage"] == []


def test_the_directory_of_another_broker_is_no_partition(data_dir):
    (data_dir / "broker-1" / "logs").mkdir(parents=True)

    facts = json.loads(tidemill("log", "verify", str(data_dir), "--json").stdout)

    assert [one["partition"] for one in facts["partitions"]] == ["t-0", "t-1"]


def test_verify_finds_damage_continues_after_it_and_fails(data_dir):
    damage_second_batch(data_dir)

    result = tidemill("log", "verify", str(data_dir))

    assert result.exit_code == 1
    assert "from offset 2: checksum mismatch" in result.stdout
    whole_bytes = str(len(batch(0, b"a", b"b") + batch(3, b"\xff")))
    row = result.stdout.splitlines()[1].split()
    assert row == ["t-0", "2", "2", "3", whole_bytes, "0", "4", "1"]
    assert result.stderr.startswith("error: damage found, places: 1")


def test_damage_in_the_middle_does_not_hide_later_batches(tmp_path):
    middle = bytearray(batch(1, b"b"))
    middle[-1] ^= 1
    (tmp_path / f"{0:020}.log").write_bytes(batch(0, b"a") + middle + batch(2, b"c"))

    result = tidemill("log", "verify", str(tmp_path), "--json")

    [facts] = json.loads(result.stdout)["partitions"]
    assert (facts["records"], facts["next"], facts["damage"]) == (2, 3, 1)


def test_dump_shows_each_batch(data_dir):
    result = tidemill("log", "dump", str(data_dir / "logs" / "t-0"))

    lines = result.stdout.splitlines()
    assert [line for line in lines if not line.startswith("  ")] == [
        str(data_dir / "logs" / "t-0" / f"{base:020}.log") for base in (0, 3)
    ]
    assert lines[1].startswith("  0..1: 2 records, epoch 2, none, time 1001, byte 0, ")
    assert lines[1].endswith("producer 9/1 sequence 0..1")


def test_S52_dumped_records_are_escaped(data_dir):
    result = tidemill("log", "dump", str(data_dir), "--records")

    assert "    2 1000 k c\\x1b[2J\n" in result.stdout
    assert "\x1b" not in result.stdout


def test_dump_in_json_is_a_line_per_batch(data_dir):
    result = tidemill("log", "dump", str(data_dir), "--records", "--json")

    batches = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(b["base_offset"], b["record_count"]) for b in batches] == [(0, 2), (2, 1), (3, 1)]
    assert batches[2]["records"] == [
        {"offset": 3, "timestamp_ms": 1000, "key": "k", "value_base64": "/w=="}
    ]


def test_dump_lists_damage_after_its_segment(data_dir):
    damage_second_batch(data_dir)

    result = tidemill("log", "dump", str(data_dir))

    assert result.exit_code == 0
    assert result.stdout.splitlines()[2].startswith("  damaged: ")


@pytest.mark.parametrize("name", ["absent", "empty"])
def test_a_directory_without_a_log_is_a_user_error(tmp_path, name):
    (tmp_path / "empty").mkdir()

    result = tidemill("log", "verify", str(tmp_path / name))

    assert result.exit_code == 2
