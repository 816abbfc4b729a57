"""Every API that this broker serves: dispatch and the ApiVersions answer come from this list."""

from __future__ import annotations

from tidemill.server.handler import Handler
from tidemill.server.handlers import (
    alter_configs,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sync_group,
)

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
    create_topics.HANDLER,
    delete_topics.HANDLER,
    create_partitions.HANDLER,
    delete_records.HANDLER,
    describe_configs.HANDLER,
    alter_configs.HANDLER,
    incremental_alter_configs.HANDLER,
    describe_cluster.HANDLER,
    describe_log_dirs.HANDLER,
    describe_producers.HANDLER,
)

HANDLERS: tuple[Handler, ...] = (*_LISTED, api_versions.make_handler(_LISTED))
