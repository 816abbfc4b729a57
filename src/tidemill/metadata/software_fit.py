"""Whether this broker's software has the levels that the cluster has agreed on.

A broker that lacks one is not let in by the controller. It says so itself too: whoever has
installed the wrong version looks at the log of that broker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from tidemill.metadata.image.metadata_image import Delta

__all__ = ["SoftwareFit"]


@final
class SoftwareFit:
    """Follows the image of one broker."""

    def __init__(self, broker_id: int, alarm: Callable[[str], None]) -> None:
        self._broker_id = broker_id
        self._alarm = alarm
        self._why_not: str | None = None

    @property
    def may_control(self) -> bool:
        """Another one would write forms that it does not know."""
        return self._why_not is None

    def follow(self, delta: Delta) -> None:
        own = delta.after.brokers.get(self._broker_id)
        why = None if own is None else delta.after.why_kept_out(own)
        if why is not None and why != self._why_not:
            self._alarm(f"{why}; until then this broker stays fenced and leads nothing")
        self._why_not = why
