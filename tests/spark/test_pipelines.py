"""Pipelines under real Spark against a real broker; Python counts the expected results."""

from __future__ import annotations

import json
import subprocess
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyarrow import dataset
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from tests.spark.pipeline_processes import (
    SHORT_LIVED,
    Cluster,
    PipelineProcess,
    python_without_tidemill,
    without_python_path,
)
from tests.spark.pipeline_runs import (
    enrich_values,
    headers_of,
    log_values,
    offsets_in,
    rank,
    run_once,
    send,
    traffic,
    written,
)
from tests.support.clients import Message
from tests.support.spark_topics import create_topic, records_of
from tidemill.core.errors import UserError
from tidemill.spark import session
from tidemill.spark.pipelines.catalogue import pipeline_kind
from tidemill.spark.pipelines.framework.config_file import configure
from tidemill.spark.pipelines.framework.topic_check import prepare_topics
from tidemill.spark.pipelines.logs.line_parsing import parse_lines
from tidemill.spark.pipelines.logs.settings import LogSettings
from tidemill.spark.pipelines.merging.batch_folders import BatchFolder
from tidemill.testing.broker_process import BrokerProcess

MINUTE_MS = 60_000
START_MS = 1_700_000_000_000 // MINUTE_MS * MINUTE_MS
RECORD_TIME = datetime(2023, 11, 14, 22, 14, tzinfo=UTC)
COMBINED = (
    '203.0.113.9 - ann [14/Nov/2023:22:13:20 +0000] "GET /a/b?c=d HTTP/1.1" 200 123 '
    '"https://x.example/" "Agent \\"quoted\\"" 0.250'
)


class InputCounter(StreamingQueryListener):
    """Counts the rows that a query has read from its source."""

    def __init__(self) -> None:
        self.rows = 0
        self.ended = threading.Event()

    def onQueryStarted(self, event) -> None: ...

    def onQueryIdle(self, event) -> None: ...

    def onQueryProgress(self, event) -> None:
        self.rows += event.progress.numInputRows

    def onQueryTerminated(self, event) -> None:
        self.ended.set()


# --- lines ---------------------------------------------------------------------------------------


def parsed(spark: SparkSession, lines: list[bytes | None], **settings) -> list[dict[str, object]]:
    frame = spark.createDataFrame(
        [(index, line, RECORD_TIME) for index, line in enumerate(lines)],
        "offset bigint, value binary, timestamp timestamp",
    ).coalesce(1)
    rows = parse_lines(frame, LogSettings(**settings)).orderBy("offset").collect()
    return [row.asDict() for row in rows]


def test_both_formats_give_the_same_typed_event(spark):
    as_json = json.dumps(
        {
            "time": "2023-11-14T22:13:20Z",
            "remote_addr": "203.0.113.9",
            "user": "ann",
            "request": "GET /a/b?c=d HTTP/1.1",
            "status": 200,
            "bytes": 123,
            "referer": "https://x.example/",
            "user_agent": 'Agent \\"quoted\\"',
            "latency_ms": 250.0,
        }
    )
    combined, other = parsed(spark, [COMBINED.encode(), as_json.encode()])

    for row in (combined, other):
        for name in ("offset", "value", "timestamp"):
            del row[name]
    assert combined == other
    assert combined == {
        "time": datetime(2023, 11, 14, 22, 13, 20),
        "client": "203.0.113.9",
        "user": "ann",
        "method": "GET",
        "path": "/a/b",
        "query": "c=d",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 123,
        "referer": "https://x.example/",
        "agent": 'Agent \\"quoted\\"',
        "latency_ms": 250.0,
        "reason": None,
    }


