"""What `tidemill up` refuses before it starts anything."""

from __future__ import annotations

import os
import sys

import pytest

from tests.unit.cli.invoke import tidemill
from tidemill.cli.commands.up import _print_ready


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--brokers", "0"], "--brokers 0: one command runs 1 to 16 brokers"),
        (["--brokers", "17"], "--brokers 17: one command runs 1 to 16 brokers"),
        (["--brokers", "-1"], "--brokers -1: one command runs 1 to 16 brokers"),
        (
            ["--brokers", "2", "--racks", "a"],
            "--racks a: name 2 racks, one per broker, with commas between",
        ),
        (["--racks", "a,b"], "--racks a,b: name 1 racks, one per broker, with commas between"),
        (
            ["--brokers", "3", "--set", "node.id=1"],
            "node.id: --brokers numbers the brokers itself; leave this key out",
        ),
        (["--brokers", "3", "--set", "no.such.key=1"], "unknown key 'no.such.key'"),
        (["--zookeeper", "", "--broker-id", "0"], "--zookeeper: name the servers, as in zk1"),
        (["--broker-id", "1"], "--broker-id: name the ZooKeeper of the cluster with --zookeeper"),
        (["--zookeeper", "zk1"], "--zookeeper: say with --broker-id N which broker this is"),
        (
            ["--zookeeper", "zk1", "--broker-id", "0", "--brokers", "2"],
            "--zookeeper: one command runs one broker; leave --brokers and --racks out",
        ),
        (
            ["--brokers", "2", "--set", "zookeeper.connect=zk1"],
            "zookeeper.connect: one command runs one broker; leave --brokers out",
        ),
        (
            ["--brokers", "2", "--rack", "a"],
            "--broker-id, --internal and --rack are of one broker; see --racks",
        ),
        (["--zookeeper", "zk 1", "--broker-id", "0"], "zookeeper.connect=zk 1: expected HOST"),
        (
            ["--zookeeper", "zk1", "--broker-id", "0", "--listen", "0.0.0.0:9092"],
            "listeners=0.0.0.0:9092: with ZooKeeper advertised.listeners (--advertise) must name",
        ),
    ],
)
def test_a_wrong_use_is_one_line_and_exit_code_2(flags, line):
    ran = tidemill("up", *flags)
    assert ran.exit_code == 2
    assert ran.stderr.startswith(f"error: {line}")
    assert ran.stderr.count("\n") == 1
    assert ran.stdout == ""


def test_a_ready_line_that_nobody_reads_ends_no_broker(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        _print_ready("127.0.0.1:9092")
        stdout.write("and what follows")
