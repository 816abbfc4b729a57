"""The examples run unchanged and print what they promise."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import postgres, programs
from tidemill.testing.broker_process import BrokerProcess

pytestmark = [pytest.mark.e2e, pytest.mark.interop, pytest.mark.slow]

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 120


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data_dir = tmp_path_factory.mktemp("examples") / "data"
    started = BrokerProcess(data_dir, "group.initial.rebalance.delay.ms=0").start()
    yield started
    assert started.stop() == 0


def shown(broker: BrokerProcess, name: str, *arguments: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", broker.bootstrap, *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_F11_broadcast_gives_every_instance_every_record(broker):
    assert shown(broker, "broadcast") == [
        "london got 10 of 10",
        "lisbon got 10 of 10",
        "lima got 10 of 10",
    ]


def test_F66_one_consumer_works_while_the_other_stands_by(broker):
    assert shown(broker, "exclusive") == [
        "first did booking 0",
        "first did booking 1",
        "second did booking 2",
        "second did booking 3",
    ]


def test_F71_committing_first_means_at_most_once(broker):
    assert shown(broker, "at_most_once") == ["processed 0 1 3 4"]


def test_F72_committing_afterwards_means_at_least_once(broker):
    assert shown(broker, "at_least_once") == ["processed 0 1 2 2 3 4"]


def test_F73_offsets_committed_with_the_results_mean_exactly_once(broker):
    assert shown(broker, "exactly_once") == [f"bill for order {order}" for order in range(5)]


def test_F76_a_database_keeps_the_offset_with_the_result(broker):
    assert shown(broker, "into_database") == ["total 10 next offset 5"]


def test_F76_postgresql_keeps_the_offset_with_the_result(broker):
    if programs() is None:
        missing = "PostgreSQL is missing (tools/setup_env database installs it on Debian)"
        pytest.fail(missing) if os.environ.get("CI") == "true" else pytest.skip(missing)
    with postgres() as address:
        assert shown(broker, "into_database", address) == ["total 10 next offset 5"]


def test_F63_many_threads_work_on_what_one_consumer_reads(broker):
    assert shown(broker, "many_threads") == ["200 records by 4 threads, each key in order: True"]


def test_F105_a_consumer_drops_what_it_does_not_want(broker):
    assert shown(broker, "filtering") == ["4 of 20: event 0, event 10, event 15, event 5"]


def test_F106_regions_read_their_own_views_of_all_orders(broker):
    assert shown(broker, "regional_views") == [
        "eu: 0 3 6 9",
        "us: 1 4 7 10",
        "large: 5 6 7 8 9 10 11",
    ]


def test_F108_reminders_come_when_they_are_due_unless_they_are_cancelled(broker):
    assert shown(broker, "reminders") == [
        "ann's reminder has ticket 0",
        "ann: call the bank",
        "bob: buy flowers",
        "dan: come to lunch",
    ]


def test_every_example_is_explained_in_the_guide():
    guide = (EXAMPLES.parent / "docs" / "guides" / "consuming.md").read_text()
    named = {path.name for path in EXAMPLES.glob("*.py")}
    assert {name for name in named if f"examples/{name}" not in guide} == set()
