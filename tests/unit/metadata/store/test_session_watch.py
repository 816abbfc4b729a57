from __future__ import annotations

import logging
from dataclasses import replace

from tidemill.metadata.store.session_files import SessionFile, is_ended, this_process
from tidemill.metadata.store.session_watch import SessionWatch
from tidemill.testing.manual_clock import ManualClock


def test_a_hung_process_of_another_container_is_reported_once_and_keeps_its_session(
    tmp_path, caplog
):
    directory = str(tmp_path)
    elsewhere = replace(this_process(), namespace="pid:[1]")
    held = SessionFile(directory, 7, elsewhere, now=0.0)
    watch = SessionWatch(directory, this_process(), ManualClock(), heard=lambda: None)
    watch.stop()
    with caplog.at_level(logging.ERROR):
        for number in range(10):
            watch._end_hung(100 + number / 5)
    assert ["another container" in line for line in caplog.messages] == [True]
    assert not is_ended(directory, 7)
    held.close()


def test_a_session_of_the_own_process_is_never_killed(tmp_path):
    directory = str(tmp_path)
    held = SessionFile(directory, 7, this_process(), now=0.0)
    watch = SessionWatch(directory, this_process(), ManualClock(), heard=lambda: None)
    watch.stop()
    for number in range(10):
        watch._end_hung(100 + number / 5)
    held.close()
