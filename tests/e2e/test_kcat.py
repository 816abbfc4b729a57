"""kcat, a stock client built on an old librdkafka, sends and reads."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tidemill.testing.broker_process import BrokerProcess

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        shutil.which("kcat") is None and os.environ.get("CI") != "true",
        reason="kcat is not installed: apt-get install kcat",
    ),
]

TIMEOUT_S = 60


def _kcat(broker: BrokerProcess, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-b", broker.bootstrap, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    return done.stdout


def test_F01_F113_kcat_sends_lines_and_reads_them_back(shared_broker, topic):
    lines = [f"line {n}" for n in range(100)]
    _kcat(shared_broker, "-P", "-t", topic, "-p", "0", stdin="\n".join(lines))
    read = _kcat(shared_broker, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q")
    assert read.splitlines() == lines


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_T3_F31_an_old_librdkafka_really_sends_compressed_batches(shared_broker, topic, codec):
    line = "compress me " * 100
    _kcat(shared_broker, "-P", "-t", topic, "-p", "0", "-z", codec, stdin="\n".join([line] * 50))
    stored = sum(path.stat().st_size for path in shared_broker.data_dir.glob(f"**/{topic}-0/*.log"))
    assert 0 < stored < len(line) * 50 / 4
    read = _kcat(shared_broker, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q")
    assert read.splitlines() == [line] * 50


def test_F15_kcat_keeps_keys_headers_and_empty_values(shared_broker, topic):
    sending = ("-P", "-t", topic, "-p", "0", "-K:", "-Z", "-H", "shelf=7")
    _kcat(shared_broker, *sending, stdin="k1:apples\nk2:\n:pears")

    fields = "%o|%k|%s|%h\n"
    read = _kcat(shared_broker, "-C", "-t", topic, "-p", "0", "-e", "-q", "-f", fields)

    assert read.splitlines() == ["0|k1|apples|shelf=7", "1|k2||shelf=7", "2||pears|shelf=7"]


def test_F52_F53_kcat_reads_from_an_offset_a_tail_and_a_time(shared_broker, topic):
    lines = [str(n) for n in range(20)]
    _kcat(shared_broker, "-P", "-t", topic, "-p", "0", stdin="\n".join(lines))

    def read_from(where: str) -> list[str]:
        read = _kcat(shared_broker, "-C", "-t", topic, "-p", "0", "-o", where, "-e", "-q")
        return read.splitlines()

    assert read_from("7") == lines[7:]
    assert read_from("-3") == lines[-3:]
    assert read_from("s@1") == lines


def test_F01_T14_kcat_lists_the_cluster_and_asks_for_offsets(shared_broker, topic):
    _kcat(shared_broker, "-P", "-t", topic, "-p", "1", stdin="a\nb\nc")

    listed = _kcat(shared_broker, "-L")

    assert f"broker 0 at {shared_broker.bootstrap} (controller)" in listed
    assert f'topic "{topic}" with 4 partitions' in listed
    assert _kcat(shared_broker, "-Q", "-t", f"{topic}:1:-1").split() == [
        topic,
        "[1]",
        "offset",
        "3",
    ]
