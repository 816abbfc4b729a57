"""The error of a query whose records were deleted before it read them."""

from __future__ import annotations

from typing import final

from tidemill.core.errors import TidemillError

__all__ = ["DataLoss"]


@final
class DataLoss(TidemillError):
    """Records that the query should have read no longer exist."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. failOnDataLoss=false would continue without them.")
