"""Which modules are compiled, and whether they were (ADR 0005).

Both lists name ordinary Python. Cython compiles the loops over records, with C types from the
`.pxd` files beside them; mypyc compiles the request path as it is. Without one of these or a C
compiler, the same files run interpreted. One module, `hot.disk_worker`, is written twice: its
threads must not need the interpreter, which no type says, so Cython compiles a `.pyx`. `setup.py`
runs this file alone to read the second list, so it imports nothing of Tidemill.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

__all__ = ["HOT_LOOPS", "REQUEST_PATH", "is_compiled"]

HOT_LOOPS = (
    "tidemill.hot.byte_copy",
    "tidemill.hot.columns.arrow_cells",
    "tidemill.hot.columns.column_encode",
    "tidemill.hot.columns.record_columns",
    "tidemill.hot.columns.row_partitions",
    "tidemill.hot.disk_worker",
    "tidemill.hot.header_match",
    "tidemill.hot.hold_scan",
    "tidemill.hot.key_offsets",
    "tidemill.hot.murmur2",
    "tidemill.hot.record_encode",
    "tidemill.hot.record_pick",
    "tidemill.hot.record_sift",
    "tidemill.hot.record_walk",
    "tidemill.hot.release_encode",
    "tidemill.hot.varint",
)
"""The loops that touch every record, and the threads of flushes."""

REQUEST_PATH = (
    "tidemill.core.byte_rate",
    "tidemill.core.loop.deferred",
    "tidemill.core.telemetry",
    "tidemill.core.loop.timers",
    "tidemill.wire.batch",
    "tidemill.wire.frames",
    "tidemill.wire.headers",
    "tidemill.wire.offset_commit_fast",
    "tidemill.wire.primitives",
    "tidemill.wire.produce_fast",
    "tidemill.wire.produced_batch",
    "tidemill.wire.records",
    "tidemill.storage.log.batch_finder",
    "tidemill.storage.files.disk_room",
    "tidemill.storage.files.file_cache",
    "tidemill.storage.directory.flush_round",
    "tidemill.storage.journal.round_journal",
    "tidemill.storage.log.flush_point",
    "tidemill.storage.log.flush_progress",
    "tidemill.storage.state.leader_epochs",
    "tidemill.storage.index.offset_index",
    "tidemill.storage.log.log_checks",
    "tidemill.storage.log.partition_log",
    "tidemill.storage.state.ended_transactions",
    "tidemill.storage.state.producer_entry",
    "tidemill.storage.state.producer_refusals",
    "tidemill.storage.state.producer_state",
    "tidemill.storage.state.producer_bound",
    "tidemill.storage.log.segment",
    "tidemill.storage.index.segment_index",
    "tidemill.storage.log.segments",
    "tidemill.storage.index.time_index",
    "tidemill.storage.log.unflushed_changes",
    "tidemill.metadata.lease",
    "tidemill.replication.flushing.flusher",
    "tidemill.replication.follower_log",
    "tidemill.replication.waiting.follower_watches",
    "tidemill.replication.in_sync",
    "tidemill.replication.isr",
    "tidemill.replication.leader_log",
    "tidemill.replication.led_replicas",
    "tidemill.replication.mandate",
    "tidemill.replication.partition",
    "tidemill.replication.partition_settings",
    "tidemill.replication.replica_manager",
    "tidemill.replication.serving.replica_session",
    "tidemill.replication.serving.replica_sessions",
    "tidemill.replication.serving.shared_reads",
    "tidemill.replication.vouching.silence",
    "tidemill.replication.vouching.vouch",
    "tidemill.replication.waiting.waiters",
    "tidemill.coordinators.runtime.deadlines",
    "tidemill.coordinators.group.classic.classic_group",
    "tidemill.coordinators.group.offsets.expiry",
    "tidemill.coordinators.group.offsets.committed_offsets",
    "tidemill.coordinators.group.base.records",
    "tidemill.coordinators.group.registry",
    "tidemill.coordinators.group.shard_offsets",
    "tidemill.coordinators.group.shard",
    "tidemill.coordinators.group.group_coordinator",
    "tidemill.coordinators.runtime.committed_answers",
    "tidemill.coordinators.runtime.hosted_shard",
    "tidemill.coordinators.runtime.open_batch",
    "tidemill.coordinators.runtime.partition_writer",
    "tidemill.coordinators.runtime.coordinator",
    "tidemill.coordinators.runtime.coordinator_runtime",
    "tidemill.coordinators.transaction.transaction_coordinator",
    "tidemill.server.connection.answer_queue",
    "tidemill.server.request.authorizer",
    "tidemill.server.connection.connection",
    "tidemill.server.request.context",
    "tidemill.server.request.dispatch",
    "tidemill.server.fetching.aborted_search",
    "tidemill.server.handlers.data.cold_reads",
    "tidemill.server.handlers.data.fetch_reader",
    "tidemill.server.handlers.producing.transaction_verification",
    "tidemill.server.fetching.fetch_sessions",
    "tidemill.server.handlers.data.fetch",
    "tidemill.server.handlers.offsets.offset_commit",
    "tidemill.server.handlers.offsets.topic_permission",
    "tidemill.server.handlers.producing.long_batch_check",
    "tidemill.server.handlers.producing.pending_acknowledgements",
    "tidemill.server.handlers.producing.produce",
    "tidemill.server.handlers.producing.produce_refusals",
    "tidemill.server.handlers.data.replica_fetch",
    "tidemill.server.handlers.data.replica_progress",
    "tidemill.server.request.leader_hints",
    "tidemill.server.limits.memory_blocks",
    "tidemill.server.limits.memory_pool",
    "tidemill.core.loop.pacing",
    "tidemill.server.request.partition_access",
    "tidemill.server.limits.quotas",
    "tidemill.server.fetching.parked_requests",
    "tidemill.server.connection.read_stall",
    "tidemill.server.connection.receive_buffer",
    "tidemill.server.limits.token_buckets",
    "tidemill.server.limits.loop_slices",
)
"""The modules that every Produce, Fetch or OffsetCommit runs through."""


def is_compiled(module: str) -> bool:
    """Whether an import of `module` loads compiled code."""
    spec = find_spec(module)
    origin = spec.origin if spec is not None else None
    return origin is not None and origin.endswith(tuple(EXTENSION_SUFFIXES))
