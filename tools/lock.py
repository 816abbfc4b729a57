"""Pin every dependency by version and hash: `make lock`.

The sources are `pyproject.toml` (what the broker needs, and what building it needs) and
`requirements/*.in`; the results are `requirements/*.txt`. A result holds names, versions and
hashes and nothing else: no index, no address and no path of the machine that made it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

__all__ = ["without_origins"]

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
LOCKS = (
    "build",
    "runtime",
    "dev",
    "spark",
    "bench",
    "docs",
    "lock",
)  # later ones are constrained by earlier ones
COMPILE_OPTIONS = (
    "--generate-hashes",
    "--allow-unsafe",  # pip and setuptools are pinned like everything else
    "--strip-extras",
    "--no-header",
    "--no-annotate",
    "--no-emit-index-url",
    "--no-emit-trusted-host",
    "--no-emit-find-links",
    "--no-emit-options",
    "--quiet",
)
HEADER = "# Made by `make lock` from {source}; do not edit.\n\n"


def main() -> None:
    for name in LOCKS:
        lock(name)
        print(f"requirements/{name}.txt")


def lock(name: str) -> None:
    source, lines = _source(name)
    # pip-compile writes the path of its input into the result; a neutral one keeps ours out.
    with tempfile.TemporaryDirectory() as scratch:
        source_file = Path(scratch) / f"{name}.in"
        source_file.write_text("".join(f"{line}\n" for line in lines))
        target = REQUIREMENTS / f"{name}.txt"
        compiled = Path(scratch) / f"{name}.txt"
        if target.exists():
            compiled.write_text(target.read_text())  # what still fits stays as it is
        _pip_compile(source_file, compiled)
        target.write_text(HEADER.format(source=source) + without_origins(compiled.read_text()))


def _source(name: str) -> tuple[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if name == "build":
        return "pyproject.toml (build-system)", project["build-system"]["requires"]
    if name == "runtime":
        return "pyproject.toml (dependencies)", project["project"]["dependencies"]
    if name in project["project"]["optional-dependencies"]:
        constraints = [f"-c {REQUIREMENTS}/{lock}.txt" for lock in ("runtime", "dev")]
        extra = project["project"]["optional-dependencies"][name]
        return f"pyproject.toml (optional-dependencies, {name})", [*constraints, *extra]
    source_file = REQUIREMENTS / f"{name}.in"
    lines = source_file.read_text().splitlines()
    return f"requirements/{name}.in", [
        line.replace("-c ", f"-c {REQUIREMENTS}/") if line.startswith("-c ") else line
        for line in lines
    ]


def _pip_compile(source: Path, target: Path) -> None:
    command = [sys.executable, "-m", "piptools", "compile", *COMPILE_OPTIONS, *sys.argv[1:]]
    subprocess.run([*command, f"--output-file={target}", str(source)], check=True)


def without_origins(lock_text: str) -> str:
    """The requirement and hash lines alone: every option and comment line is dropped."""
    kept = [
        line
        for line in lock_text.splitlines()
        if line.startswith("    --hash=") or (line and line[0].isalnum())
    ]
    return "\n".join(kept) + "\n"


if __name__ == "__main__":
    main()
