"""The commands of docs/guides/views.md run unchanged, but for the ports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.test_cluster_guide import commands_of, shell

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

__all__ = ["shell"]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "views.md"


def test_the_guide_to_views_can_be_followed(shell):
    commands = commands_of(GUIDE)
    assert len(commands) == 11
    for line, printed in commands:
        out = shell.run(line)
        assert not printed or out == f"{printed}\n", line
        if "describe" in line:
            facts = json.loads(out)
            assert (facts["of"], facts["where"]) == ("orders", "region = 'eu' AND amount > 100")
            assert facts["partitions"][0]["high_watermark"] == 2
