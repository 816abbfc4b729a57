"""DescribeConfigs (32), versions 1..4: keys with their values and sources (T56).

v1 sources and synonyms; v2 as v1; v3 types and documentation; v4 flexible.

Synonyms and documentation are sent only on request, sensitive values never. A broker describes only
itself. A null or empty list of keys means all keys; unknown keys are ignored.

One answer holds a bounded number of keys; resources beyond that are refused (S11).
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.image.described_keys import DescribedKey
from tidemill.server.handlers.topics.config_resources import describe_resource
from tidemill.server.request.context import TopicContext
from tidemill.server.request.handler import Answer, Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

__all__ = ["HANDLER"]

RESOURCES_PER_SLICE = 10
"""Resources described in one slice of the loop; each has about thirty keys (S11)."""
KEYS_PER_ANSWER_MAX = 100_000
"""About 30 MB with documentation; 2,700 topics with all their keys."""


def handle(context: TopicContext, request: DescribeConfigsRequest) -> Answer:
    return _describe_all(context, request)


async def _describe_all(
    context: TopicContext, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    response = DescribeConfigsResponse()
    pacer = Pacer(RESOURCES_PER_SLICE)
    keys_left = KEYS_PER_ANSWER_MAX
    for wanted in request.resources:
        await pacer.step()
        try:
            result = _describe(context, request, wanted, keys_left)
        except KafkaError as error:
            context.services.telemetry.count_error(error.code)
            result = _refusal(wanted, error)
        keys_left -= len(result.configs)
        response.results.append(result)
    return response


def _describe(
    context: TopicContext,
    request: DescribeConfigsRequest,
    wanted: DescribeConfigsResource,
    keys_left: int,
) -> DescribeConfigsResult:
    only = set(wanted.configuration_keys or ()) or None
    found = describe_resource(context, wanted.resource_type, wanted.resource_name, only)
    if len(found) > keys_left:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "too much for one answer; ask for less at once")
    return DescribeConfigsResult(
        error_message=None,
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
        configs=[_entry(key, request) for key in found],
    )


def _entry(key: DescribedKey, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    sensitive = key.option.sensitive
    synonyms = key.synonyms if request.include_synonyms else []
    return DescribeConfigsResourceResult(
        name=key.option.key,
        value=None if sensitive else key.value,
        read_only=key.read_only,
        config_source=int(key.source),
        is_sensitive=sensitive,
        synonyms=[
            DescribeConfigsSynonym(
                name=name, value=None if sensitive else value, source=int(source)
            )
            for name, value, source in synonyms
        ],
        config_type=int(key.option.type),
        documentation=key.doc if request.include_documentation else None,
    )


def _refusal(wanted: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=int(error.code),
        error_message=error.detail or None,
        resource_type=wanted.resource_type,
        resource_name=wanted.resource_name,
    )


def _refuse(request: DescribeConfigsRequest, error: KafkaError) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_refusal(one, error) for one in request.resources])


HANDLER = Handler(api_key=ApiKey.DESCRIBE_CONFIGS, versions=(1, 4), handle=handle, refuse=_refuse)
