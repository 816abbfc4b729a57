"""`tidemill up --standby`: a second process takes the place of a broker that is gone (F85)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.load import read_logs
from tests.support.clients import DEADLINE_S, Confluent, Message
from tidemill.testing.broker_process import TIDEMILL, BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[BrokerProcess, BrokerProcess]]:
    """A broker, and one that stands by; both have the same directory by different paths."""
    first = BrokerProcess(tmp_path / "data").start()
    (tmp_path / "mounted").symlink_to(tmp_path / "data")
    second = BrokerProcess(tmp_path / "mounted", flags=["--standby"])
    yield first, second
    first.stop()
    second.stop()


def values(start: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + 100)]


def produce(broker: BrokerProcess, topic: str, start: int) -> None:
    messages = [Message(value, partition=0) for value in values(start)]
    Confluent().produce(broker.bootstrap, topic, messages)


def wait_standing_by(broker: BrokerProcess) -> None:
    process = broker.spawn()
    while "standing by for" not in process.log():
        assert process.wait(0.02) is None, process.log()


def test_F85_the_standby_serves_everything_acknowledged_when_the_broker_is_killed(pair, topic):
    first, second = pair
    wait_standing_by(second)
    produce(first, topic, 0)
    assert not second.is_ready()
    first.kill()
    second.wait_ready()
    assert "took over" in second.log_path.read_text()
    produce(second, topic, 100)
    logs = read_logs(second.bootstrap, [(topic, 0)])
    assert logs[topic, 0] == values(0) + values(100)


def test_F85_the_standby_takes_over_after_a_clean_stop_too(pair, topic):
    first, second = pair
    wait_standing_by(second)
    produce(first, topic, 0)
    assert first.stop() == 0
    second.wait_ready()
    assert read_logs(second.bootstrap, [(topic, 0)])[topic, 0] == values(0)
    assert "not clean" not in second.log_path.read_text()


def test_F85_a_standby_of_nothing_says_so(tmp_path):
    ran = subprocess.run(
        [*TIDEMILL, "up", "--standby", "--data-dir", str(tmp_path / "nowhere")],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert ran.returncode == 2
    assert "is its storage mounted here?" in ran.stderr
    assert not (tmp_path / "nowhere").exists()
