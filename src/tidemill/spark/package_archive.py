"""This package for workers that do not have it: one archive that Spark unpacks beside them.

Compiled parts travel along: a worker on another kind of machine does not find their names and runs
the same source uncompiled, slower. The libraries below (crc32c, lz4, zstandard, cramjam, pyarrow)
are the business of whoever sets up the workers' Python.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import tidemill

__all__ = ["archive_settings", "package_root", "write_archive"]

FOLDER: Final = "tidemill_package"
"""What the archive is unpacked as, in the directory that an executor works in."""
_PACKAGES: Final = ("tidemill", "pyspark_tidemill")
_SUFFIXES: Final = frozenset({".py", ".so"})


def archive_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of Spark that bring this package to all executors, merged with those given."""
    folder = tempfile.mkdtemp(prefix="tidemill-archive-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors may ask until then
    path = Path(folder) / "tidemill.zip"
    write_archive(path)
    archives = [given["spark.archives"]] if given.get("spark.archives") else []
    paths = [FOLDER]
    if given.get("spark.executorEnv.PYTHONPATH"):
        paths.append(given["spark.executorEnv.PYTHONPATH"])
    return {
        "spark.archives": ",".join([*archives, f"{path}#{FOLDER}"]),
        "spark.executorEnv.PYTHONPATH": ":".join(paths),
    }


def write_archive(path: Path) -> None:
    """A zip with both packages at its root."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, name in _files():
            archive.write(file, name)


def package_root() -> Path:
    """The directory that this package was imported from."""
    assert tidemill.__file__ is not None
    return Path(tidemill.__file__).resolve().parent.parent


def _files() -> Iterator[tuple[Path, str]]:
    root = package_root()
    for package in _PACKAGES:
        for file in sorted((root / package).rglob("*")):
            if file.suffix in _SUFFIXES:
                yield file, str(file.relative_to(root))
