"""The size of the exploration: small by default, larger by option."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--crash-seeds",
        type=int,
        default=8,
        help="workloads whose crash states are explored, each at every disk call (default 8)",
    )


FATE_SHARE = 2
"""Of so many seeds one is for workloads that are the same with each of them: there it chooses only
what a power loss leaves. The planted bugs of fixed workloads are found by the first two."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seeds = metafunc.config.getoption("--crash-seeds")
    for name, count in (("crash_seed", seeds), ("fate_seed", -(-seeds // FATE_SHARE))):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, range(count))
