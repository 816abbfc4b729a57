"""A background loop by its name, as a part hands it to the broker to run."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any

__all__ = ["Loops"]

Loops = Iterator[tuple[str, Coroutine[Any, Any, None]]]
"""Names and coroutines; the broker's supervisor runs them until it stops."""
