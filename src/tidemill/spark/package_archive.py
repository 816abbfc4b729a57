"""This package as an archive for workers that do not have it; Spark unpacks it beside them.

Compiled modules are included: a worker on another platform does not find their names and runs the
same source uncompiled, slower. The workers' Python must have the libraries that the package uses:
crc32c, lz4, zstandard, cramjam and pyarrow.
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
"""The folder that the archive becomes in the working directory of an executor."""
_PACKAGES: Final = ("tidemill", "pyspark_tidemill")
_SUFFIXES: Final = frozenset({".py", ".so"})
_SHARED_LIBRARY: Final = "tidemill__mypyc*.so"
"""Beside the packages: the code of all modules of the compiled request path."""


def archive_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Settings of Spark that send this package to all executors, merged with the given ones."""
    folder = tempfile.mkdtemp(prefix="tidemill-archive-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # executors may fetch it until then
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
    """Write a zip file with both packages, and the library that they share, at its root."""
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
    for file in sorted(root.glob(_SHARED_LIBRARY)):
        yield file, file.name
