"""The name under which a query writes exactly once, if its options give none."""

from __future__ import annotations

import hashlib

from tidemill.spark.bridge.local_path import try_local_path

__all__ = ["transactional_id_of"]


def transactional_id_of(checkpoint: str) -> str:
    """The transactional id of a query that names none: the same as long as its checkpoint stays."""
    local = try_local_path(checkpoint)
    place = checkpoint if local is None else str(local.absolute())
    return f"tidemill-spark-{hashlib.sha256(place.encode()).hexdigest()[:24]}"
