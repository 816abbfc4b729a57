"""Builds and runs qbench.c, the driver on librdkafka."""

from __future__ import annotations

import ctypes.util
import re
import shutil
import subprocess
from pathlib import Path

from bench.debian_packages import ensure_tool
from bench.judgement import Sample
from bench.processes import MeasurementFailed
from bench.wire_client import Address

__all__ = ["build", "librdkafka_version", "run"]

SOURCE = Path(__file__).with_name("qbench.c")
BINARY = SOURCE.parent.parent / "build" / "qbench"
SECONDS_MAX = 360  # qbench ends by itself before that


def build() -> bool:
    """Build it if the source is newer; prints a reason and returns False if it cannot."""
    if BINARY.exists() and BINARY.stat().st_mtime >= SOURCE.stat().st_mtime:
        return True
    lost = "the driver cannot be built, nothing is measured"
    if not ensure_tool(lambda: shutil.which("gcc") is not None, ["gcc", "libc6-dev"], without=lost):
        return False
    if not ensure_tool(_can_include, ["librdkafka-dev"], without=lost):
        return False
    BINARY.parent.mkdir(exist_ok=True)
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-o", str(BINARY), str(SOURCE)]
    subprocess.run([*command, "-lrdkafka", "-lpthread"], check=True)
    return True


def _can_include() -> bool:
    probe = ["gcc", "-E", "-include", "librdkafka/rdkafka.h", "-x", "c", "/dev/null"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def run(address: Address, topic: str, mode: str, *arguments: str | int) -> Sample:
    """One run; its measures by name. A lost or refused record fails the measurement."""
    command = [str(BINARY), str(address), topic, mode, *map(str, arguments)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"qbench {mode} did not end") from None
    if done.returncode:
        said = " ".join((done.stdout + done.stderr).split())[-500:]
        raise MeasurementFailed(f"qbench {mode} ended with {done.returncode}: {said}")
    return {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", done.stdout)}


def librdkafka_version() -> str:
    """The version of the library that qbench is linked with."""
    name = ctypes.util.find_library("rdkafka")
    if name is None:
        return ""
    version_str = ctypes.CDLL(name).rd_kafka_version_str
    version_str.restype = ctypes.c_char_p
    text: bytes = version_str()
    return text.decode()
