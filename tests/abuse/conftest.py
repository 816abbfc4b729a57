"""Every test of abuse ends with the same question: is the broker as it was before?"""

from __future__ import annotations

import pytest

from tests.abuse.victim import Baseline, Victim


@pytest.fixture(scope="session")
def one_victim(tmp_path_factory):
    """The broker that all tests of a run abuse, one after the other."""
    victim = Victim(tmp_path_factory.mktemp("abuse") / "data").start()
    yield victim
    assert victim.process.stop() == 0


@pytest.fixture
def victim(one_victim):
    """The shared broker: it serves, and its memory, descriptors and log are as before."""
    baseline = Baseline(one_victim)
    yield one_victim
    baseline.assert_restored()
