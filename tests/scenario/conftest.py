"""`pytest tests/scenario --rewrite` replaces expected by actual lines: read the diff."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="regenerate the transcripts of tests/scenario/*.txt"
    )
