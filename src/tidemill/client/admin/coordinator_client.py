"""Requests to the broker that coordinates one group, or the transactions of one producer.

The client looks the coordinator up by name and keeps it. It looks again when the broker answers
that the group or the transactional id has moved or is still loading, when the broker cannot be
reached, or when it has left the cluster's metadata.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Final, TypeVar, final

from tidemill.client.network.cluster_client import ClusterClient, retry_refusals
from tidemill.client.network.errors import ClientError, check
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.generated.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from tidemill.wire.message import Message

__all__ = ["COORDINATOR_MOVED", "CoordinatorClient", "CoordinatorKind"]

R = TypeVar("R", bound=Message)
T = TypeVar("T")

_FIND_VERSION: Final = 4
"""The first version with several keys; later ones only add error codes."""

COORDINATOR_MOVED: Final = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
"""Refusals that pass once the coordinator's partition has a leader that has loaded it."""

_PASSING: Final = COORDINATOR_MOVED | {ErrorCode.UNSTABLE_OFFSET_COMMIT}


@final
class CoordinatorKind(IntEnum):
    """What a coordinator looks after."""

    GROUP = 0
    TRANSACTION = 1


@final
class CoordinatorClient:
    """Sends requests about one group or transactional id to the broker that coordinates it."""

    def __init__(
        self, cluster: ClusterClient, name: str, kind: CoordinatorKind = CoordinatorKind.GROUP
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._kind = kind
        self._broker_id: int | None = None

    async def broker_id(self) -> int:
        """The coordinator as of the last lookup, unless the metadata has lost it since."""
        if self._broker_id is None or self._broker_id not in self._cluster.metadata.brokers:
            self._broker_id = await self._find()
        return self._broker_id

    async def ask(
        self, message: Message, response_type: type[R], *, version: int | None = None
    ) -> R:
        """Ask the coordinator, at the highest common version unless one is given."""
        broker_id = await self.broker_id()
        try:
            connection = await self._cluster.connection(broker_id)
            return await connection.request(
                message, response_type, timeout_s=self._cluster.request_timeout_s, version=version
            )
        except ClientError:
            self.forget()  # the broker may be gone; then there is another coordinator
            raise

    def forget(self) -> None:
        """Look the coordinator up again before the next request."""
        self._broker_id = None

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat `attempt` while it is refused because the coordinator moves or loads."""

        async def once() -> T:
            try:
                return await attempt()
            except KafkaError as refusal:
                if refusal.code in _PASSING:
                    self.forget()
                raise

        return await retry_refusals(once, _PASSING)

    async def _find(self) -> int:
        request = FindCoordinatorRequest(key_type=self._kind, coordinator_keys=[self._name])
        connection = await self._cluster.any_connection()
        response = await connection.request(
            request,
            FindCoordinatorResponse,
            timeout_s=self._cluster.request_timeout_s,
            version=_FIND_VERSION,
        )
        for found in response.coordinators:
            check(found.error_code, found.error_message)
            if found.node_id not in self._cluster.metadata.brokers:
                await self._cluster.refresh([])
            if found.node_id in self._cluster.metadata.brokers:
                return found.node_id
        raise KafkaError(
            ErrorCode.COORDINATOR_NOT_AVAILABLE, f"{self._kind.name.lower()} {self._name}"
        )
