from __future__ import annotations

import pytest

from tidemill.core.errors import UserError
from tidemill.spark.pipelines.framework.dead_letters import dead_letter_columns, room_bytes


def test_a_topic_that_takes_no_letter_at_all_is_refused_with_its_limit():
    with pytest.raises(UserError, match=r"max\.message\.bytes=1000 of the dead-letter topic"):
        dead_letter_columns(None, "logs", 1_000)


def test_a_record_leaves_room_for_headers_and_for_data_that_does_not_compress():
    bytes_max = 1_048_588

    assert bytes_max - room_bytes(bytes_max) > 2_048 + bytes_max // 100
