from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pytest
from pyarrow import parquet

from tidemill.spark.pipelines.merging import parquet_merge
from tidemill.spark.pipelines.merging.parquet_merge import merged_files

PATHS = pa.list_(pa.struct([("path", pa.string()), ("requests", pa.int64())]))
SCHEMA = pa.schema(
    [
        pa.field("time", pa.timestamp("us"), nullable=False),
        pa.field("latency", pa.float64()),
        pa.field("paths", PATHS),
    ]
)
NOTES = {b"org.apache.spark.version": b"4.3.0"}
TIMES = [datetime(1970, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]


def rows(index: int) -> pa.Table:
    values = [[{"path": f"/{index}", "requests": index}], None]
    return pa.table([TIMES, [None, float("nan")], values], schema=SCHEMA)


def spark_like(path, table, **options):
    settings = {"use_deprecated_int96_timestamps": True, "store_schema": False} | options
    with parquet.ParquetWriter(path, table.schema, **settings) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(NOTES)
    return path


def merged(inputs, folder):
    folder.mkdir()
    for _ in merged_files(inputs, folder):
        pass
    return [
        parquet.ParquetFile(path, coerce_int96_timestamp_unit="us")
        for path in sorted(folder.iterdir())
    ]


@pytest.mark.parametrize("codec", ["snappy", "zstd", "none"])
def test_rows_types_notes_and_codec_are_those_of_the_inputs(tmp_path, codec):
    inputs = [spark_like(tmp_path / f"{n}", rows(n), compression=codec) for n in range(5)]

    [file] = merged(inputs, tmp_path / "out")

    expected = parquet.ParquetFile(inputs[0])
    assert file.schema.equals(expected.schema)
    assert file.schema.column(0).physical_type == "INT96"
    assert file.metadata.metadata == NOTES
    columns = [made.metadata.row_group(0).column(1) for made in (file, expected)]
    assert columns[0].compression == columns[1].compression
    expected_rows = [row for n in range(5) for row in rows(n).to_pylist()]
    assert repr(file.read().to_pylist()) == repr(expected_rows)  # NaN is not equal to itself


def test_times_that_are_not_int96_stay_as_they_are(tmp_path):
    with_zone = rows(0).cast(SCHEMA.set(0, pa.field("time", pa.timestamp("us", "UTC"), False)))
    inputs = [
        spark_like(tmp_path / f"{n}", with_zone, use_deprecated_int96_timestamps=False)
        for n in range(2)
    ]

    [file] = merged(inputs, tmp_path / "out")

    assert file.schema_arrow.field("time").type == pa.timestamp("us", "UTC")


def test_files_are_of_a_bounded_size_and_row_groups_of_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_merge, "FULL_BYTES", 1_000)
    monkeypatch.setattr(parquet_merge, "_ROW_GROUP_BYTES", 500)
    inputs = [spark_like(tmp_path / f"{n}", rows(n)) for n in range(40)]

    files = merged(inputs, tmp_path / "out")

    assert len(files) > 1
    assert sum(file.metadata.num_rows for file in files) == 80
    assert max(file.metadata.row_group(0).num_rows for file in files) < 40


def test_inputs_with_other_columns_are_refused(tmp_path):
    first = spark_like(tmp_path / "1", rows(1))
    second = spark_like(tmp_path / "2", rows(1).drop_columns(["latency"]))

    with pytest.raises(ValueError, match="other columns"):
        merged([first, second], tmp_path / "out")
