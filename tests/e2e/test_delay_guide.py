"""The commands of docs/guides/delay.md run unchanged, but for the ports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_cluster_guide import commands_of, shell

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

__all__ = ["shell"]

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "delay.md"


def test_F108_the_guide_to_delay_can_be_followed(shell):
    commands = commands_of(GUIDE)
    assert len(commands) == 13
    for line, printed in commands:
        out = shell.run(line)
        assert not printed or out == f"{printed}\n", line
        if line == "tidemill delay list calls" and not printed:
            assert out.startswith("calls holds 2; the next is due in 59m")
            assert out.splitlines()[-1] == f"in 1h    2  {'#' * 40}"
        if "delay show" in line:
            assert "value      call ann\n" in out
