"""ApiVersions (18), versions 0..4: the APIs that this broker serves, from the list of handlers.

Version 3 added the client's name and version, and feature levels. An unknown version is answered in
the form of version 0 with the range of ApiVersions alone, so that the client can try again (T2).

Supported ranges are those of this broker's software, finalized levels those of the cluster
(`metadata/features/`). A feature whose level is 0 is off, and is not in the second list.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from struct import Struct

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.features.feature_levels import FinalizedLevels, Software
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from tidemill.wire.headers import UnsupportedVersion

__all__ = ["VERSIONS", "make_handler", "try_unsupported_version_answer"]

VERSIONS = (0, 4)
_CLIENT_SOFTWARE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?\Z")
_V0_ANSWER = Struct(">iihihhh")
LIBRDKAFKA_NAMES = ("librdkafka", "confluent-kafka-")
"""Itself, and the clients for Python, Go, .NET and JavaScript that are built on it."""
FIRST_WITH_CLIENT_SOFTWARE = 3
FIRST_WITH_LEVEL_0 = 4
"""Older Java clients fail at a supported range that begins with 0 (T13)."""


def make_handler(others: Iterable[Handler]) -> Handler:
    """Build the handler; its answer lists all handlers for clients, this one included."""
    listed = [handler for handler in others if not handler.is_internal]
    ranges = [(int(h.api_key), _advertised_min(h), h.versions[1]) for h in listed]
    ranges.append((int(ApiKey.API_VERSIONS), *VERSIONS))
    ranges.sort()
    api_keys = [
        ApiVersion(api_key=key, min_version=low, max_version=high) for key, low, high in ranges
    ]

    def handle(context: ClusterContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if context.version >= FIRST_WITH_CLIENT_SOFTWARE:
            _check_client_software(request)
            name = request.client_software_name
            context.peer.is_librdkafka = name.startswith(LIBRDKAFKA_NAMES)
        image = context.image
        lowest = 0 if context.version >= FIRST_WITH_LEVEL_0 else 1
        return ApiVersionsResponse(
            api_keys=api_keys,
            supported_features=_supported(context.services.cluster.software, lowest),
            finalized_features_epoch=image.features_epoch,
            finalized_features=_finalized(image.features),
        )

    return Handler(
        api_key=ApiKey.API_VERSIONS,
        versions=VERSIONS,
        handle=handle,
        refuse=refuse_with_error_code(ApiVersionsResponse),
    )


def _advertised_min(handler: Handler) -> int:
    return handler.versions[0] if handler.advertised_min is None else handler.advertised_min


def _supported(software: Software, lowest: int) -> list[SupportedFeatureKey]:
    return [
        SupportedFeatureKey(
            name=name, min_version=max(lowest, levels.lowest), max_version=levels.highest
        )
        for name, levels in software.ranges.items()
    ]


def _finalized(features: FinalizedLevels) -> list[FinalizedFeatureKey]:
    return [
        FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
        for name, level in features.levels.items()
        if level > 0
    ]


def _check_client_software(request: ApiVersionsRequest) -> None:
    """KafkaError INVALID_REQUEST for a name or version with other characters (T4)."""
    for text in (request.client_software_name, request.client_software_version):
        if not _CLIENT_SOFTWARE.match(text):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "client software name or version")


def try_unsupported_version_answer(unsupported: UnsupportedVersion) -> bytes | None:
    """A complete version-0 frame for ApiVersions in an unknown version; None for any other API."""
    if unsupported.api_key != ApiKey.API_VERSIONS:
        return None
    return _V0_ANSWER.pack(
        _V0_ANSWER.size - 4,
        unsupported.correlation_id,
        ErrorCode.UNSUPPORTED_VERSION,
        1,
        ApiKey.API_VERSIONS,
        *VERSIONS,
    )
