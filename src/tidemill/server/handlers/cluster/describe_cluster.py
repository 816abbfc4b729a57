"""DescribeCluster (60), versions 0..2: brokers, controller and authorized operations (T20).

v1 the type of endpoint; v2 fenced brokers.

Only brokers serve clients, so a request for controllers' endpoints gets MISMATCHED_ENDPOINT_TYPE.
Addresses are those of the listener that received the request (T19).

A broker that is registered and not let in is fenced; it is listed only if that is asked for. If its
software is the reason, a field of our own says so. Another one says that a broker reaches the store
and gets no answer from the controller.
"""

from __future__ import annotations

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import BrokerImage
from tidemill.metadata.rules.decisions import live_brokers, unhearing_brokers
from tidemill.server.request.authorized_operations import authorized_operations
from tidemill.server.request.authorizer import cluster
from tidemill.server.request.context import ClusterContext
from tidemill.server.request.handler import Answer, Handler, refuse_with_error_code
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

__all__ = ["HANDLER"]

BROKER_ENDPOINTS = 1


def handle(context: ClusterContext, request: DescribeClusterRequest) -> Answer:
    if request.endpoint_type != BROKER_ENDPOINTS:
        detail = "this is a broker's endpoint; controllers have none of their own"
        raise KafkaError(ErrorCode.MISMATCHED_ENDPOINT_TYPE, detail)
    image = context.image
    live, unhearing = live_brokers(image).brokers, unhearing_brokers(image)
    listed = [one for one in sorted(image.brokers) if one in live or request.include_fenced_brokers]
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            _broker(
                context,
                image.brokers[one],
                is_fenced=one not in live,
                hears_no_controller=one in unhearing,
            )
            for one in listed
        ],
        cluster_authorized_operations=authorized_operations(
            context, cluster(), request.include_cluster_authorized_operations
        ),
    )


def _broker(
    context: ClusterContext, broker: BrokerImage, *, is_fenced: bool, hears_no_controller: bool
) -> DescribeClusterBroker:
    endpoint = context.endpoint_of(broker)
    return DescribeClusterBroker(
        broker_id=broker.broker_id,
        host=endpoint.host,
        port=endpoint.port,
        rack=broker.rack or None,
        is_fenced=is_fenced,
        kept_out_because=context.image.why_kept_out(broker) or "",
        hears_no_controller=hears_no_controller,
    )


HANDLER = Handler(
    api_key=ApiKey.DESCRIBE_CLUSTER,
    versions=(0, 2),
    handle=handle,
    refuse=refuse_with_error_code(DescribeClusterResponse),
)
