from __future__ import annotations

from tests.unit.cli.reference import PATH, render


def test_the_reference_page_matches_the_help_of_the_commands():
    assert PATH.read_text(encoding="utf-8") == render(), (
        "run `python -m tests.unit.cli.reference` and look at the difference"
    )
