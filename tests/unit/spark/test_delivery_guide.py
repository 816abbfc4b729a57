from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_every_test_that_the_guide_names_exists():
    named = NAMED.findall((ROOT / "docs/guides/delivery.md").read_text())
    missing = [
        (file, name)
        for file, name in named
        if not (ROOT / file).exists() or f"def {name}(" not in (ROOT / file).read_text()
    ]
    assert len(named) > 10
    assert missing == []
