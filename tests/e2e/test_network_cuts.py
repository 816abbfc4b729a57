"""Brokers whose network is cut: one way, from everybody, from ZooKeeper, and by a slow line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support import network_lab
from tidemill.testing import zookeeper_process

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.skipif(
        not (zookeeper_process.is_available() and network_lab.is_available()),
        reason="needs Java, the jars of pyspark, and network namespaces",
    ),
]

CUTS = 5
TIMEOUT_S = 500


def test_F78_I1_a_cluster_whose_network_is_cut_loses_nothing_and_goes_on_where_it_can():
    command = [sys.executable, "-m", "tests.campaign.network_cuts", "--json"]
    cut = subprocess.run(
        [*network_lab.LAB, *command],
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    summary = json.loads(cut.stdout)
    assert (cut.returncode, summary["violations"], len(summary["cuts"])) == (0, [], CUTS)
