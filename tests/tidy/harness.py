"""Rules about the code around the product: tests, tools, benchmarks and foreign clients.

A rule takes the path of a file relative to the project and its syntax tree.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.source import Finding

USES_NO_TESTS = ("bench/", "interop/", "tools/", "examples/")


def imports_of_tests(path: str, tree: ast.Module) -> Iterator[Finding]:
    """What runs without the tests must not need them: a shared part belongs to tidemill.testing."""
    if not path.startswith(USES_NO_TESTS):
        return
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(name)) | ast.Import(names=[ast.alias(name=name)]):
                if name.split(".")[0] == "tests":
                    yield Finding(
                        path, node.lineno, f"imports `{name}`: move it to tidemill.testing"
                    )
