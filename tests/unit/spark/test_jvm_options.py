from __future__ import annotations

import pytest

from tidemill.spark.jvm_options import driver_options

KEY = "spark.driver.defaultJavaOptions"


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "with space" / "classes.jsa"
    path.parent.mkdir()
    path.write_bytes(b"classes")
    return path


def test_a_session_uses_the_class_archive_and_both_compilers(archive):
    options = driver_options({}, {}, archive, brief=False)[KEY]
    assert f'"-XX:SharedArchiveFile={archive}"' in options
    assert "TieredStopAtLevel" not in options


def test_a_brief_session_uses_only_the_first_compiler(archive):
    assert "-XX:TieredStopAtLevel=1" in driver_options({}, {}, archive, brief=True)[KEY]


def test_without_a_class_archive_no_option_names_it(tmp_path):
    assert driver_options({}, {}, tmp_path / "absent.jsa", brief=False) == {}
    options = driver_options({}, {}, tmp_path / "absent.jsa", brief=True)[KEY]
    assert options == "-XX:TieredStopAtLevel=1"


def test_default_options_of_the_user_stay_as_they_are(archive):
    assert driver_options({KEY: "-Dproxy=on"}, {}, archive, brief=True) == {}


@pytest.mark.parametrize("name", ["SPARK_HOME", "SPARK_CONF_DIR"])
def test_an_installation_of_spark_with_its_own_defaults_keeps_them(archive, name):
    assert driver_options({}, {name: "/opt/spark"}, archive, brief=True) == {}
