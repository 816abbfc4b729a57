from __future__ import annotations

import pytest

from tidemill.core.errors import UserError
from tidemill.spark.pipelines.catalogue import pipeline_kind
from tidemill.spark.pipelines.framework.checkpoint import CheckpointTerms, PipelineCheckpoint
from tidemill.spark.pipelines.framework.config_file import configure


def begun(folder, stage="events") -> PipelineCheckpoint:
    """A checkpoint whose first batch has begun."""
    (folder / "logs" / stage / "offsets").mkdir(parents=True)
    (folder / "logs" / stage / "offsets" / "0").touch()
    return PipelineCheckpoint(str(folder), "logs")


def log_terms(**values: object) -> CheckpointTerms:
    given = {key.replace("_", "."): value for key, value in values.items()}
    return configure(pipeline_kind("logs"), given).pipeline.checkpoint_terms()


def test_a_changed_setting_that_belongs_to_the_checkpoint_is_refused_with_both_values(tmp_path):
    PipelineCheckpoint(str(tmp_path), "logs").held().__enter__()
    PipelineCheckpoint(str(tmp_path), "logs").bind(log_terms(window_s=60))
    checkpoint = begun(tmp_path)

    with pytest.raises(UserError, match=r"made with window\.s=60, and window\.s is 300 now"):
        checkpoint.bind(log_terms(window_s=300))
    checkpoint.bind(log_terms(window_s=60, window_late_s=5))


def test_a_checkpoint_that_no_batch_has_used_takes_new_settings(tmp_path):
    checkpoint = PipelineCheckpoint(str(tmp_path), "logs")
    with checkpoint.held():
        checkpoint.bind(log_terms(window_s=60))
        checkpoint.bind(log_terms(window_s=300))

    with pytest.raises(UserError, match=r"window\.s=300"):
        begun(tmp_path).bind(log_terms(window_s=60))


def test_a_checkpoint_of_the_two_queries_of_an_earlier_version_is_refused_in_one_sentence(tmp_path):
    begun(tmp_path, "minutes")

    with pytest.raises(UserError, match="made by another version of this pipeline"):
        begun(tmp_path).bind(log_terms())


def test_an_old_checkpoint_of_a_pipeline_that_has_not_changed_is_continued(tmp_path):
    terms = configure(pipeline_kind("enrich"), {}).pipeline.checkpoint_terms()

    begun(tmp_path, "records").bind(terms)
    begun(tmp_path, "other").bind(terms)


def test_a_damaged_file_of_settings_is_named(tmp_path):
    checkpoint = begun(tmp_path)
    (tmp_path / "logs/settings.json").write_text("[]")

    with pytest.raises(UserError, match=r"settings\.json is damaged"):
        checkpoint.bind(log_terms())


def test_a_second_run_on_one_checkpoint_is_refused_until_the_first_ends(tmp_path):
    first, second = (PipelineCheckpoint(str(tmp_path), "logs") for _ in range(2))

    with first.held(), pytest.raises(UserError, match="another run uses the checkpoint"):
        second.held().__enter__()
    with second.held():
        pass


def test_the_text_of_a_failure_is_kept_where_the_message_says(tmp_path):
    checkpoint = begun(tmp_path)

    where = checkpoint.keep_failure("a long \ud800 trace")

    assert where == f"all of it is in {tmp_path}/logs/failure.txt"
    assert "trace" in (tmp_path / "logs/failure.txt").read_text()


@pytest.mark.parametrize("location", ["hdfs://host/dir", "s3a://bucket/dir"])
def test_storage_that_is_not_local_is_left_alone(location):
    checkpoint = PipelineCheckpoint(location, "logs")

    with checkpoint.held():
        checkpoint.bind(log_terms())
    assert checkpoint.keep_failure("x") == "--verbose shows more"


def test_a_local_address_is_a_path(tmp_path):
    with PipelineCheckpoint(f"file://{tmp_path}", "logs").held():
        assert (tmp_path / "logs/run.lock").exists()
