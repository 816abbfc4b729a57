"""The tools of the working copy, where a mistake would go unnoticed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.tidy.source import ROOT
from tidemill.core.compiled import REQUEST_PATH
from tools import walk
from tools.lock import without_origins


def _setup_env(folder: Path, *, ci: str) -> subprocess.CompletedProcess[str]:
    """Run it where there is nothing but Python: no compiler, no kcat, no apt-get."""
    for name, target in {"python3": Path(sys.executable), "bash": Path("/bin/bash")}.items():
        (folder / name).symlink_to(target)
    (folder / "id").write_text("#!/bin/bash\necho 1000\n")
    (folder / "id").chmod(0o755)
    return subprocess.run(
        ["/bin/bash", ROOT / "tools/setup_env", "base"],
        env={"PATH": os.fspath(folder), "CI": ci},
        capture_output=True,
        text=True,
        check=False,
    )


def test_lock_keeps_requirements_and_hashes_and_drops_every_other_line():
    compiled = (
        "--index-url https://example.invalid\n# via x\n\nclick==8.1 \\\n    --hash=sha256:00\n"
    )
    assert without_origins(compiled) == "click==8.1 \\\n    --hash=sha256:00\n"


def test_missing_tool_is_named_in_one_line_and_the_set_up_goes_on(tmp_path):
    done = _setup_env(tmp_path, ci="")
    assert done.returncode == 0, done.stderr
    for tool in ("gcc", "kcat", "bindfs"):
        assert sum(f"setup: {tool} is missing" in line for line in done.stderr.splitlines()) == 1


def test_missing_tool_is_a_failure_in_ci(tmp_path):
    assert _setup_env(tmp_path, ci="true").returncode != 0


def test_make_watches_the_sources_of_every_compiled_module(require_tool):
    show = "show: ; @echo $(PATH_SOURCES)"
    done = subprocess.run(
        [require_tool("make"), "--silent", f"--eval={show}", f"PYTHON={sys.executable}", "show"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if not key.startswith("MAKE")},
        capture_output=True,
        text=True,
        check=True,
    )
    watched = {f"src/{name.replace('.', '/')}.py" for name in REQUEST_PATH}
    assert set(done.stdout.split()) == {*watched, "src/tidemill/core/compiled.py"}


def test_ci_runs_on_every_python_that_the_project_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(project["project"]["classifiers"]))
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    assert re.findall(r'"(3\.\d+)"', workflow) == named
    assert "run: .ci/run" in workflow


def test_hooks_before_a_commit_call_tools_of_the_working_copy():
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    commands = re.findall(r"entry: (\S+)", hooks)
    assert commands
    assert all(command.startswith(".venv/bin/") for command in commands)
    assert hooks.count("repo: ") == hooks.count("repo: local")


WALK = [
    ("server/connection/connection.py", "Connection.get_buffer"),
    ("wire/primitives.py", "Reader.__init__"),
    ("wire/primitives.py", "Reader.text"),
    ("wire/primitives.py", "Reader.text"),
    ("server/request/dispatch.py", "Dispatcher.find"),
    ("server/connection/connection.py", "Connection._start.<locals>.<lambda>"),
]


def test_walk_counts_hops_files_and_changes_of_place():
    assert walk.count(WALK) == walk.Counts(hops=5, files=3, folder_changes=3, package_changes=2)


def test_walk_is_listed_by_file():
    assert walk.listing(WALK) == (
        "server/connection/connection.py: Connection.get_buffer\n"
        "wire/primitives.py: Reader, Reader.text\n"
        "server/request/dispatch.py: Dispatcher.find\n"
        "server/connection/connection.py: _start's lambda\n"
    )
