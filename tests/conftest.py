"""Fixtures for every test."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from tests.support import coroutines
from tests.support.schedule import FileSchedule, longest_first

T = TypeVar("T")

# Derandomised: the same examples everywhere, so a failure in CI is a failure on the desk.
settings.register_profile(
    "tidemill",
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tidemill")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--kill-points",
        choices=("some", "all"),
        default="some",
        help="at how many points of a batch Spark drivers are killed (`make kills`: at all)",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> FileSchedule:
    return FileSchedule(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Thousands of tests live to the end: the garbage collector need not look through them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_is_heard() -> None:
    """A shell starts background jobs with SIGINT ignored, and their children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, T]], T]:
    """The one way to run a coroutine in a test: to its end, on a fresh event loop.

        def test_a_record_comes_back(run):
            async def scenario(): ...

            assert run(scenario()) == b"it"

    A test that needs virtual time takes a simulated loop from `tidemill.testing.sim` instead.
    """
    return coroutines.run


@pytest.fixture
def require_tool() -> Callable[[str], str]:
    """Finds a program: gives its path, or skips the test and names it; in CI it fails instead."""

    def require(name: str) -> str:
        path = shutil.which(name)
        if path is not None:
            return path
        if os.environ.get("CI") == "true":
            pytest.fail(f"{name} is missing, and CI must not skip what needs it")
        pytest.skip(f"{name} is missing (tools/setup_env installs it on Debian)")

    return require
