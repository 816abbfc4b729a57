"""What `import tidemill` offers, and what it costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tidemill


def test_every_public_name_leads_to_an_object_of_that_name():
    for name in set(tidemill.__all__) - {"__version__"}:
        assert getattr(tidemill, name).__name__ == name
        assert name in dir(tidemill)


def test_every_public_name_is_documented():
    documented = set(re.findall(r"^`(\w+)` ", tidemill.__doc__, re.M))
    assert documented == set(tidemill.__all__)


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        _ = tidemill.nothing


def test_version_is_a_release_number():
    assert re.fullmatch(r"\d+\.\d+\.\d+", tidemill.__version__)


def test_import_alone_loads_no_other_module_of_ours():
    code = "import sys, tidemill; print([name for name in sys.modules if 'tidemill.' in name])"
    source = Path(tidemill.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.fspath(source)},
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout.strip() == "[]"
