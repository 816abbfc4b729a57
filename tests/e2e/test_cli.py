"""The command line against a real broker process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidemill.testing.broker_process import TIDEMILL, BrokerProcess, up_command

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

TIMEOUT_S = 30


@dataclass
class Ran:
    exit_code: int
    out: str
    err: str


@dataclass
class Shell:
    """Runs commands against one broker."""

    bootstrap: str
    data_dir: Path

    def tidemill(self, *args: str, stdin: str | None = None) -> Ran:
        return tidemill(*args, "--bootstrap", self.bootstrap, stdin=stdin)

    def lines(self, topic: str, *args: str) -> list[str]:
        ran = self.tidemill("consume", topic, "--no-follow", *args)
        assert (ran.exit_code, ran.err) == (0, "")
        return ran.out.splitlines()

    def produce(self, topic: str, *lines: str, args: tuple[str, ...] = ()) -> None:
        ran = self.tidemill("produce", topic, *args, stdin="".join(f"{line}\n" for line in lines))
        assert ran.exit_code == 0, ran.err


def tidemill(*args: str, stdin: str | None = None) -> Ran:
    ran = subprocess.run(
        [*TIDEMILL, *args], input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@contextmanager
def running_broker(data_dir: Path) -> Iterator[Shell]:
    process = BrokerProcess(data_dir).start()
    try:
        yield Shell(process.bootstrap, data_dir)
    finally:
        process.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as started:
        yield started


@pytest.fixture
def topic(broker: Shell, request: pytest.FixtureRequest) -> str:
    """A new topic with one partition, named after the test."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:200]
    assert broker.tidemill("topic", "create", name, "--partitions", "1").exit_code == 0
    return name


def test_up_says_ready_and_ends_cleanly_on_sigterm(tmp_path):
    command = up_command(TIDEMILL, tmp_path / "data", "127.0.0.1:0", ())
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert re.fullmatch(r"ready: 127\.0\.0\.1:\d+\n", process.stdout.readline())
            process.send_signal(signal.SIGTERM)

            assert process.wait(TIMEOUT_S) == 0
            assert process.stdout.read() == ""
        finally:
            process.kill()


def test_topics_are_created_described_altered_and_deleted(broker):
    made = broker.tidemill(
        *("topic", "create", "shop.orders", "--partitions", "3", "--config", "retention.ms=60000")
    )
    assert made.out == "created shop.orders: 3 partitions, replication 1\n"
    assert broker.tidemill("topic", "create", "shop.orders", "--partitions", "3").exit_code == 1

    listed = json.loads(broker.tidemill("topic", "list", "--json").out)
    assert [t["partitions"] for t in listed if t["name"] == "shop.orders"] == [3]

    altered = broker.tidemill(
        *(
            "topic",
            "alter",
            "shop.orders",
            "--partitions",
            "5",
            "--config",
            "segment.bytes=1048576",
        ),
        *("--delete-config", "retention.ms"),
    )
    assert (altered.exit_code, altered.err) == (0, "")

    facts = json.loads(broker.tidemill("topic", "describe", "shop.orders", "--json").out)
    set_here = {key: c["value"] for key, c in facts["configs"].items() if c["is_set"]}
    assert set_here == {"segment.bytes": "1048576"}
    assert [p["partition"] for p in facts["partitions"]] == [0, 1, 2, 3, 4]
    assert all(p["isr"] == p["replicas"] for p in facts["partitions"])

    assert broker.tidemill("topic", "delete", "shop.orders").out == "deleted shop.orders\n"
    gone = broker.tidemill("topic", "describe", "shop.orders")
    assert gone.exit_code == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION" in gone.err


def test_a_wrong_config_is_refused_in_one_line(broker):
    ran = broker.tidemill("topic", "create", "odd", "--config", "no.such.key=1")

    assert ran.exit_code == 1
    assert ran.err.startswith("error: INVALID_CONFIG")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_was_produced_is_consumed_with_every_codec(broker, topic, codec):
    sent = [f"{n} {'x' * (n % 50)}" for n in range(2000)]

    broker.produce(topic, *sent, args=("--compression", codec))

    assert broker.lines(topic) == sent


@pytest.mark.parametrize(
    "flags", [("--acks", "0"), ("--acks", "1"), ("--acks", "all"), ("--idempotent",)], ids=" ".join
)
def test_every_kind_of_acknowledgement_stores_the_records(broker, topic, flags):
    broker.produce(topic, "a", "b", "c", args=flags)

    # With acks=0 records may arrive late: follow until all three are there.
    ran = broker.tidemill("consume", topic, "--count", "3")
    assert ran.out.splitlines() == ["a", "b", "c"]


def test_keys_headers_and_times_survive(broker, topic):
    broker.produce(topic, "k=v=w", "plain", args=("--key-separator", "=", "--header", "h=1"))

    records = [json.loads(line) for line in broker.lines(topic, "--json")]

    assert [(r["key"], r["value"]) for r in records] == [("k", "v=w"), (None, "plain")]
    assert records[0]["headers"] == [{"key": "h", "value": "1"}]
    assert records[0]["timestamp_ms"] > 1_600_000_000_000


