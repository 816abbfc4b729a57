"""Which modules are compiled, and whether they are here (ADR 0005).

Both lists name ordinary Python. The loops over records go through Cython, with C types from the
`.pxd` files beside them; the request path goes through mypyc as it is. Where one of these or a C
compiler is missing, the same files run interpreted. `setup.py` reads the list of the request path
and runs this file alone for it, so nothing of ours is imported here.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec

__all__ = ["HOT_LOOPS", "REQUEST_PATH", "is_compiled"]

HOT_LOOPS = (
    "tidemill.hot.arrow_cells",
    "tidemill.hot.byte_copy",
    "tidemill.hot.column_encode",
    "tidemill.hot.key_offsets",
    "tidemill.hot.murmur2",
    "tidemill.hot.record_columns",
    "tidemill.hot.record_encode",
    "tidemill.hot.record_sift",
    "tidemill.hot.record_walk",
    "tidemill.hot.row_partitions",
    "tidemill.hot.varint",
)
"""What touches every record."""

REQUEST_PATH = (
    "tidemill.core.deferred",
    "tidemill.core.telemetry",
    "tidemill.core.timers",
    "tidemill.wire.batch",
    "tidemill.wire.frames",
    "tidemill.wire.headers",
    "tidemill.wire.offset_commit_fast",
    "tidemill.wire.primitives",
    "tidemill.wire.produce_fast",
    "tidemill.wire.produced_batch",
    "tidemill.wire.records",
    "tidemill.storage.batch_finder",
    "tidemill.storage.file_cache",
    "tidemill.storage.flush",
    "tidemill.storage.leader_epochs",
    "tidemill.storage.offset_index",
    "tidemill.storage.partition_log",
    "tidemill.storage.producer_state",
    "tidemill.storage.segment",
    "tidemill.storage.segment_index",
    "tidemill.storage.segments",
    "tidemill.storage.time_index",
    "tidemill.storage.unflushed",
    "tidemill.replication.flusher",
    "tidemill.replication.partition",
    "tidemill.replication.replica_manager",
    "tidemill.replication.waiters",
    "tidemill.replication.watermark",
    "tidemill.coordinators.deadlines",
    "tidemill.coordinators.group.classic",
    "tidemill.coordinators.group.offset_expiry",
    "tidemill.coordinators.group.offsets",
    "tidemill.coordinators.group.records",
    "tidemill.coordinators.group.registry",
    "tidemill.coordinators.group.shard",
    "tidemill.coordinators.group_coordinator",
    "tidemill.coordinators.hosted",
    "tidemill.coordinators.open_batch",
    "tidemill.coordinators.partition_writer",
    "tidemill.coordinators.runtime",
    "tidemill.server.answer_queue",
    "tidemill.server.authorizer",
    "tidemill.server.connection",
    "tidemill.server.context",
    "tidemill.server.dispatch",
    "tidemill.server.fetch_sessions",
    "tidemill.server.handlers.fetch",
    "tidemill.server.handlers.offset_commit",
    "tidemill.server.handlers.produce",
    "tidemill.server.leader_hints",
    "tidemill.server.memory_pool",
    "tidemill.server.pacing",
    "tidemill.server.partition_access",
    "tidemill.server.quotas",
    "tidemill.server.ready_queue",
    "tidemill.server.receive_buffer",
    "tidemill.server.token_buckets",
    "tidemill.server.turns",
)
"""What every Produce, Fetch or OffsetCommit runs through."""


def is_compiled(module: str) -> bool:
    """Whether an import of `module` gets compiled code."""
    spec = find_spec(module)
    origin = spec.origin if spec is not None else None
    return origin is not None and origin.endswith(tuple(EXTENSION_SUFFIXES))
