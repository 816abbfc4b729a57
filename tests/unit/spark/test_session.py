from __future__ import annotations

from tidemill.spark.session import SETTINGS, print_settings


def test_spark_rule_9_the_session_says_what_it_has_set(capsys):
    print_settings({key: value for key, (value, _) in SETTINGS.items()})
    said = capsys.readouterr().err
    for key, (value, reason) in SETTINGS.items():
        assert f"{key}={value} ({reason})" in said
    assert "garbage" in said
