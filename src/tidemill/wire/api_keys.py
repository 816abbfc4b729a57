"""Which APIs exist, in which versions, and where their messages are.

The table comes from the generated registry. A module of messages is imported on first use: all of
them together would be most of the broker's start-up time, and a client needs only a dozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import final

from tidemill.wire.generated.registry import ROWS, ApiKey
from tidemill.wire.message import Message

__all__ = ["API_SPECS", "ApiKey", "ApiSpec", "load"]


@final
@dataclass(frozen=True, slots=True)
class ApiSpec:
    key: ApiKey
    name: str
    module: str
    advertised_min: int
    """First version in the ApiVersions answer; below `version_min` only for Produce (T3)."""
    version_min: int
    version_max: int
    flexible_from: int
    """First version with tagged fields; above `version_max` if there is none."""

    def request_header_version(self, version: int) -> int:
        return 2 if version >= self.flexible_from else 1

    def response_header_version(self, version: int) -> int:
        """ApiVersions is answered before the client knows our versions: always header 0 (T1)."""
        return 1 if version >= self.flexible_from and self.key is not ApiKey.API_VERSIONS else 0


def _specs() -> dict[int, ApiSpec]:
    never = 1 << 15
    return {
        key: ApiSpec(key, name, module, advertised, low, high, never if flex < 0 else flex)
        for key, name, module, advertised, low, high, flex in ROWS
    }


API_SPECS: dict[int, ApiSpec] = _specs()
"""By number, so that a number from the wire can be looked up directly."""


@cache
def load(key: ApiKey) -> tuple[type[Message], type[Message]]:
    """The request and response classes of an API."""
    spec = API_SPECS[key]
    module = import_module(f"tidemill.wire.generated.{spec.module}")
    request: type[Message] = getattr(module, f"{spec.name}Request")
    response: type[Message] = getattr(module, f"{spec.name}Response")
    return request, response
