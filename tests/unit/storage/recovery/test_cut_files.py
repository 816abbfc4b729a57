"""The bytes that recovery cut off are kept for a limited time."""

from __future__ import annotations

import pytest

from tidemill.storage.files.log_file_names import LOST_SUFFIX
from tidemill.storage.log.interface import FOREVER, LogConfig
from tidemill.storage.recovery.cut_files import CUT_FILE_MS_MAX, purge_cut_files
from tidemill.testing.sim.disk import SimDisk

DIRECTORY = "/data/t-0"
LOG, CUT = f"{DIRECTORY}/{0:020d}.log", f"{DIRECTORY}/{0:020d}.log.cut-7"
CUT_AT_MS = 1_000_000
HOUR_MS = 3_600_000


@pytest.fixture
def disk() -> SimDisk:
    made = SimDisk(wall_ms=lambda: CUT_AT_MS)
    made.make_directories(DIRECTORY)
    for path in (LOG, CUT):
        made.open(path, create=True)
    return made


@pytest.mark.parametrize(
    ("config", "kept_ms"),
    [
        (LogConfig(retention_ms=HOUR_MS), HOUR_MS),
        (LogConfig(retention_ms=4 * CUT_FILE_MS_MAX), CUT_FILE_MS_MAX),
        (LogConfig(retention_ms=FOREVER), CUT_FILE_MS_MAX),
        (LogConfig(retention_ms=HOUR_MS, deletes=False, compacts=True), CUT_FILE_MS_MAX),
    ],
    ids=["retention", "long retention", "for ever", "compacted"],
)
def test_a_side_file_is_kept_as_long_as_its_topics_records_but_at_most_a_week(
    disk, config, kept_ms
):
    assert purge_cut_files(disk, [(DIRECTORY, config)], CUT_AT_MS + kept_ms) == 0
    assert disk.exists(CUT)
    assert purge_cut_files(disk, [(DIRECTORY, config)], CUT_AT_MS + kept_ms + 1) == 1
    assert not disk.exists(CUT)


def test_no_other_file_of_a_log_is_removed(disk):
    purge_cut_files(disk, [(DIRECTORY, LogConfig())], CUT_AT_MS + 10 * CUT_FILE_MS_MAX)
    assert disk.list_names(DIRECTORY) == [LOG.rpartition("/")[2]]


def test_a_removed_log_does_not_stop_the_purge_of_others(disk):
    logs = [("/data/gone-0", LogConfig()), (DIRECTORY, LogConfig())]
    assert purge_cut_files(disk, logs, CUT_AT_MS + 10 * CUT_FILE_MS_MAX) == 1


def test_damaged_bytes_that_were_given_up_do_not_outlive_the_topics_records(disk):
    lost = f"{DIRECTORY}/{3:020d}{LOST_SUFFIX}"
    disk.open(lost, create=True)
    config = LogConfig(retention_ms=HOUR_MS)
    purge_cut_files(disk, [(DIRECTORY, config)], CUT_AT_MS + HOUR_MS)
    assert disk.exists(lost)
    purge_cut_files(disk, [(DIRECTORY, config)], CUT_AT_MS + HOUR_MS + 1)
    assert not disk.exists(lost)
