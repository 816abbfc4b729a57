"""A stand-by where locks may not hold between hosts."""

from __future__ import annotations

import pytest

from tidemill.broker import standby
from tidemill.broker.data_plane import LOGS_DIRECTORY
from tidemill.core.config.broker_config import broker_config
from tidemill.storage.directory.log_directory import LOCK_NAME

DOUBT = "its locks must hold between hosts"


@pytest.mark.parametrize(("kind", "is_doubted"), [("nfs4", True), (None, False)])
def test_F85_a_standby_warns_where_locks_may_mean_nothing_to_another_host(
    run, tmp_path, monkeypatch, caplog, kind, is_doubted
):
    monkeypatch.setattr(standby, "try_find_foreign", lambda _directory: kind)
    (tmp_path / LOGS_DIRECTORY).mkdir()
    (tmp_path / LOGS_DIRECTORY / LOCK_NAME).touch()
    config = broker_config(flags=[f"data.dir={tmp_path}"])
    lock = run(standby.take_directory(config))
    lock.close()
    assert (DOUBT in caplog.text) is is_doubted
