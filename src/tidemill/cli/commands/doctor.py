"""`tidemill doctor`: checks this machine and advises how to fix what is missing."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import final

import click

from tidemill.cli.session import json_option
from tidemill.cli.text import print_json, print_table
from tidemill.client.network.broker_connection import BrokerConnection
from tidemill.client.network.errors import BrokerUnreachable, ClientError
from tidemill.core.compiled import HOT_LOOPS, REQUEST_PATH, is_compiled
from tidemill.core.config.broker_config import parse_endpoint
from tidemill.core.errors import TidemillError
from tidemill.core.limits import MIB
from tidemill.core.net import AsyncioNet

__all__ = ["Finding", "Status", "doctor"]

_PYTHON_MIN = (3, 11)
_JAVA_MIN = 17
_FREE_BYTES_MIN = 1024 * MIB
_DESCRIPTORS_MIN = 4_096
_PROBE_TIMEOUT_S = 2.0
_PROGRAM_TIMEOUT_S = 10


class Status(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    """Something optional is missing or slow."""
    PROBLEM = "problem"
    """The broker will not run, or not well."""


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check. `advice` is empty if there is nothing to do."""

    name: str
    status: Status
    found: str
    advice: str = ""


@click.command()
@click.option("--data-dir", metavar="DIR", default="./data", show_default=True)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:9092", show_default=True)
@json_option
def doctor(data_dir: str, listen: str, as_json: bool) -> None:
    """Check this machine and advise how to fix what is missing.

    Exits with 1 if the broker would not run, or not run well.
    """
    checks: list[Callable[[], Finding]] = [
        _check_python,
        _check_compiler,
        lambda: _check_compiled("compiled loops", HOT_LOOPS),
        lambda: _check_compiled("compiled request path", REQUEST_PATH),
        _check_descriptors,
        lambda: _check_disk(data_dir),
        lambda: asyncio.run(_check_port(listen)),
        _check_java,
        _check_kcat,
        _check_librdkafka,
    ]
    findings = [check() for check in checks]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        rows = [(f.name, f.status.value, f.found) for f in findings]
        print_table(("CHECK", "STATUS", "FOUND"), rows)
        for finding in findings:
            if finding.advice:
                click.echo(f"{finding.name}: {finding.advice}")
    if any(finding.status is Status.PROBLEM for finding in findings):
        raise SystemExit(1)


def _check_python() -> Finding:
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= _PYTHON_MIN:
        return Finding("python", Status.OK, found)
    return Finding("python", Status.PROBLEM, found, "Tidemill needs Python 3.11 or later")


def _check_compiler() -> Finding:
    path = shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")
    if path is not None:
        return Finding("compiler", Status.OK, path)
    advice = (
        "without a C compiler the broker runs as plain Python, slower: apt install gcc python3-dev"
    )
    return Finding("compiler", Status.NOTE, "none", advice)


def _check_compiled(name: str, modules: Sequence[str]) -> Finding:
    slow = [module for module in modules if not is_compiled(module)]
    if not slow:
        return Finding(name, Status.OK, f"all {len(modules)} modules")
    advice = "these run as plain Python, slower; with a C compiler `make setup` compiles them"
    return Finding(
        name, Status.NOTE, f"{len(slow)} of {len(modules)} modules are not compiled", advice
    )


def _check_descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft} (at most {hard})"
    if soft >= _DESCRIPTORS_MIN:
        return Finding("open files", Status.OK, found)
    advice = f"every client and segment needs one; run `ulimit -n {min(hard, 65_536)}` first"
    return Finding("open files", Status.PROBLEM, found, advice)


def _check_disk(data_dir: str) -> Finding:
    path = Path(data_dir).absolute()
    present = next(p for p in (path, *path.parents) if p.exists())
    if not os.access(present, os.W_OK):
        advice = f"the broker cannot write to {present}; choose another with --data-dir"
        return Finding("disk", Status.PROBLEM, f"{present} is read-only", advice)
    free = shutil.disk_usage(present).free
    found = f"{free / MIB / 1024:.1f} GiB free at {present}"
    if free >= _FREE_BYTES_MIN:
        return Finding("disk", Status.OK, found)
    return Finding(
        "disk",
        Status.PROBLEM,
        found,
        "the broker refuses writes when the disk is full; free some space",
    )


async def _check_port(listen: str) -> Finding:
    host, port = parse_endpoint(listen, key="--listen")
    try:
        connection = await BrokerConnection.open(
            AsyncioNet(), host, port, timeout_s=_PROBE_TIMEOUT_S
        )
    except BrokerUnreachable:
        return Finding("port", Status.OK, f"{listen} is free")
    except (ClientError, TidemillError):
        advice = "another program uses the port; choose another for `tidemill up` with --listen"
        return Finding("port", Status.PROBLEM, f"{listen} is taken, not by a broker", advice)
    connection.close()
    return Finding("port", Status.OK, f"a broker answers on {listen}")


def _check_java() -> Finding:
    path = shutil.which("java")
    advice = (
        f"Spark pipelines and ZooKeeper need Java {_JAVA_MIN}: apt install default-jre-headless"
    )
    if path is None:
        return Finding("java", Status.NOTE, "none", advice)
    version = _try_java_version(path)
    if version is None:
        return Finding("java", Status.NOTE, f"{path} does not run", advice)
    if version < _JAVA_MIN:
        return Finding("java", Status.NOTE, f"version {version}", advice)
    return Finding("java", Status.OK, f"version {version}")


def _try_java_version(path: str) -> int | None:
    try:
        ran = subprocess.run(  # noqa: S603 - the user's own java, found on the user's path
            [path, "-version"], capture_output=True, text=True, timeout=_PROGRAM_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', ran.stderr)
    return int(match[1]) if match else None


def _check_kcat() -> Finding:
    path = shutil.which("kcat")
    if path is not None:
        return Finding("kcat", Status.OK, path)
    return Finding("kcat", Status.NOTE, "none", "handy with any broker: apt install kcat")


def _check_librdkafka() -> Finding:
    if importlib.util.find_spec("confluent_kafka") is not None:
        return Finding("confluent-kafka", Status.OK, "installed")
    advice = "the fast client for Python programs: pip install confluent-kafka"
    return Finding("confluent-kafka", Status.NOTE, "none", advice)
