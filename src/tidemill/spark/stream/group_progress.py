"""Commits the progress of a stream to its consumer group, so that lag tools see it.

Nothing depends on these commits: a query restarts from its checkpoint. A failed commit is logged
once and tried again with the next batch. A busy query commits once a second, because a commit waits
for the broker's disk; an idle query commits the rest at once.
"""

from __future__ import annotations

import logging
from typing import Final, final

from tidemill.client.admin.group_offsets import GroupOffsets
from tidemill.client.network.cluster_client import ClusterClient
from tidemill.client.network.errors import ClientError
from tidemill.core.clock import SystemClock
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicPartition
from tidemill.spark.bridge.blocking_client import BlockingClient
from tidemill.spark.options.offset_json import PartitionOffsets

__all__ = ["GroupProgress"]

_log = logging.getLogger(__name__)

_START_MARK: Final = "tidemill.spark: start"
"""Metadata of a committed start that no batch has followed yet."""
_INTERVAL_S: Final = 1.0
_PERMANENT_ERRORS: Final = frozenset(
    {ErrorCode.UNSUPPORTED_VERSION, ErrorCode.GROUP_AUTHORIZATION_FAILED}
)


@final
class GroupProgress:
    """The commits of one query to its group."""

    def __init__(self, client: BlockingClient, *, enabled: bool) -> None:
        self._client = client
        self._enabled = enabled
        self._committed: tuple[str, PartitionOffsets] | None = None
        self._committed_at = -_INTERVAL_S
        self._clock = SystemClock()
        self._has_warned = False

    def commit(self, group: str, positions: PartitionOffsets, *, is_idle: bool) -> None:
        """The query has processed everything below `positions`; a busy one commits less often."""
        if not self._enabled or not positions or self._committed == (group, positions):
            return
        now = self._clock.monotonic()
        if not is_idle and now - self._committed_at < _INTERVAL_S:
            return
        self._committed_at = now
        if self._try_commit(group, positions, ""):
            self._committed = (group, dict(positions))

    def commit_start(self, group: str, positions: PartitionOffsets) -> None:
        """Record where the query begins: a crash before its first batch must not move it."""
        if self._enabled and positions:
            self._try_commit(group, positions, _START_MARK)

    async def committed_start(
        self, cluster: ClusterClient, group: str, wanted: list[TopicPartition]
    ) -> PartitionOffsets:
        """Starts that an earlier run committed before its first batch."""
        if not self._enabled:
            return {}
        try:
            found = await GroupOffsets(cluster, group).fetch(wanted)
        except KafkaError as refusal:
            self._warn_once(group, refusal)
            return {}
        return {p: entry.offset for p, entry in found.items() if entry.metadata == _START_MARK}

    def _try_commit(self, group: str, positions: PartitionOffsets, metadata: str) -> bool:
        try:
            self._client.run_once(
                GroupOffsets(self._client.cluster, group).commit(positions, metadata=metadata)
            )
        except (ClientError, KafkaError) as error:
            self._warn_once(group, error)
            return False
        return True

    def _warn_once(self, group: str, error: ClientError | KafkaError) -> None:
        if isinstance(error, KafkaError) and error.code in _PERMANENT_ERRORS:
            self._enabled = False
        if not self._has_warned:
            _log.warning("group %s does not show this query's progress: %s", group, error)
        self._has_warned = True
