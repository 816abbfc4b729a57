"""Text files hold nothing of one machine, and documents claim only what a test proves."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.tidy.documents import (
    broken_links,
    decision_numbers,
    leftovers,
    lock_lines,
    machine_paths,
    missing_files,
    missing_rows,
    numbers_of_tests,
    pure_list,
    registry_hosts,
    stale_folder_map,
    unproven_claims,
)
from tests.tidy.layers import PURE
from tests.tidy.source import PACKAGE, ROOT, assert_none, project_files, text_of
from tools.folder_map import heads_of_folders
from tools.requirement_table import NUMBERS, meanings

ARCHITECTURE = ROOT / "ARCHITECTURE.md"
FAMILY_SIZES = {"F": 137, "T": 62, "S": 56, "I": 45, "R": 18}


def _texts(suffix: str = "", *, under: str = ""):
    for path in project_files():
        name = path.relative_to(ROOT).as_posix()
        if name.endswith(suffix) and name.startswith(under):
            text = text_of(path)
            if text is not None:
                yield name, text


def _documents():
    for name, text in _texts(".md"):
        if name in {"README.md", "ARCHITECTURE.md"} or name.startswith("docs/"):
            yield name, text


@pytest.mark.parametrize(
    "rule", [leftovers, machine_paths, registry_hosts], ids=lambda rule: rule.__name__
)
def test_no_file_holds_what_does_not_belong_there(rule):
    assert_none(found for name, text in _texts() for found in rule(name, text))


def test_no_file_cites_a_decision_by_a_number_that_nothing_explains():
    assert_none(found for name, text in _texts() for found in decision_numbers(name, text))


def test_S56_locks_hold_names_versions_and_hashes_only():
    locks = list(_texts(".txt", under="requirements/"))
    assert len(locks) >= 3
    assert_none(found for name, text in locks for found in lock_lines(name, text))


def test_S56_locks_cover_everything_that_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    asked = {
        "build": project["build-system"]["requires"],
        "runtime": project["project"]["dependencies"],
    }
    for lock, requirements in asked.items():
        pinned = set(
            re.findall(r"^([\w.-]+)==", (ROOT / f"requirements/{lock}.txt").read_text(), re.M)
        )
        names = {re.match(r"[\w.-]+", line).group().lower() for line in requirements}
        assert names <= pinned, f"requirements/{lock}.txt lacks {names - pinned}: run `make lock`"


def test_links_between_documents_lead_somewhere():
    assert_none(found for name, text in _texts(".md") for found in broken_links(name, text))


def test_files_that_documents_name_exist():
    files = [path.relative_to(ROOT).as_posix() for path in project_files()]
    assert_none(found for name, text in _documents() for found in missing_files(name, text, files))


def test_folder_map_of_the_architecture_is_made_of_the_heads_of_the_folders():
    assert_none(stale_folder_map("ARCHITECTURE.md", ARCHITECTURE.read_text(), heads_of_folders()))


def test_every_folder_has_a_head():
    folders = {path.parent for path in PACKAGE.rglob("*.py")} - {PACKAGE}
    heads = heads_of_folders()
    lacking = {path.relative_to(PACKAGE).as_posix() for path in folders} - {
        folder for folder, head in heads.items() if head
    }
    assert not lacking, f"write one or two lines in the __init__.py of {sorted(lacking)}"


def test_architecture_calls_pure_what_is_checked_to_be_pure():
    assert_none(pure_list("ARCHITECTURE.md", ARCHITECTURE.read_text(), PURE))


def test_page_of_the_hot_loops_names_every_module():
    name = "docs/internals/hot.md"
    hot_loops = {path.stem for path in (PACKAGE / "hot").glob("*.py")} - {"__init__"}
    assert_none(missing_rows(name, (ROOT / name).read_text(), hot_loops))


def test_numbers_page_explains_every_number_once():
    text = NUMBERS.read_text()
    known = meanings(text)
    expected = [f"{letter}{n}" for letter, last in FAMILY_SIZES.items() for n in range(1, last + 1)]
    assert sorted(known) == sorted(expected)
    assert len(re.findall(r"^\| [FTSIR]\d+ \|", text, re.M)) == len(expected)


def test_every_number_that_a_document_claims_has_a_test():
    known = meanings(NUMBERS.read_text())
    proven = numbers_of_tests((ROOT / "tests").rglob("test_*.py"))
    assert_none(
        found
        for name, text in _documents()
        if ROOT / name != NUMBERS
        for found in unproven_claims(name, text, known=known, proven=proven)
    )


def test_every_number_in_a_test_name_is_explained():
    known = meanings(NUMBERS.read_text())
    unknown = numbers_of_tests((ROOT / "tests").rglob("test_*.py")) - set(known)
    assert not unknown, f"docs/reference/numbers.md does not explain {sorted(unknown)}"
