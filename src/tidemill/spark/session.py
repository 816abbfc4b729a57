"""A Spark session with the settings that make small batches quick.

Measured on two cores with batches of a few rows, source to sink: 265 to 353 ms with Spark's
defaults, about 100 ms with these.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tidemill.spark.jvm_options import class_archive, driver_options
from tidemill.spark.package_archive import archive_settings, package_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["SETTINGS", "print_settings", "session"]

SETTINGS: Final = {
    "spark.python.unix.domain.socket.enabled": (
        "true",
        "Spark talks to its Python workers through Unix sockets: TCP costs each task some 40 ms",
    ),
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager",
        "checkpoints without a dozen helper processes per batch; keep Spark's own on HDFS",
    ),
    "spark.sql.python.filterPushdown.enabled": (
        "true",
        "the option pushdown=true of the source needs it",
    ),
}
"""Value and reason of each. One more measure needs no setting: a worker that loads the source
freezes the objects that the garbage collector would scan after every task."""

_SHARED_KEYS: Final = (
    "SPARK_LOCAL_DIRS",
    "SPARK_AUTH_SOCKET_TIMEOUT",
    "SPARK_BUFFER_SIZE",
    "SPARK_PYTHON_RUNTIME",
)
"""Variables that Spark sets in the environment of the Python process of a streaming source."""


def session(
    name: str = "tidemill",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    quiet: bool = False,
    brief: bool = False,
) -> SparkSession:
    """The session of this process, created if there is none; `settings` override ours.

    `brief` is for a program that runs for a minute or two: Java compiles quickly rather than well.
    On a cluster, workers get this package as an archive. Prints the settings on standard error,
    unless `quiet`.
    """
    from pyspark.sql import SparkSession

    if master is None or master.startswith("local"):
        # Spark starts workers with the first `python3` on the path. In a virtual environment that
        # is not activated, that is another Python.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given = dict(settings or {})
    if master is not None and not master.startswith("local"):
        given |= archive_settings(given)
        # The driver plans queries in a Python like the workers', which may lack this package.
        paths = [str(package_root()), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    given |= driver_options(given, os.environ, class_archive(), brief=brief)
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    ours = {key: value for key, (value, _) in SETTINGS.items() if key not in given}
    for key, value in {**ours, **given}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    _prepare_shared_environment(spark)
    if not quiet:
        print_settings(ours)
    return spark


def _prepare_shared_environment(spark: SparkSession) -> None:
    """Make it safe to start two streaming queries of ours at the same time.

    Spark looks our source up once per JVM and keeps the environment of its Python processes in one
    mutable Scala map without a lock. The map is sent with every task, and each query that starts
    puts `_SHARED_KEYS` into it from its own thread. Two puts at once can count one key twice. From
    then on no task of ours can be serialised ("Illegal size 5 of collection, expected 6") until the
    JVM ends. If the map has the keys already, the puts only replace constant values.
    """
    from pyspark.errors import PySparkException

    with contextlib.suppress(PySparkException):  # not found: reading reports it, with the reason
        sources = spark._jsparkSession.sessionState().dataSourceManager()
        environment = sources.lookupDataSource("tidemill").dataSourceCls().envVars()
        # Twice: the map may also resize when an existing key is put.
        for key in _SHARED_KEYS * 2:
            environment.put(key, environment.get(key) or "")


def print_settings(ours: Mapping[str, str]) -> None:
    """Print each setting and its reason on standard error."""
    for key, value in ours.items():
        sys.stderr.write(f"tidemill.spark: {key}={value} ({SETTINGS[key][1]})\n")
    sys.stderr.write(
        "tidemill.spark: workers freeze what they have loaded (Spark collects garbage after every "
        "task)\n"
    )
