from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from tests.unit.hot.flavours import HOT_FOLDER
from tidemill import hot

CHECKOUT = HOT_FOLDER.parents[2]


def test_every_hot_module_is_listed_and_has_its_types():
    sources = {path.stem for path in HOT_FOLDER.glob("*.py")} - {"__init__"}
    assert set(hot.MODULES) == sources == {path.stem for path in HOT_FOLDER.glob("*.pxd")}


@pytest.mark.parametrize("name", hot.MODULES)
def test_a_built_extension_is_not_older_than_its_source(name):
    for suffix in EXTENSION_SUFFIXES:
        built = HOT_FOLDER / f"{name}{suffix}"
        if not built.exists():
            continue
        for source in (HOT_FOLDER / f"{name}.py", HOT_FOLDER / f"{name}.pxd"):
            assert built.stat().st_mtime >= source.stat().st_mtime, (
                f"rebuild: {built.name} is stale"
            )


@pytest.mark.slow
def test_a_build_without_a_working_compiler_succeeds_and_leaves_plain_python(tmp_path):
    # Given the build file and the sources alone, and a compiler that always fails
    target = tmp_path / "src" / "tidemill" / "hot"
    shutil.copytree(HOT_FOLDER, target, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(CHECKOUT / "setup.py", tmp_path)
    environment = os.environ | {"CC": "/bin/false"}

    # When the extensions are built in place
    command = [sys.executable, "-W", "ignore", "setup.py", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    # Then the build succeeds and there is no extension
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("*.so"))
