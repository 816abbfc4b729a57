"""The size of the exploration: small by default, larger by option."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crash-seeds",
        type=int,
        default=16,
        help="workloads whose crash states are explored, each at every disk call (default 16)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "crash_seed" in metafunc.fixturenames:
        metafunc.parametrize("crash_seed", range(metafunc.config.getoption("--crash-seeds")))
