"""Commands of the command line, each as a process of its own."""

from __future__ import annotations

import subprocess

from tests.support.clients import DEADLINE_S
from tidemill.testing.broker_process import TIDEMILL

__all__ = ["printed_by", "run_tidemill"]


def run_tidemill(bootstrap: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`tidemill ARGUMENTS` against these brokers."""
    return subprocess.run(
        [*TIDEMILL, *arguments, "--bootstrap", bootstrap],
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )


def printed_by(bootstrap: str, *arguments: str) -> str:
    """What `tidemill ARGUMENTS` prints; it must succeed."""
    ran = run_tidemill(bootstrap, *arguments)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
