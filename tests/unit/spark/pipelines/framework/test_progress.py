from __future__ import annotations

import zipfile

from tidemill.spark import package_archive
from tidemill.spark.package_archive import archive_settings, write_archive
from tidemill.spark.pipelines.framework.progress import (
    StageProgress,
    from_report,
    is_batch_running,
    progress_line,
)

REPORT = {
    "batchId": 3,
    "numInputRows": 1200,
    "processedRowsPerSecond": 2400.5,
    "stateOperators": [{"numRowsDroppedByWatermark": 4}],
    "sources": [
        {
            "endOffset": '{"_v": {"t": {"0": 99}}, "t": {"0": 10, "1": 5}}',
            "latestOffset": {"t": {"0": 12, "1": 9, "2": 1}},
        }
    ],
}


def test_a_query_that_waits_for_records_has_no_running_batch():
    messages = {
        "Processing new data": True,
        "No new data but cleaning up state": True,
        "Getting offsets from PythonMicroBatchStream": False,
        "Waiting for data to arrive": False,
    }
    found = {
        text: is_batch_running({"isTriggerActive": True, "message": text}) for text in messages
    }
    assert found == messages
    assert not is_batch_running({"isTriggerActive": False, "message": "Processing new data"})


def test_lag_is_the_sum_over_partitions_without_our_private_entry():
    assert from_report("events", REPORT) == StageProgress("events", 3, 1200, 2400.5, 7, 4)


def test_a_report_without_offsets_has_no_lag():
    found = from_report("events", {"batchId": 0, "sources": [{"endOffset": None}]})

    assert found.lag is None
    assert progress_line("logs", [found]) == "logs: events batch 0, 0 rows, 0 rows/s, lag ?"


def test_the_line_names_each_stage_and_its_late_rows():
    line = progress_line("logs", [from_report("minutes", REPORT)])

    assert line == "logs: minutes batch 3, 1,200 rows, 2,400 rows/s, lag 7, 4 late"


def test_the_archive_holds_both_packages_and_no_bytecode(tmp_path):
    write_archive(tmp_path / "a.zip")

    names = zipfile.ZipFile(tmp_path / "a.zip").namelist()
    assert {"tidemill/spark/data_source.py", "pyspark_tidemill/__init__.py"} <= set(names)
    assert not [name for name in names if name.endswith(".pyc")]


def test_the_archive_holds_the_library_that_compiled_modules_share(tmp_path, monkeypatch):
    root = tmp_path / "root"
    (root / "tidemill").mkdir(parents=True)
    library = "tidemill__mypyc.cpython-311-x86_64-linux-gnu.so"
    (root / library).touch()
    monkeypatch.setattr(package_archive, "package_root", lambda: root)
    write_archive(tmp_path / "a.zip")

    assert zipfile.ZipFile(tmp_path / "a.zip").namelist() == [library]


def test_archives_of_the_user_are_kept():
    given = {"spark.archives": "mine.zip", "spark.executorEnv.PYTHONPATH": "mine"}

    settings = archive_settings(given)

    assert settings["spark.archives"].startswith("mine.zip,")
    assert settings["spark.executorEnv.PYTHONPATH"] == "tidemill_package:mine"
