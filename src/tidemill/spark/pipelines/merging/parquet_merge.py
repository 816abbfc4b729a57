"""Many Parquet files to a few, row by row the same and of exactly the same types.

Spark writes times as INT96 unless it is told otherwise. Arrow reads these as times without a zone,
and would write them as such: Spark would then read another type. So the writer writes INT96 where
the inputs have it, with Spark's own description of the columns, and the result is compared with the
inputs before anyone uses it.

Memory: a few thousand rows of one input, and one row group of the output.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final, final

import pyarrow as pa
from pyarrow import parquet

from tidemill.core.limits import MIB

__all__ = ["FULL_BYTES", "merged_files"]

FULL_BYTES: Final = 64 * MIB
"""A merged file that has reached this size is finished, and the next one begun."""
_ROW_GROUP_BYTES: Final = 16 * MIB
"""Of columns in memory."""
_BATCH_ROWS: Final = 1_024
"""Rows that are decoded at once: a line has up to 64 KiB, also where a dictionary makes thousands
of equal ones tiny on disk."""
_INT96: Final = "INT96"


def merged_files(inputs: Sequence[Path], folder: Path) -> Iterator[None]:
    """Write all rows of `inputs`, in this order, to new files in `folder`, and sync those.

    Yields between two short pieces of work. ValueError if the inputs are not alike, or if what was
    written differs from them.
    """
    with _opened(inputs[0]) as first:
        output = _RollingFiles(folder, first, inputs[0])
    row_count = 0
    try:
        for path in inputs:
            with _opened(path) as file:
                if not file.schema.equals(output.schema):
                    raise ValueError(f"{path} has other columns than {inputs[0]}")
                row_count += file.metadata.num_rows
                for rows in file.iter_batches(_BATCH_ROWS, use_threads=False):
                    if output.add(rows):
                        yield
            yield
        output.finish()
    finally:
        output.close()
    yield
    output.check(row_count)


def _opened(path: Path) -> parquet.ParquetFile:
    # Nanoseconds, the default, end in the year 2262. Spark writes a checksum with each page: the
    # inputs and their checksums are removed later, and a damaged row must not outlive them.
    return parquet.ParquetFile(
        path,
        coerce_int96_timestamp_unit="us",
        pre_buffer=False,
        page_checksum_verification=True,
    )


@final
class _RollingFiles:
    """Files like `example`, one after the other, which those may read who may read `source`."""

    def __init__(self, folder: Path, example: parquet.ParquetFile, source: Path) -> None:
        self.schema = example.schema
        self._folder = folder
        self._source = source
        self._columns = example.schema_arrow
        self._has_int96 = any(
            example.schema.column(index).physical_type == _INT96
            for index in range(len(example.schema))
        )
        self._notes: Mapping[bytes, bytes] = example.metadata.metadata or {}
        """Spark's own description of the columns, and its version."""
        self._codec = _codec(example)
        self._paths: list[Path] = []
        self._file: IO[bytes] | None = None
        self._writer: parquet.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        """The next row group."""
        self._waiting_bytes = 0

    def add(self, rows: pa.RecordBatch) -> bool:
        """True if a row group was written."""
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes < _ROW_GROUP_BYTES:
            return False
        self._write_waiting()
        return True

    def finish(self) -> None:
        self._write_waiting()
        self.close()

    def check(self, row_count: int) -> None:
        """ValueError if the files do not have the rows and the types of the inputs."""
        found = [parquet.read_metadata(path) for path in self._paths]
        if sum(made.num_rows for made in found) != row_count:
            raise ValueError(f"{self._folder} has other rows than its sources")
        if not all(made.schema.equals(self.schema) for made in found):
            raise ValueError(f"{self._folder} has other types than its sources")

    def _write_waiting(self) -> None:
        if not self._waiting:
            return
        rows = pa.Table.from_batches(self._waiting, self._columns)
        self._waiting, self._waiting_bytes = [], 0
        file, writer = self._open_file()
        writer.write_table(rows, row_group_size=len(rows))
        if file.tell() >= FULL_BYTES:
            self.close()

    def _open_file(self) -> tuple[IO[bytes], parquet.ParquetWriter]:
        if self._file is None or self._writer is None:
            path = self._folder / f"part-{len(self._paths):05}.parquet"
            self._paths.append(path)
            self._file = path.open("xb")
            shutil.copymode(self._source, path)  # Spark's files do not follow our umask
            self._writer = parquet.ParquetWriter(
                self._file,
                self._columns,
                compression=self._codec,
                use_deprecated_int96_timestamps=self._has_int96,
                store_schema=False,
                write_page_checksum=True,
            )
            self._writer.add_key_value_metadata(self._notes)
        return self._file, self._writer

    def close(self) -> None:
        """End and sync the file that is open, if one is."""
        file, writer = self._file, self._writer
        self._file = self._writer = None
        if file is None or writer is None:
            return
        with file:
            writer.close()
            file.flush()
            os.fsync(file.fileno())


def _codec(example: parquet.ParquetFile) -> str:
    """That of the inputs: the user may have chosen it."""
    if example.metadata.num_row_groups == 0:
        return "snappy"
    codec: str = example.metadata.row_group(0).column(0).compression
    return "none" if codec == "UNCOMPRESSED" else codec.lower()
