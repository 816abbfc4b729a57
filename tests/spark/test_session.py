from __future__ import annotations

import os
import shlex

from tidemill.spark.jvm_options import OPTIONS_KEY, class_archive, driver_options


def test_the_jvm_of_a_session_has_our_options(spark):
    expected = driver_options({}, os.environ, class_archive(), brief=True)
    factory = spark.sparkContext._jvm.java.lang.management.ManagementFactory
    arguments = list(factory.getRuntimeMXBean().getInputArguments())
    assert set(shlex.split(expected.get(OPTIONS_KEY, ""))) <= set(arguments)
