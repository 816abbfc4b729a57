"""Every API that this broker serves: dispatch and the ApiVersions answer come from this list."""

from __future__ import annotations

from tidemill.server.handler import Handler
from tidemill.server.handlers import (
    alter_configs,
    api_versions,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_log_dirs,
    describe_producers,
    fetch,
    find_coordinator,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)

__all__ = ["HANDLERS"]

_LISTED: tuple[Handler, ...] = (
    produce.HANDLER,
    fetch.HANDLER,
    metadata.HANDLER,
    find_coordinator.HANDLER,
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
