"""Every abuse test ends with the same check: the broker is as it was before."""

from __future__ import annotations

import pytest

from tests.abuse.victim import Baseline, Victim


@pytest.fixture(scope="session")
def one_victim(tmp_path_factory):
    """The broker that all tests of a run attack, one after the other."""
    victim = Victim(tmp_path_factory.mktemp("abuse") / "data").start()
    yield victim
    assert victim.process.stop() == 0


@pytest.fixture
def victim(one_victim):
    """The shared broker; after the test it serves, with memory, descriptors and log as before."""
    baseline = Baseline(one_victim)
    yield one_victim
    baseline.assert_restored()
