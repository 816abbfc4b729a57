"""Records that were deleted before the query read them: the error, or the warning."""

from __future__ import annotations

import logging
from typing import final

from tidemill.core.errors import TidemillError

__all__ = ["DataLoss", "LossReport"]

_log = logging.getLogger(__name__)


@final
class DataLoss(TidemillError):
    """Records that the query should have read no longer exist."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. failOnDataLoss=false would continue without them.")


@final
class LossReport:
    """Fails a query that lost records, or logs the loss if it has `failOnDataLoss=false`."""

    def __init__(self, *, fail: bool) -> None:
        self._fail = fail
        self._last = ""

    def report(self, what: str) -> None:
        """The same loss is logged once in a row: a query meets it again at each trigger."""
        if self._fail:
            raise DataLoss(what)
        if self._last != what:
            _log.warning("%s; continuing without them", what)
        self._last = what
