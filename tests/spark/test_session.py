from __future__ import annotations

import logging
import os
import shlex

import pytest
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from tidemill.spark.jvm_options import OPTIONS_KEY, class_archive, driver_options
from tidemill.spark.pipelines.framework.execution import quiet_loggers


def test_the_jvm_of_a_session_has_our_options(spark):
    expected = driver_options({}, os.environ, class_archive(), brief=True)
    factory = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    arguments = list(factory.getRuntimeMXBean().getInputArguments())
    assert set(shlex.split(expected.get(OPTIONS_KEY, ""))) <= set(arguments)


class Printed(logging.Handler):
    """What a logger would print."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@pytest.mark.parametrize(
    ("logger_name", "failing"),
    [
        ("SQLQueryContextLogger", lambda spark: spark.sql("SELECT 1 / 0")),
        ("DataFrameQueryContextLogger", lambda spark: spark.range(1).selectExpr("id").select("x")),
    ],
)
def test_a_pipeline_does_not_print_the_errors_that_spark_raises(spark, logger_name, failing):
    printed = Printed()

    def fail() -> None:
        with pytest.raises(PySparkException):
            failing(spark).collect()

    with quiet_loggers():
        fail()
        logger = PySparkLogger.getLogger(logger_name)
        logger.addHandler(printed)
        fail()
    try:
        assert printed.lines == []
        fail()
        assert len(printed.lines) == 1, "as Spark does without us"
    finally:
        logger.removeHandler(printed)
