"""The facts about a run that are stored with its results, so that it can be repeated."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import kafka, qbench
from tidemill.core.compiled import HOT_LOOPS, REQUEST_PATH, is_compiled

__all__ = ["facts"]

ROOT = Path(__file__).resolve().parent.parent


def facts(*, with_kafka: bool, options: str) -> dict[str, Any]:
    """Commit, versions, machine and date of a run."""
    return {
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "options": options,
        "machine": {
            "cpus": os.cpu_count(),
            "cpu": _cpu_model(),
            "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
            "kernel": platform.release(),
            "load_at_start": os.getloadavg()[0],
        },
        "versions": {
            "python": platform.python_version(),
            "uvloop": importlib.metadata.version("uvloop"),
            "hot_loops": _flavour(HOT_LOOPS),
            "request_path": _flavour(REQUEST_PATH),
            "librdkafka": qbench.librdkafka_version(),
            "kafka": kafka.VERSION if with_kafka else "",
            "java": kafka.java_version() if with_kafka else "",
        },
    }


def _flavour(modules: Iterable[str]) -> str:
    return "compiled" if all(map(is_compiled, modules)) else "plain Python"


def _commit() -> str:
    """The short hash, with a plus if the working copy differs from it."""
    found = _git("rev-parse", "--short", "HEAD")
    return f"{found}+" if found and _git("status", "--porcelain") else found or "unknown"


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.M)
    return found[1] if found else platform.machine()
