from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import tidemill
from tidemill.core import compiled
from tidemill.core.compiled import HOT_LOOPS, REQUEST_PATH, is_compiled

PACKAGE = Path(tidemill.__file__).parent
SOURCE = PACKAGE.parent
CHECKOUT = SOURCE.parent


def source_of(module):
    return SOURCE / (module.replace(".", "/") + ".py")


def built_files(module):
    stem = source_of(module).with_suffix("")
    built = (stem.with_name(stem.name + suffix) for suffix in EXTENSION_SUFFIXES)
    return [path for path in built if path.exists()]


def test_every_hot_module_is_listed_and_has_its_types_or_a_native_twin():
    folder = PACKAGE / "hot"

    def modules(suffix: str) -> set[str]:
        found = (path.relative_to(PACKAGE.parent) for path in folder.rglob(f"*{suffix}"))
        return {".".join(path.with_suffix("").parts) for path in found if path.stem != "__init__"}

    typed, native = modules(".pxd"), modules(".pyx")
    assert set(HOT_LOOPS) == modules(".py") == typed | native
    assert not typed & native


@pytest.mark.parametrize("module", REQUEST_PATH)
def test_the_request_path_is_listed_once_and_exists(module):
    assert source_of(module).is_file()
    assert REQUEST_PATH.count(module) == 1


@pytest.mark.parametrize("module", [*HOT_LOOPS, *REQUEST_PATH])
def test_a_built_extension_is_not_older_than_its_source(module):
    source = source_of(module)
    sources = [source, *source.parent.glob(f"{source.stem}.p[xy][dx]")]
    for built in built_files(module):
        assert all(built.stat().st_mtime >= path.stat().st_mtime for path in sources), (
            f"{built.name} is stale: `make setup` builds it again, `make plain` removes it"
        )


def test_the_request_path_is_compiled_as_a_whole_or_not_at_all():
    assert len({is_compiled(module) for module in REQUEST_PATH}) == 1


def test_the_list_can_be_read_without_importing_the_package():
    imports = [
        node.module or ""
        for node in ast.walk(ast.parse(Path(compiled.__file__).read_text()))
        if isinstance(node, ast.ImportFrom)
    ]
    assert imports
    assert not [name for name in imports if name.startswith("tidemill")]


PROJECT = """
[project]
name = "tidemill"
version = "0"

[tool.setuptools.packages.find]
where = ["src"]
"""
SMALL_MODULE = """
def add(left: int, right: int) -> int:
    return left + right
"""
FAILING_COMPILER = "#!/bin/sh\nexit 1\n"
COMPILER_THAT_FAILS_ON_THE_LIBRARY = """#!/bin/sh
case "$*" in *__native_tidemill.*) exit 1 ;; esac
exec cc "$@"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "compiler",
    [FAILING_COMPILER, COMPILER_THAT_FAILS_ON_THE_LIBRARY],
    ids=["one that fails", "one that fails on the library"],
)
def test_a_build_without_a_working_compiler_succeeds_and_leaves_plain_python(tmp_path, compiler):
    # Given the build file, some sources of either kind, and a compiler
    for folder in ("core", "hot"):
        (tmp_path / "src/tidemill" / folder).mkdir(parents=True)
    hot = ["hot/varint.py", "hot/varint.pxd", "hot/disk_worker.py", "hot/disk_worker.pyx"]
    loops = hot if compiler == FAILING_COMPILER else []
    for name in loops:
        shutil.copy(PACKAGE / name, tmp_path / "src/tidemill" / name)
    for name in ("one", "two"):  # without imports: mypyc reads all that a module imports
        (tmp_path / f"src/tidemill/core/{name}.py").write_text(SMALL_MODULE)
    few = 'REQUEST_PATH = ("tidemill.core.one", "tidemill.core.two")\n'
    (tmp_path / "src/tidemill/core/compiled.py").write_text(few)
    shutil.copy(CHECKOUT / "setup.py", tmp_path)
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "compiler").write_text(compiler)
    (tmp_path / "compiler").chmod(0o755)
    left = tmp_path / f"src/tidemill/core/left{EXTENSION_SUFFIXES[0]}"
    left.write_text("of a module that is no longer compiled")

    # When the extensions are built in place
    command = [sys.executable, "-W", "ignore", "setup.py", "build_ext", "--inplace"]
    environment = os.environ | {"CC": str(tmp_path / "compiler")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)

    # Then the build succeeds, says what failed, and there is no extension
    assert done.returncode == 0, done.stderr
    assert 'building extension "tidemill__mypyc" failed' in done.stdout + done.stderr
    assert not list((tmp_path / "src").rglob("*.so"))