def test_reading_begins_at_an_offset_an_age_or_the_end(broker, topic):
    broker.produce(topic, *(str(n) for n in range(10)))

    assert broker.lines(topic, "--from", "7") == ["7", "8", "9"]
    assert broker.lines(topic, "--from", "-10m") == [str(n) for n in range(10)]
    assert broker.lines(topic, "--from", "end") == []


def test_all_partitions_are_read_and_keys_stay_together(broker):
    broker.tidemill("topic", "create", "spread", "--partitions", "4")
    broker.produce(
        "spread", *(f"key{n % 7}:{n}" for n in range(700)), args=("--key-separator", ":")
    )

    rows = [line.split() for line in broker.lines("spread", "--format", "%k %p %v")]

    assert sorted(int(value) for _, _, value in rows) == list(range(700))
    assert len({(key, partition) for key, partition, _ in rows}) == 7
    for wanted in {key for key, _, _ in rows}:
        values = [int(value) for key, _, value in rows if key == wanted]
        assert values == sorted(values)


def test_a_follower_sees_later_records_and_ends_quietly_on_ctrl_c(broker, topic):
    following = subprocess.Popen(
        [*TIDEMILL, "consume", topic, "--bootstrap", broker.bootstrap],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert following.stdout is not None
        for line in ("first", "second"):
            broker.produce(topic, line)
            assert following.stdout.readline() == f"{line}\n"
        following.send_signal(signal.SIGINT)
        out, err = following.communicate(timeout=TIMEOUT_S)
    finally:
        following.kill()
    assert (following.returncode, out, err) == (130, "", "")


def test_a_reader_that_has_enough_ends_the_command_quietly(broker, topic):
    broker.produce(topic, *(f"{n:01000}" for n in range(2000)))
    command = [*TIDEMILL, "consume", topic, "--bootstrap", broker.bootstrap]

    reading = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert reading.stdout is not None
    assert reading.stderr is not None
    reading.stdout.readline()
    reading.stdout.close()
    try:
        exit_code = reading.wait(TIMEOUT_S)
        err = reading.stderr.read()
    finally:
        reading.kill()
        reading.stderr.close()
    assert (exit_code, err) == (0, "")


def test_lines_of_a_slow_pipe_are_produced_as_they_arrive(broker, topic):
    producing = subprocess.Popen(
        [*TIDEMILL, "produce", topic, "--bootstrap", broker.bootstrap],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert producing.stdin is not None
        producing.stdin.write("early\n")
        producing.stdin.flush()
        assert broker.tidemill("consume", topic, "--count", "1").out == "early\n"
        _, err = producing.communicate("late\n", timeout=TIMEOUT_S)
    finally:
        producing.kill()
    assert err.startswith("sent 2 records")
    assert broker.lines(topic) == ["early", "late"]


def test_a_refused_connection_is_exit_code_3(broker):
    free = broker.bootstrap.rpartition(":")[0] + ":1"

    ran = tidemill("topic", "list", "--bootstrap", free)

    assert ran.exit_code == 3
    assert "tidemill up" in ran.err


def test_the_environment_names_the_broker(broker):
    ran = subprocess.run(
        [*TIDEMILL, "topic", "list", "--json"],
        env=os.environ | {"TIDEMILL_BOOTSTRAP": broker.bootstrap},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )

    assert ran.returncode == 0, ran.stderr
    assert isinstance(json.loads(ran.stdout), list)


def test_the_doctor_recognises_a_broker(broker, tmp_path):
    ran = tidemill("doctor", "--json", "--listen", broker.bootstrap, "--data-dir", str(tmp_path))

    found = {check["name"]: check for check in json.loads(ran.out)}
    assert found["port"]["found"] == f"a broker answers on {broker.bootstrap}"


@pytest.mark.interop
def test_kcat_and_the_commands_read_each_other(broker, topic, require_tool):
    kcat = require_tool("kcat")
    theirs = [kcat, "-b", broker.bootstrap, "-t", topic]

    subprocess.run(
        [*theirs, "-P", "-K:"], input="k:from kcat\n", text=True, check=True, timeout=TIMEOUT_S
    )
    broker.produce(topic, "k:from tidemill", args=("--key-separator", ":"))

    read = subprocess.run(
        [*theirs, "-C", "-e", "-q", "-f", "%k=%s\n"],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    both = ["k=from kcat", "k=from tidemill"]
    assert read.stdout.splitlines() == both
    assert broker.lines(topic, "--format", "%k=%v") == both


def test_the_demo_reads_back_every_line_it_sent():
    ran = tidemill("demo", "--without-spark", "--seconds", "1", "--rate", "3000", "--json")

    assert ran.exit_code == 0, ran.err
    result = json.loads(ran.out)
    assert result["sent"] == result["read"] > 1000


def test_the_log_of_a_stopped_broker_can_be_verified_and_dumped(tmp_path):
    with running_broker(tmp_path / "data") as started:
        started.tidemill("topic", "create", "kept", "--partitions", "1")
        started.produce("kept", *(str(n) for n in range(100)))

    verified = json.loads(tidemill("log", "verify", str(tmp_path / "data"), "--json").out)
    [kept] = [facts for facts in verified["partitions"] if facts["partition"] == "kept-0"]
    dumped = tidemill("log", "dump", str(tmp_path / "data"), "--records").out

    assert (kept["records"], kept["next"], kept["damage"]) == (100, 100, 0)
    assert re.search(r"^    99 \d+ - 99$", dumped, re.MULTILINE)
