"""Runs a module with the request path as plain Python, also where it is compiled.

    python -m tests.support.interpreted MODULE [ARGUMENT ...]

Bugs cannot be planted in compiled code. An import finder takes the source of each module of the
request path, so nothing has to be removed or built again.
"""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from tidemill.core.compiled import REQUEST_PATH

SOURCES = Path(__file__).parents[2] / "src"


class SourceFinder(MetaPathFinder):
    """Finds the modules of the request path by their sources."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in REQUEST_PATH:
            return None
        source = SOURCES.joinpath(*fullname.split(".")).with_suffix(".py")
        return importlib.util.spec_from_file_location(fullname, source)


def main() -> None:
    loaded = [name for name in REQUEST_PATH if name in sys.modules]
    assert not loaded, f"{loaded[0]} is imported already"
    sys.meta_path.insert(0, SourceFinder())
    module, *sys.argv[1:] = sys.argv[1:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
