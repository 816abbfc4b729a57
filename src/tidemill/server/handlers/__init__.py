"""Every API that this broker serves: dispatch and the ApiVersions answer both come from this list."""

from __future__ import annotations

from tidemill.server.handler import Handler
from tidemill.server.handlers import api_versions, fetch, metadata, produce

__all__ = ["HANDLERS"]

_LISTED: tuple[Handler, ...] = (
    produce.HANDLER,
    fetch.HANDLER,
    metadata.HANDLER,
)

HANDLERS: tuple[Handler, ...] = (*_LISTED, api_versions.make_handler(_LISTED))
