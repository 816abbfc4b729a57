"""`pytest tests/scenario --rewrite` writes what happened over what was expected: read the diff."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="regenerate the transcripts of tests/scenario/*.txt"
    )
