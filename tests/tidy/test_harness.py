"""The code around the product keeps its own few rules."""

from __future__ import annotations

from tests.support.schedule import TOGETHER, stays_with
from tests.tidy.harness import annotated_test, imports_of_tests, second_runner
from tests.tidy.source import assert_none, harness_trees


def test_what_runs_without_the_tests_does_not_import_them():
    assert_none(found for path, tree in harness_trees() for found in imports_of_tests(path, tree))


def test_coroutines_run_by_the_run_fixture():
    assert_none(found for path, tree in harness_trees() for found in second_runner(path, tree))


def test_test_functions_carry_no_annotations():
    assert_none(found for path, tree in harness_trees() for found in annotated_test(path, tree))


def test_a_worker_runs_whole_files_and_all_of_spark():
    files = {stays_with(f"tests/{path}") for path in ("a.py::one", "a.py::two[a::b]", "b.py::one")}
    assert files == {"tests/a.py", "tests/b.py"}
    assert {stays_with(f"{TOGETHER}{name}.py::one") for name in ("a", "b")} == {TOGETHER}