def test_poison_lines_get_a_reason_and_never_an_exception(spark):
    head = COMBINED.split('"')[0]
    cases = {
        None: "the record is empty",
        b"  ": "the record is empty",
        b"garbage": "neither",
        b"\xff\xfe" + COMBINED.encode(): "not UTF-8",
        b"{" + b'"a":' * 5_000: "neither",
        b"[" * 20_000: "neither",
        COMBINED.encode().replace(b"14/Nov", b"44/Nov"): "no time in: 44/Nov/2023",
        COMBINED.encode().replace(b" 200 ", b" 999 "): "no status in: 999",
        b'{"time": 1e300, "status": 200, "path": "/"}': "no time in: ",
        b'{"time": 1700000000, "status": 200}': "there is no path",
        b'{"time": 1800000000, "status": 200, "path": "/"}': "the time is more than 300 s ahead",
        f'{head}"{chr(92)}{chr(34)}'.encode() * 20_000: "longer than 65536 bytes",
        (head + '"' + '\\"' * 30_000).encode()[:65_536]: "neither",
        COMBINED.encode().replace(b"/a/b", b"/a\x01b"): "neither",
    }
    rows = parsed(spark, list(cases))

    found = [
        (row["reason"] or "none")[: len(reason)]
        for row, reason in zip(rows, cases.values(), strict=True)
    ]
    assert found == list(cases.values())


def test_common_log_format_and_odd_requests_are_events(spark):
    head = COMBINED.split('"')[0]
    rows = parsed(spark, [f'{head}"-" 408 -'.encode(), f'{head}"\\x16\\x03" 400 0'.encode()])

    assert [(row["reason"], row["status"], row["bytes"]) for row in rows] == [
        ("there is no path", 408, 0),
        (None, 400, 0),
    ]


# --- logs ----------------------------------------------------------------------------------------


