from __future__ import annotations

import subprocess
import sys

import click
import pytest

from tests.support.fake_cluster import FakeCluster
from tests.unit.cli.invoke import BOOTSTRAP, tidemill
from tidemill.cli.failures import explain
from tidemill.client.network.errors import BrokerUnreachable, ConnectionLost, RequestTimedOut
from tidemill.core.errors import (
    ErrorCode,
    KafkaError,
    ProtocolViolation,
    StorageFault,
    UserError,
)


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, "t"), 1),
        (ProtocolViolation("odd"), 1),
        (StorageFault("disk"), 1),
        (PermissionError(13, "Permission denied", "/data"), 1),
        (UserError("wrong"), 2),
        (click.UsageError("wrong"), 2),
        (BrokerUnreachable("nobody there"), 3),
        (ConnectionLost("gone"), 3),
        (RequestTimedOut("late"), 3),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_each_kind_of_failure_has_its_exit_code(error, exit_code):
    failure = explain(error)

    assert failure is not None
    assert failure.exit_code == exit_code


def test_a_bug_keeps_its_traceback():
    assert explain(ZeroDivisionError()) is None


def test_S52_the_brokers_message_becomes_one_escaped_line():
    failure = explain(KafkaError(ErrorCode.INVALID_CONFIG, "bad\nvalue \x1b[31m"))

    assert failure is not None
    assert failure.line == "INVALID_CONFIG: bad value \\x1b[31m"


def test_a_cluster_that_nobody_can_change_points_to_its_store():
    failure = explain(KafkaError(ErrorCode.NOT_CONTROLLER, "no elections were held"))

    assert failure is not None
    assert "see in the brokers' logs whether they reach their store" in failure.line


def test_an_interrupt_prints_nothing():
    failure = explain(KeyboardInterrupt())

    assert failure is not None
    assert failure.line == ""


def test_an_unreachable_broker_gives_one_line_with_advice():
    cluster = FakeCluster()
    cluster.net.servers.clear()

    result = tidemill("topic", "list", cluster=cluster)

    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr == (
        f"error: cannot connect to {BOOTSTRAP}: Connection refused; "
        "start a broker with `tidemill up`, or name another with --bootstrap\n"
    )


@pytest.mark.parametrize("name", ["bench"])
def test_a_command_that_does_not_exist_yet_is_refused_in_one_line(name):
    result = tidemill(name, "list")

    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: `tidemill {name}` is not part of this version yet")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "args",
    [["nonsense"], ["topic", "create"], ["topic", "create", "t", "--partitions", "0"], ["consume"]],
    ids=" ".join,
)
def test_wrong_use_is_one_line_that_names_the_help(args):
    result = tidemill(*args)

    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert "--help`" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("bootstrap", ["", "nonsense", "host:99999", "::1:9092", ",", "host:port"])
def test_a_wrong_bootstrap_address_is_a_user_error(bootstrap):
    result = tidemill("topic", "list", "--bootstrap", bootstrap)

    assert result.exit_code == 2
    assert "--bootstrap" in result.stderr


def test_the_environment_names_the_broker_unless_the_flag_does():
    cluster = FakeCluster()

    assert tidemill("topic", "list", cluster=cluster).exit_code == 0
    assert tidemill("topic", "list", "--bootstrap", "other:1", cluster=cluster).exit_code == 3


def test_help_lists_the_commands_without_importing_them():
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from tidemill.cli.main import cli\n"
        "out = CliRunner().invoke(cli, ['--help']).output\n"
        "assert 'demo' in out, out\n"
        "heavy = {'rich', 'confluent_kafka', 'uvloop'}\n"
        "heavy |= {'tidemill.cli.commands.demo', 'tidemill.cli.commands.up'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )

    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )

    assert (ran.stdout, ran.stderr) == ("[]\n", "")
