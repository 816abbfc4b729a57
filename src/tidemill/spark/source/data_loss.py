"""What a query says when records are gone before it has read them."""

from __future__ import annotations

from typing import final

from tidemill.core.errors import TidemillError

__all__ = ["DataLoss"]


@final
class DataLoss(TidemillError):
    """Records that should have been read are not there any more."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. failOnDataLoss=false would go on without them.")
