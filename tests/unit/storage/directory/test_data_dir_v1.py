"""Today's code reads a checked-in data directory of format 1."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.fixtures import make_data_dir as written
from tests.support.batches import drain, header
from tidemill.core.rng import SeededRng
from tidemill.storage.directory.checkpoint import CLEAN_NAME
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.files.disk import OsDisk
from tidemill.wire.batch import iter_headers
from tidemill.wire.records import iter_records

FIXTURE = Path(written.__file__).parent / "data_dir_v1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURE, tmp_path / "data"))


def opened(path: Path) -> LogDirectory:
    return LogDirectory.open(
        OsDisk(),
        str(path),
        cluster_id=written.CLUSTER_ID,
        broker_id=written.BROKER_ID,
        rng=SeededRng(2),
        now_ms=written.NOW_MS,
        config_of=lambda _partition: written.CONFIG,
    )


def check_content(directory: LogDirectory) -> None:
    log = directory.get(written.ORDERS, written.TOPIC_ID)
    assert log is not None
    data = drain(log)
    records = [
        (record.offset, record.key, record.value)
        for position, head in iter_headers(data)
        for record in iter_records(data[position:], head)
        if record.offset >= log.log_start_offset
    ]
    assert records == written.EXPECTED
    assert log.epochs.entries() == written.EPOCHS
    assert directory.high_watermark(written.ORDERS) == written.HIGH_WATERMARK
    first, last = written.LAST_SEQUENCE
    repeated = log.producers.check(header(0, last - first + 1, producer=(*written.PRODUCER, first)))
    assert repeated is not None
    assert repeated.base_offset == 30


def test_R10_a_directory_of_format_1_opens_cleanly_and_has_its_records(path):
    directory = opened(path)
    assert directory.started_clean
    assert directory.report.lines() == []
    check_content(directory)
    directory.close()


def test_R10_a_directory_of_format_1_can_be_recovered_without_its_clean_mark(path):
    (path / CLEAN_NAME).unlink()
    directory = opened(path)
    assert not directory.started_clean
    assert directory.report.lines() == []
    check_content(directory)
    directory.close()


def test_R10_a_directory_of_format_1_accepts_new_batches(path):
    directory = opened(path)
    log = directory.get(written.ORDERS)
    assert log is not None
    written._append(log, 11)
    directory.close()
    again = opened(path)
    assert again.started_clean
    log = again.get(written.ORDERS)
    assert log is not None
    assert log.log_end_offset == 36
    again.close()
