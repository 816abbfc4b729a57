from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tidemill.core.errors import UserError
from tidemill.spark.pipelines.catalogue import PIPELINES, pipeline_kind
from tidemill.spark.pipelines.framework.config_file import (
    beside_file,
    configure,
    key_rows,
    parse_file,
    template,
)

EACH = pytest.mark.parametrize("kind", PIPELINES, ids=lambda kind: kind.name)


@EACH
def test_the_file_that_init_writes_is_the_defaults(kind):
    values = parse_file(template(kind), source="template")

    written = configure(kind, values)
    plain = configure(kind, {})
    assert (written.run, written.spark) == (plain.run, plain.spark)
    assert written.pipeline.topics() == plain.pipeline.topics()
    assert set(values) == {"pipeline", *(made.key for made, _ in key_rows(kind))}


@EACH
def test_every_key_is_explained_above_its_value(kind):
    lines = template(kind).splitlines()

    for made, _ in key_rows(kind):
        [index] = [n for n, line in enumerate(lines) if line.startswith(f"{made.key} = ")]
        assert lines[index - 1].startswith("# ")


@EACH
def test_no_key_of_a_pipeline_hides_a_shared_one(kind):
    keys = [made.key for made, _ in key_rows(kind)]

    assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"input.topik": "x"}, "no key 'input.topik'; did you mean input.topic?"),
        ({"triger.s": 1}, "did you mean trigger.s?"),
        ({"trigger.s": "soon"}, "trigger.s='soon': expected a number from 0.1 to 86400"),
        ({"input.format": "xml"}, "expected one of auto, combined, json"),
        ({"pipeline": "enrich"}, "the file is for pipeline enrich, not for logs"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_a_wrong_key_or_value_is_refused_with_what_would_be_right(values, words):
    with pytest.raises(UserError) as refused:
        configure(pipeline_kind("logs"), values)

    assert words in str(refused.value)


def test_tables_and_dotted_keys_are_the_same_key():
    table = parse_file('[input]\ntopic = "a"\n[spark.executor]\nmemory = "2g"\n', source="f")

    configured = configure(pipeline_kind("logs"), table, {"trigger.s": "2"})

    assert configured.pipeline.topics().inputs == ("a",)
    assert configured.run.trigger_s == 2.0
    assert configured.spark == {"spark.executor.memory": "2g"}


def test_lists_and_flags_are_written_as_toml_has_them():
    values = parse_file('table.columns = ["a", "b"]\nspark.eventLog.enabled = true\n', source="f")

    assert values["table.columns"] == "a,b"
    assert configure(pipeline_kind("enrich"), values).spark == {"spark.eventLog.enabled": "true"}


def test_text_that_is_not_toml_is_refused_with_its_place():
    with pytest.raises(UserError, match=r"f\.toml: .*line 1"):
        parse_file("a = = b", source="f.toml")


def test_an_unknown_pipeline_is_refused_with_the_near_one():
    with pytest.raises(UserError, match="did you mean logs"):
        pipeline_kind("log")


@EACH
def test_templates_are_toml(kind):
    assert tomllib.loads(template(kind))["pipeline"] == kind.name


@EACH
def test_the_example_is_what_init_writes(kind):
    example = Path(__file__).parents[5] / "examples" / "pipelines" / f"{kind.name}.toml"

    assert example.read_text() == template(kind)


def test_relative_paths_of_a_file_begin_at_its_folder():
    values = {"table.file": "t.csv", "bootstrap": "b:1"}

    found = beside_file(pipeline_kind("enrich"), values, Path("/srv/jobs"))

    assert found == values | {
        "checkpoint.dir": "/srv/jobs/checkpoints",
        "table.file": "/srv/jobs/t.csv",
    }


@pytest.mark.parametrize("path", ["/var/x", "hdfs://host/x", "s3a://bucket/x", "file:/x"])
def test_other_paths_stay(path):
    found = beside_file(pipeline_kind("logs"), {"output.dir": path}, Path("/srv"))

    assert found["output.dir"] == path


def test_kafka_options_go_to_the_side_that_knows_them():
    table = parse_file(
        "[kafka]\nisolation.level = 'read_committed'\ncompression.type = 'zstd'\n"
        "security.protocol = 'PLAINTEXT'\nlinger.ms = 5\n",
        source="f",
    )

    kafka = configure(pipeline_kind("logs"), table, {"bootstrap": "b:1"}).kafka

    both = {"kafka.bootstrap.servers": "b:1", "kafka.security.protocol": "PLAINTEXT"}
    assert kafka.source == both | {"kafka.isolation.level": "read_committed"}
    assert kafka.sink == both | {"kafka.compression.type": "zstd", "kafka.linger.ms": "5"}


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("kafka.compression.typ", "zstd", "did you mean kafka.compression.type?"),
        ("kafka.compression.type", "zip", "kafka.compression.type=zip: use one of"),
        ("kafka.isolation.level", "none", "kafka.isolation.level=none"),
        ("kafka.bootstrap.servers", "b:1", "use the key bootstrap"),
        ("kafka.group.id", "g", "use the key group"),
    ],
)
def test_a_kafka_option_that_is_wrong_is_refused_before_spark_starts(key, value, words):
    with pytest.raises(UserError) as refused:
        configure(pipeline_kind("logs"), {key: value})

    assert words in str(refused.value)
