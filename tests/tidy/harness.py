"""Rules about the code around the product: tests, tools, benchmarks and foreign clients.

A rule takes the path of a file relative to the project and its syntax tree.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.banned import resolved_names
from tests.tidy.source import Finding

RUNNERS = frozenset({"asyncio.run", "asyncio.Runner"})
MAY_RUN = (
    "tests/support/coroutines.py",
    "tests/e2e/group_members.py",  # a program of its own
)
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


def second_runner(path: str, tree: ast.Module) -> Iterator[Finding]:
    """One way to run a coroutine in a test, so that a change to it reaches every test."""
    if not path.startswith("tests/") or path in MAY_RUN:
        return
    for node, name in resolved_names(tree):
        if name in RUNNERS:
            yield Finding(
                path, getattr(node, "lineno", 1), f"`{name}`: take the `run` fixture as an argument"
            )


def annotated_test(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Test functions carry no annotations: pytest calls them, and mypy does not check them."""
    if not path.startswith("tests/"):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_annotated_test(node):
            yield Finding(path, node.lineno, f"`{node.name}` has annotations: drop them")


def _is_annotated_test(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    if not node.name.startswith("test_"):
        return False
    arguments = (part for part in ast.walk(node.args) if isinstance(part, ast.arg))
    return node.returns is not None or any(argument.annotation for argument in arguments)
