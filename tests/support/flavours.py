"""Loads a hot module compiled or as plain `.py`, so that each case runs both ways (ADR 0005)."""

from __future__ import annotations

import importlib
import importlib.util
import os
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from tidemill import hot
from tidemill.core.compiled import is_compiled

FLAVOURS = ("compiled", "pure")
HOT_FOLDER = Path(hot.__file__).parent


def load(flavour: str, name: str) -> ModuleType:
    return _load_pure(name) if flavour == "pure" else _load_compiled(name)


def _load_compiled(name: str) -> ModuleType:
    if not is_compiled(f"tidemill.hot.{name}"):
        if os.environ.get("CI") == "true":
            pytest.fail(f"tidemill.hot.{name} is not compiled")
        pytest.skip(f"tidemill.hot.{name} is not compiled")
    return importlib.import_module(f"tidemill.hot.{name}")


@cache
def _load_pure(name: str) -> ModuleType:
    path = HOT_FOLDER.joinpath(*name.split(".")).with_suffix(".py")
    spec = importlib.util.spec_from_file_location(f"pure_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
