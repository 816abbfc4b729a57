from __future__ import annotations

import pytest

from tidemill.core.errors import UserError
from tidemill.spark.options.option_values import (
    parse_bootstrap,
    parse_duration_ms,
    parse_size_bytes,
)


@pytest.mark.parametrize(
    ("text", "length_ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("15 minutes", 900_000),
        ("2h", 7_200_000),
        ("1 day", 86_400_000),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text, length_ms):
    assert parse_duration_ms(text, "maxTriggerDelay") == length_ms


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("100", 100), ("64k", 65_536), ("8 MB", 8_388_608), ("1g", 1 << 30)]
)
def test_a_size_is_a_number_and_an_optional_unit(text, size_bytes):
    assert parse_size_bytes(text, "maxBytesPerTrigger") == size_bytes


def test_a_bootstrap_without_an_address_names_its_option():
    with pytest.raises(UserError, match="bootstrap needs 1 to 100 addresses"):
        parse_bootstrap(" , ", "bootstrap")
