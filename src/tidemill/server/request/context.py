"""The facts of one request: its sender, its version, and the services that its handler may use."""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar, final

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import is_legal_topic_name
from tidemill.metadata.image.metadata_image import BrokerImage, MetadataImage
from tidemill.server.request.authorizer import Operation, Resource, ResourceType, cluster
from tidemill.server.request.services import (
    ClusterServices,
    DataServices,
    GroupServices,
    RequestServices,
    TopicServices,
    TransactionServices,
)

ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, never bound

__all__ = [
    "AnyContext",
    "ClusterContext",
    "DataContext",
    "GroupContext",
    "Peer",
    "RequestContext",
    "TopicContext",
    "TransactionContext",
]

S_co = TypeVar("S_co", bound=RequestServices, covariant=True)


_FORBIDDEN: Final = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Peer(Protocol):
    """The connection, as far as handlers need it."""

    is_librdkafka: bool
    """The client has said that it is librdkafka, or built on it."""

    @property
    def principal(self) -> str: ...

    @property
    def client_address(self) -> str: ...

    @property
    def is_internal(self) -> bool:
        """Whether it came by the listener for brokers (S31)."""
        ...

    @property
    def is_passed_on(self) -> bool:
        """Whether another broker has passed the request on, which has checked what it could."""
        ...

    @property
    def server_endpoint(self) -> Endpoint:
        """The address that the client connected to; a wildcard listener advertises it (T19)."""
        ...


@final
class RequestContext(Generic[S_co]):
    """One request: its sender, its version, and the services that its room may use."""

    __slots__ = ("client_id", "peer", "services", "size_bytes", "throttle_ms", "version")

    def __init__(self, services: S_co, peer: Peer, version: int, client_id: str) -> None:
        self.services = services
        self.peer = peer
        self.version = version
        self.client_id = client_id
        self.throttle_ms = 0
        self.size_bytes = 0
        """Of the request on the wire; known when its handler runs."""

    @property
    def image(self) -> MetadataImage:
        return self.services.cluster.image

    def endpoint_of(self, broker: BrokerImage) -> Endpoint:
        """Where clients reach a broker; if it listens everywhere, where this client reached it."""
        if broker.host in ANY_ADDRESS and broker.broker_id == self.services.config.static.node_id:
            return self.peer.server_endpoint
        return Endpoint(broker.host, broker.port)

    def allows(self, operation: Operation, resource: Resource) -> bool:
        """Whether the client may do this."""
        return self.services.authorizer.allows(self.peer.principal, operation, resource)

    def require(self, operation: Operation, resource: Resource) -> None:
        """KafkaError unless the client may do this."""
        if not self.allows(operation, resource):
            raise KafkaError(_FORBIDDEN[resource.type])

    def require_broker(self) -> None:
        """KafkaError unless another broker asks: by its own listener, and allowed to."""
        if not self.peer.is_internal:
            raise KafkaError(
                ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "only brokers may ask, by their listener"
            )
        self.require(Operation.CLUSTER_ACTION, cluster())

    def missing_partition(self, topic: str, index: int) -> KafkaError:
        """Why a partition is not here: led elsewhere, unknown, or with an illegal name (T16)."""
        if not is_legal_topic_name(topic):
            return KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
        found = self.image.topic(topic)
        if found is not None and found.is_view:
            detail = f"{topic} is a view of {found.view_of}, it can only be read"
            return KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, detail)
        if self.image.partition(topic, index) is not None:
            return KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


AnyContext = RequestContext[RequestServices]
"""For code that serves every room."""
DataContext = RequestContext[DataServices]
TopicContext = RequestContext[TopicServices]
GroupContext = RequestContext[GroupServices]
ClusterContext = RequestContext[ClusterServices]
TransactionContext = RequestContext[TransactionServices]
