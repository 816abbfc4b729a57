"""The code in the README works unchanged."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

README = Path(__file__).parents[2] / "README.md"
TIMEOUT_S = 60


def _python_example() -> str:
    lines = README.read_text().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("    from confluent_kafka"))
    end = next(n for n in range(start, len(lines)) if lines[n] and not lines[n].startswith("    "))
    return textwrap.dedent("\n".join(lines[start:end]))


def test_F126_the_ten_lines_of_the_readme_send_and_read(shared_broker):
    example = _python_example().replace("127.0.0.1:9092", shared_broker.bootstrap)
    done = subprocess.run(
        [sys.executable, "-c", example],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    assert done.stdout.strip() == "b'3 apples'"