def test_traffic_becomes_events_minutes_and_dead_letters(spark, running, topic, tmp_path):
    sent = traffic(6_000, START_MS, 50, partitions=2)
    create_topic(running.bootstrap, topic, 2)
    send(running.bootstrap, topic, sent.messages)

    run_once(spark, "logs", log_values(running.bootstrap, topic, tmp_path))

    places = {(m.partition, i // 2) for i, m in enumerate(sent.messages) if i not in sent.broken}
    assert sorted(offsets_in(tmp_path / "out/events")) == sorted(places)
    dead = records_of(running.bootstrap, f"{topic}.dead")
    assert len(dead) == len(sent.broken) > 3
    for record in dead:
        facts = headers_of(record)
        index = int(facts["tidemill.dead.offset"]) * 2 + int(facts["tidemill.dead.partition"])
        assert index in sent.broken
        assert (record.value, record.key) == (
            sent.messages[index].value,
            sent.messages[index].key,
        )
        assert facts["tidemill.dead.reason"]
        assert (facts["tidemill.dead.topic"], facts["tidemill.dead.attempt"]) == (topic, "1")

    minutes = [
        json.loads(record.value or b"")
        for record in records_of(running.bootstrap, f"{topic}.minutes")
    ]
    counted = {
        int(datetime.fromisoformat(m["start"]).timestamp()) // 60: (
            m["requests"],
            m["status_5xx"],
            m["bytes"],
        )
        for m in minutes
    }
    assert counted == {
        minute: (sent.requests[minute], sent.errors[minute], sent.size_bytes[minute])
        for minute in sorted(sent.requests)[:-1]
    }
    assert len(minutes) == 4

    events = dataset.dataset(tmp_path / "out/events", format="parquet").to_table().to_pylist()
    first = min(minutes, key=lambda m: m["start"])
    latencies = [
        e["latency_ms"] for e in events if e["time"].timestamp() * 1000 < START_MS + MINUTE_MS
    ]
    assert first["latency_p95_ms"] == rank(latencies, 0.95)
    assert first["top_paths"][0]["requests"] == max(p["requests"] for p in first["top_paths"])
    assert "<svg" in (tmp_path / "out/report.html").read_text()
    stored = dataset.dataset(tmp_path / "out/minutes", format="parquet").to_table().to_pylist()
    assert sorted(m["requests"] for m in stored) == sorted(m["requests"] for m in minutes)


def test_every_line_is_read_and_parsed_once(spark, running, topic, tmp_path):
    create_topic(running.bootstrap, topic)
    send(running.bootstrap, topic, traffic(300, START_MS, 50, partitions=1).messages)
    counter = InputCounter()
    spark.streams.addListener(counter)
    try:
        run_once(spark, "logs", log_values(running.bootstrap, topic, tmp_path))
        assert counter.ended.wait(30)
    finally:
        spark.streams.removeListener(counter)

    assert counter.rows == 300


def test_late_lines_are_counted_one_by_one_and_minutes_are_named_in_utc(
    spark, running, topic, tmp_path
):
    create_topic(running.bootstrap, topic)
    values = log_values(running.bootstrap, topic, tmp_path)
    times_s = [START_MS // 1000 + second for second in (0, 400, 1, 2)]
    first, far, late, unfinished = (
        Message(b'{"time": %d, "status": 200, "path": "/"}' % time_s) for time_s in times_s
    )
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        send(running.bootstrap, topic, [first, far])
        run_once(spark, "logs", values)
        send(running.bootstrap, topic, [late, unfinished] * 800 + [far] * 3)
        [stage] = run_once(spark, "logs", values)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    assert stage.late == 1_600
    [minute] = records_of(running.bootstrap, f"{topic}.minutes")
    assert (minute.key, json.loads(minute.value)["requests"]) == (b"2023-11-14T22:13:00Z", 1)
    [folder] = (tmp_path / "out/minutes").glob("date=*")
    assert folder.name == "date=2023-11-14"
    assert {path.name for path in (tmp_path / "out/events").glob("*/hour=*")} == {"hour=22"}


def test_a_dead_letter_that_comes_back_counts_its_attempts(spark, running, topic, tmp_path):
    create_topic(running.bootstrap, topic)
    headers = (("tidemill.dead.attempt", b"2"), ("mine", b"kept"))
    send(running.bootstrap, topic, [Message(b"garbage", headers=headers)])

    run_once(spark, "logs", log_values(running.bootstrap, topic, tmp_path))

    [record] = records_of(running.bootstrap, f"{topic}.dead")
    facts = headers_of(record)
    assert (facts["tidemill.dead.attempt"], facts["mine"]) == ("3", "kept")


def test_queries_add_nothing_to_the_environment_that_they_share(spark, running, topic, tmp_path):
    """Two queries that add to it at the same time damage it for the rest of the JVM's life."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    shared = sources.lookupDataSource("tidemill").dataSourceCls().envVars()
    for key in set(shared) - {"PYTHONPATH"}:  # as it is in a new JVM
        shared.remove(key)
    create_topic(running.bootstrap, topic)
    send(running.bootstrap, topic, [Message(COMBINED.encode())])

    session(quiet=True)
    before = set(shared)
    run_once(spark, "logs", log_values(running.bootstrap, topic, tmp_path))

    assert set(shared) == before


# --- enrich --------------------------------------------------------------------------------------


def test_enriched_records_keep_their_fields_and_get_the_row(spark, running, topic, tmp_path):
    (tmp_path / "table.csv").write_text("id,name,limit\n1,Ann,10\n2,Bob,20\n")
    create_topic(running.bootstrap, topic)
    values = [
        b'{"who": {"id": 1}, "n": 1.5, "list": [1, {"a": null}]}',
        b'{"who": {"id": 3}, "customer": "old"}',
        b"not json",
        b"[1]",
        b'{"who": {"id": "2"}, "n": 1, "n": 2}',
    ]
    send(running.bootstrap, topic, [Message(value, key=b"k") for value in values])

    run_once(spark, "enrich", enrich_values(running.bootstrap, topic, tmp_path))

    out = [
        json.loads(record.value or b"") for record in records_of(running.bootstrap, f"{topic}.out")
    ]
    assert out[0] == {
        "who": {"id": 1},
        "n": 1.5,
        "list": [1, {"a": None}],
        "customer": {"id": "1", "name": "Ann", "limit": "10"},
    }
    assert out[1] == {"who": {"id": 3}, "customer": None}
    assert len(out) == 2
    dead = records_of(running.bootstrap, f"{topic}.dead")
    assert [(r.value, headers_of(r)["tidemill.dead.reason"]) for r in dead] == [
        (b"not json", "not JSON"),
        (b"[1]", "not a JSON object"),
        (values[4], "the field 'n' is there twice"),
    ]


def test_a_table_with_a_duplicate_key_is_refused(spark, running, topic, tmp_path):
    (tmp_path / "table.csv").write_text("id,name\n1,Ann\n1,Bob\n")
    create_topic(running.bootstrap, topic)

    with pytest.raises(UserError, match="id=1 twice"):
        run_once(spark, "enrich", enrich_values(running.bootstrap, topic, tmp_path))


def test_a_missing_input_topic_is_refused_before_spark_starts(running):
    values = {"input.topic": "nowhere", "bootstrap": running.bootstrap}
    configured = configure(pipeline_kind("logs"), values)

    with pytest.raises(UserError, match="there is no topic nowhere"):
        prepare_topics(configured.kafka.address, configured.pipeline.topics())


def has_merged(folder: Path) -> bool:
    """Whether one merged folder is all that is in it."""
    names = [path.name for path in folder.iterdir()]
    return len(names) == 1 and BatchFolder.try_parse(names[0]).is_merged


# --- processes -----------------------------------------------------------------------------------


def test_a_killed_pipeline_continues_without_a_gap_merges_and_stops_cleanly_on_sigterm(
    new_broker, topic, tmp_path
):
    broker: BrokerProcess = new_broker("num.partitions=1")
    create_topic(broker.bootstrap, topic, 2)
    sent = traffic(6_000, START_MS, 2_000, partitions=2)  # three hours, in batches of 50 minutes
    send(broker.bootstrap, topic, sent.messages)
    values = log_values(broker.bootstrap, topic, tmp_path) | {
        "trigger.s": 0.1,
        "batch.rows.max": 1_500,
        "state.partitions": 1,
        "spark.driver.extraJavaOptions": SHORT_LIVED,
    }
    config = written(tmp_path / "logs.toml", "logs", values)
    events = tmp_path / "out/events"

    with PipelineProcess(tmp_path, config) as first:
        first.wait_until(lambda: len(offsets_in(events)) > 1_000)
        first.kill()
    assert len(offsets_in(events)) < sent.good

    with PipelineProcess(tmp_path, config) as second:
        second.wait_until(lambda: len(set(offsets_in(events))) == sent.good)
        second.wait_until(lambda: has_merged(events / "date=2023-11-14/hour=23"))
        assert second.terminate() == 0, second.log.read_text()[-3000:]

    found = offsets_in(events)
    assert len(found) == len(set(found)) == sent.good
    dead = {
        (facts["tidemill.dead.partition"], facts["tidemill.dead.offset"])
        for facts in map(headers_of, records_of(broker.bootstrap, f"{topic}.dead"))
    }
    assert dead == {(str(index % 2), str(index // 2)) for index in sent.broken}


def test_a_sigterm_while_spark_starts_ends_the_run_and_its_jvm(running, topic, tmp_path):
    create_topic(running.bootstrap, topic)
    config = written(tmp_path / "logs.toml", "logs", log_values(running.bootstrap, topic, tmp_path))

    with PipelineProcess(tmp_path, config) as pipeline:
        pipeline.wait_until(lambda: "java" in pipeline.living())
        assert pipeline.terminate() == 0, pipeline.log.read_text()[-3000:]
        assert pipeline.living() == []

    assert pipeline.log.read_text().splitlines()[-1] == "logs: ended"


def test_workers_of_a_cluster_get_the_package_with_the_job(running, topic, tmp_path):
    interpreter = python_without_tidemill(tmp_path)
    probe = [str(interpreter), "-c", "import pyarrow; import tidemill"]
    missing = subprocess.run(probe, capture_output=True, env=without_python_path(), check=False)
    assert b"No module named 'tidemill'" in missing.stderr
    (tmp_path / "table.csv").write_text("id,name\n1,Ann\n")
    create_topic(running.bootstrap, topic, 2)
    send(running.bootstrap, topic, [Message(b'{"who": {"id": 1}}', partition=n) for n in range(2)])
    values = enrich_values(running.bootstrap, topic, tmp_path) | {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.executor.memory": "512m",
    }
    config = written(tmp_path / "enrich.toml", "enrich", values)

    with (
        Cluster(tmp_path) as cluster,
        PipelineProcess(
            tmp_path,
            *(config, "--once", "--master", cluster.url),
            PYSPARK_PYTHON=str(interpreter),
        ) as pipeline,
    ):
        assert pipeline.wait() == 0, pipeline.log.read_text()[-3000:]

    out = [
        json.loads(record.value or b"") for record in records_of(running.bootstrap, f"{topic}.out")
    ]
    assert out == [{"who": {"id": 1}, "customer": {"id": "1", "name": "Ann"}}] * 2
