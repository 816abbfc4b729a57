"""Options of Spark's JVM that make it start sooner.

Most of a short run is Java loading classes and compiling. A class archive (class-data sharing) has
the classes of Spark in the form in which the JVM uses them: it is mapped, not parsed. `make
setup-spark` writes it (tools/spark_classes.py). The JVM compares it with its own build and with the
size and time of every jar, and runs without it if anything differs.

The options are Spark's *default* options of the driver: those that a user gives as
`spark.driver.extraJavaOptions` follow them on the command line, and win.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

__all__ = ["OPTIONS_KEY", "class_archive", "driver_options"]

OPTIONS_KEY: Final = "spark.driver.defaultJavaOptions"
_FIRST_COMPILER: Final = "-XX:TieredStopAtLevel=1"
"""Without Java's second compiler, whose faster code does not repay its work in a short run."""
_SILENT_WITHOUT: Final = "-Xlog:cds*=off"
"""Else the JVM prints a warning about an archive that it cannot use."""
_OTHER_INSTALLATION: Final = ("SPARK_HOME", "SPARK_CONF_DIR")
"""Such a Spark may have a file with default options, which ours would replace."""


def class_archive() -> Path:
    """Where the class archive of this Python environment is, if there is one."""
    return Path(sys.prefix) / "spark-classes.jsa"


def driver_options(
    given: Mapping[str, str], environment: Mapping[str, str], archive: Path, *, brief: bool
) -> dict[str, str]:
    """The setting to add to the `given` ones, if any. `brief`: the JVM will not live long."""
    if OPTIONS_KEY in given or any(environment.get(name) for name in _OTHER_INSTALLATION):
        return {}
    options = [_FIRST_COMPILER] if brief else []
    if archive.is_file():  # a JVM that does not find it does without its own archive too
        options += [f'"-XX:SharedArchiveFile={archive}"', _SILENT_WITHOUT]
    return {OPTIONS_KEY: " ".join(options)} if options else {}
