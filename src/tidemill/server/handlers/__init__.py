"""Every API that this broker serves: dispatch and the ApiVersions answer come from this list."""

from __future__ import annotations

from tidemill.server.handlers.cluster import (
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    describe_cluster,
    describe_log_dirs,
    describe_quorum,
    describe_topic_partitions,
    list_partition_reassignments,
    metadata,
    replica_log_ends,
    unregister_broker,
    update_features,
)
from tidemill.server.handlers.data import (
    delete_records,
    describe_producers,
    fetch,
    list_offsets,
    offset_for_leader_epoch,
    replica_batches,
    replica_progress,
)
from tidemill.server.handlers.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from tidemill.server.handlers.offsets import (
    offset_commit,
    offset_delete,
    offset_fetch,
)
from tidemill.server.handlers.producing import produce
from tidemill.server.handlers.topics import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_topics,
    describe_configs,
    elect_leaders,
    incremental_alter_configs,
    list_config_resources,
)
from tidemill.server.handlers.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)
from tidemill.server.request import envelope
from tidemill.server.request.handler import Handler

__all__ = ["HANDLERS"]

_LISTED: tuple[Handler, ...] = (
    produce.HANDLER,
    fetch.HANDLER,
    metadata.HANDLER,
    find_coordinator.HANDLER,
    join_group.HANDLER,
    sync_group.HANDLER,
    heartbeat.HANDLER,
    leave_group.HANDLER,
    offset_commit.HANDLER,
    offset_fetch.HANDLER,
    offset_delete.HANDLER,
    list_groups.HANDLER,
    describe_groups.HANDLER,
    delete_groups.HANDLER,
    consumer_group_heartbeat.HANDLER,
    consumer_group_describe.HANDLER,
    list_offsets.HANDLER,
    offset_for_leader_epoch.HANDLER,
    init_producer_id.HANDLER,
    add_partitions_to_txn.HANDLER,
    add_offsets_to_txn.HANDLER,
    end_txn.HANDLER,
    txn_offset_commit.HANDLER,
    write_txn_markers.HANDLER,
    describe_transactions.HANDLER,
    list_transactions.HANDLER,
    create_topics.HANDLER,
    delete_topics.HANDLER,
    create_partitions.HANDLER,
    delete_records.HANDLER,
    replica_progress.HANDLER,
    describe_configs.HANDLER,
    alter_configs.HANDLER,
    incremental_alter_configs.HANDLER,
    elect_leaders.HANDLER,
    describe_cluster.HANDLER,
    describe_log_dirs.HANDLER,
    describe_producers.HANDLER,
    describe_topic_partitions.HANDLER,
    describe_quorum.HANDLER,
    list_config_resources.HANDLER,
    alter_partition_reassignments.HANDLER,
    list_partition_reassignments.HANDLER,
    unregister_broker.HANDLER,
    update_features.HANDLER,
    alter_replica_log_dirs.HANDLER,
    alter_partition.HANDLER,
    replica_log_ends.HANDLER,
    replica_batches.HANDLER,
)
_PASSED_ON: tuple[Handler, ...] = (
    create_topics.HANDLER,
    delete_topics.HANDLER,
    create_partitions.HANDLER,
    alter_configs.HANDLER,
    incremental_alter_configs.HANDLER,
    elect_leaders.HANDLER,
    alter_partition_reassignments.HANDLER,
    unregister_broker.HANDLER,
    update_features.HANDLER,
)
"""What the controller does for all brokers."""

HANDLERS: tuple[Handler, ...] = (
    *_LISTED,
    envelope.make_handler(_PASSED_ON),
    api_versions.make_handler(_LISTED),
)
