from __future__ import annotations

from tests.unit.cli.reference import PATH, render


def test_the_reference_page_says_what_the_commands_say():
    assert PATH.read_text(encoding="utf-8") == render(), (
        "run `python -m tests.unit.cli.reference` and look at the difference"
    )
