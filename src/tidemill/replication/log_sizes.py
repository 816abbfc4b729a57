"""How large logs are: the controller asks their leaders, by DescribeLogDirs."""

from __future__ import annotations

from collections.abc import Collection
from typing import final

from tidemill.client.admin.log_directories import described_logs, log_dirs_request
from tidemill.client.network.errors import ClientError
from tidemill.client.network.peer_links import PeerLinks
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.replication.replica_manager import ReplicaManager
from tidemill.wire.generated.describe_log_dirs import DescribeLogDirsResponse

__all__ = ["LogSizeAsker"]

VERSION = 4
TIMEOUT_S = 5.0


@final
class LogSizeAsker:
    """The questions of one broker to itself and to others."""

    def __init__(self, broker_id: int, replicas: ReplicaManager, peers: PeerLinks) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._peers = peers

    async def ask(
        self, broker_id: int, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The sizes of the logs that the broker has; KafkaError: it does not say."""
        if broker_id == self._broker_id:
            own = {name: self._replicas.find(*name) for name in partitions}
            return {name: one.log.size_bytes for name, one in own.items() if one is not None}
        try:
            response = await self._peers.request(
                broker_id,
                log_dirs_request(partitions),
                DescribeLogDirsResponse,
                version=VERSION,
                timeout_s=TIMEOUT_S,
            )
        except ClientError as error:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, str(error)) from error
        return {name: one.partition_size for name, one in described_logs(response).items()}
