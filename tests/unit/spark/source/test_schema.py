from __future__ import annotations

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from tidemill.core.errors import UserError
from tidemill.spark.source.schema import check_schema


@pytest.mark.parametrize("name", ["key", "value"])
def test_a_column_that_may_be_empty_cannot_be_declared_not_null(name):
    with pytest.raises(UserError, match=f"column {name} must not be NOT NULL"):
        check_schema(StructType([StructField(name, BinaryType(), nullable=False)]))


def test_a_column_that_every_record_has_may_be_declared_not_null():
    check_schema(StructType([StructField("offset", LongType(), nullable=False)]))
