"""What a run has shown, printed; and the exit code that goes with it."""

from __future__ import annotations

import json
from collections.abc import Mapping

__all__ = ["print_summary"]


def print_summary(summary: Mapping[str, object], *, as_json: bool) -> int:
    """Print it on standard output; 1 if a promise was broken."""
    if as_json:
        print(json.dumps(summary, indent=2))
    else:
        for key, value in summary.items():
            print(f"{key.replace('_', ' '):24} {value}")
    return 1 if summary["violations"] else 0
