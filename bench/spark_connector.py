"""The competitor of the Spark rows: Spark's own Kafka connector, in its own version of Spark.

A connector runs only in the Spark that it was built for, and ours needs a newer one. So there are
two; this one is in `build/`, in a virtual environment with nothing but pyspark. The jars come from
Maven Central by `spark-pom.xml`.
"""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

from bench.debian_packages import ensure_tool
from bench.maven import copy_dependencies

__all__ = ["CLASS_PATH", "PYTHON", "VERSION", "have_spark", "provide"]

VERSION = "4.0.0"
POM = Path(__file__).with_name("spark-pom.xml")
HOME = POM.parent.parent / "build" / "spark-connector"
PYTHON = HOME / "venv" / "bin" / "python"
LIBS = HOME / "libs"
CLASS_PATH = f"{LIBS}/*"
_JAR = LIBS / f"spark-sql-kafka-0-10_2.13-{VERSION}.jar"
_PACKAGES = HOME / "venv" / f"pyspark-{VERSION}"
"""Written when an installation is complete."""
_PIP_SECONDS_MAX = 1_800
_ALONE = "Tidemill's source and sink are measured alone"


@functools.cache
def have_spark() -> bool:
    """Whether our side can run: it needs Java, and pyspark in this environment."""
    lost = "the Spark rows are left out"
    if not ensure_tool(lambda: bool(shutil.which("java")), ["default-jre-headless"], without=lost):
        return False
    if importlib.util.find_spec("pyspark") is None:
        print(f"bench: pyspark missing (make setup-spark): {lost}", file=sys.stderr)
        return False
    return True


@functools.cache
def provide() -> bool:
    """Install the connector and its Spark; prints a reason and returns False if not possible."""
    reason = _missing_jars() or _missing_packages()
    if reason:
        print(f"bench: no Kafka connector of Spark, {_ALONE}: {reason}", file=sys.stderr)
    return not reason


def _missing_jars() -> str:
    if _JAR.exists():
        return ""
    if not ensure_tool(lambda: bool(shutil.which("mvn")), ["maven"], without=_ALONE):
        return "Maven is missing"
    return copy_dependencies(POM, LIBS)


def _missing_packages() -> str:
    if _PACKAGES.exists():
        return ""
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(PYTHON.parent.parent)],
        [*pip, f"pyspark=={VERSION}"],
    ):
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_PIP_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            return f"pip took more than {_PIP_SECONDS_MAX} s"
        if done.returncode:
            return " ".join((done.stdout + done.stderr).split())[-300:]
    _PACKAGES.touch()
    return ""
