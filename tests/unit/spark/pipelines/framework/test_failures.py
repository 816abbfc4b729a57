"""The texts are shortened from what Spark 4.3 says when a batch function fails."""

from __future__ import annotations

import pytest

from tidemill.spark.pipelines.framework.failures import QueryFailure, failure_of

WRAPPED = """\
[STREAM_FAILED] Query [id = 3, runId = 6] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach \
batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most \
recent call last):
  File "py4j/clientserver.py", line 644, in _call_proxy
    raise converted from None
{cause}
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Current Available Offsets: {{tidemill.x.UserError: not this}}
"""


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (
            "pyspark.errors.exceptions.captured.PythonException: thrown from the worker:\n"
            "Traceback (most recent call last):\n"
            "    raise BrokerUnreachable(f'cannot') from error\n"
            "tidemill.client.network.errors.BrokerUnreachable: cannot write to topic x: refused",
            QueryFailure("BrokerUnreachable: cannot write to topic x: refused", True, False),
        ),
        (
            "tidemill.core.errors.UserError: option kafka.bla is not known to the sink",
            QueryFailure("option kafka.bla is not known to the sink", True, True),
        ),
        (
            "pyspark.errors.exceptions.captured.ArithmeticException: [ARITHMETIC_OVERFLOW] "
            "overflow. SQLSTATE: 22003",
            QueryFailure("ArithmeticException: [ARITHMETIC_OVERFLOW] overflow.", False, False),
        ),
        (
            "py4j.protocol.Py4JJavaError: An error occurred while calling o22156.parquet.\n"
            ": org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed "
            "(host executor driver): java.io.IOException: Mkdirs failed to create file:/p\n"
            "\tat org.apache.hadoop.fs.ChecksumFileSystem.create(ChecksumFileSystem.java:774)",
            QueryFailure("IOException: Mkdirs failed to create file:/p", False, False),
        ),
        ("OSError: disk full", QueryFailure("OSError: disk full", False, False)),
    ],
    ids=("outage", "mistake", "arithmetic", "disk", "python"),
)
def test_the_cause_is_found_behind_all_wrappers(cause, expected):
    assert failure_of(WRAPPED.format(cause=cause)) == expected


def test_a_text_without_an_error_gives_its_first_line():
    assert failure_of("\n  boom\nmore").reason == "boom"
    assert failure_of("").reason == "no reason was given"


def test_a_long_sentence_is_cut():
    assert len(failure_of(f"OSError: {'x' * 10_000}").reason) < 600
