"""Which code may import which: layers by package, rings by file.

Layers point down only. Rings cut across them: *pure* code has no event loop, clock, chance or disk;
*async shells* own tasks and sockets and are the only ones that import asyncio.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator

from tests.tidy.source import Finding, Module, imported_names, matches

BELOW_SERVER = {"delivery", "storage", "metadata", "client", "replication", "coordinators"}
BELOW_BROKER = {*BELOW_SERVER, "upkeep", "server"}

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "hot": set(),
    "wire": {"core"},
    "delivery": {"core", "wire"},
    "storage": {"core", "wire"},
    "metadata": {"core", "wire", "delivery"},
    "client": {"core", "wire"},
    "replication": {"core", "wire", "delivery", "storage", "metadata", "client"},
    "coordinators": {"core", "wire", "storage", "metadata", "client"},
    "upkeep": {"core", "wire", "storage", "metadata", "replication"},
    "server": {"core", "wire", *BELOW_SERVER},
    "broker": {"core", "wire", *BELOW_BROKER},
    "cli": {"core", "wire", "client"},
    "spark": {"core", "wire", "client"},
    "testing": {"core", "wire", "broker", *BELOW_BROKER},
    "__init__": {"core", "client", "broker"},  # for type checkers; imported at the first use
}
"""Beside itself and `hot`, which every package but `core` may import."""

EXCEPTIONS: dict[str, set[str]] = {
    "cli/commands/up.py": {"broker"},  # starts the broker in this process
    "cli/cluster_commands/cluster_migrate.py": {
        "broker",
        "metadata",
        "storage",
    },  # no broker runs then
    "cli/commands/log.py": {"storage"},  # reads segment files without a broker
    "cli/commands/pipeline.py": {"spark"},  # runs pipelines, which are Spark's
    "cli/demo/own_broker.py": {"testing"},  # starts its broker as a test does
    "cli/demo/pipeline_demo.py": {"spark", "testing"},
    "cli/demo/minute_table.py": {"spark"},
}

PURE = (
    "wire/",
    "hot/",
    "core/byte_rate.py",
    "core/ids.py",
    "core/errors.py",
    "core/error_codes.py",
    "core/limits.py",
    "core/min_isr.py",
    "core/owner_lease.py",
    "core/telemetry.py",
    "core/balancing/",
    "core/config/key_relations.py",
    "core/config/keys.py",
    "core/config/broker_config.py",
    "core/config/descriptor_plan.py",
    "core/config/durations.py",
    "core/config/endpoint.py",
    "core/config/group_config.py",
    "core/config/live_config.py",
    "core/config/memory_parts.py",
    "core/config/topic_defaults.py",
    "core/config/transaction_config.py",
    "core/config/zookeeper_config.py",
    "core/loop/deferred.py",
    "core/loop/steps.py",
    "client/network/metadata_cache.py",
    "client/producing/transaction_errors.py",
    "delivery/",
    "metadata/rules/",
    "metadata/format_1.py",
    "metadata/features/",
    "metadata/image/described_keys.py",
    "metadata/image/group_keys.py",
    "metadata/image/head.py",
    "metadata/image/image_draft.py",
    "metadata/image/isr_proposal.py",
    "metadata/image/metadata_image.py",
    "metadata/image/nodes.py",
    "metadata/image/overrides.py",
    "metadata/image/page.py",
    "metadata/image/stored_fields.py",
    "metadata/image/topic_config.py",
    "metadata/image/topic_keys.py",
    "metadata/special_topics/",
    "metadata/store/hung_peers.py",
    "metadata/store/renewed_lease.py",
    "replication/proposing/controller_contact.py",
    "replication/following.py",
    "replication/holding/held_batches.py",
    "replication/holding/hold_clocks.py",
    "replication/holding/hold_policy.py",
    "replication/holding/request_checks.py",
    "replication/in_sync.py",
    "replication/isr.py",
    "replication/refused_batches.py",
    "replication/led_replicas.py",
    "replication/pulling/fetch_round.py",
    "replication/pulling/lanes.py",
    "replication/pulling/lost_leaders.py",
    "replication/serving/",
    "replication/vouching/",
    "replication/waiting/",
    "server/connection/cut_off.py",
    "coordinators/runtime/batch_sized_work.py",
    "coordinators/runtime/deadlines.py",
    "coordinators/runtime/shard.py",
    "coordinators/group/base/",
    "coordinators/group/classic/",
    "coordinators/group/consumer/",
    "coordinators/group/migration/",
    "coordinators/group/offsets/",
    "coordinators/group/registry.py",
    "coordinators/group/shard.py",
    "coordinators/group/shard_offsets.py",
    "coordinators/transaction/decisions.py",
    "coordinators/transaction/records.py",
    "coordinators/transaction/shard.py",
    "coordinators/transaction/states.py",
    "coordinators/transaction/transaction.py",
    "storage/files/disk_room.py",
    "spark/pipelines/framework/failures.py",
    "spark/pipelines/json_splicing.py",
    "spark/pipelines/merging/batch_folders.py",
    "spark/source/admission.py",
    "spark/source/planning.py",
    "spark/stream/lasting_signs.py",
    "spark/stream/time_admission.py",
    "server/routing/divided_requests.py",
    "server/routing/owners.py",
    "server/routing/producer_order.py",
    "server/routing/single_address.py",
)
"""ARCHITECTURE.md has the same list, under "Layers and rings"."""
IMPURE_BETWEEN_PURE = ("hot/disk_worker.py",)
"""In `hot/` because it is compiled: the threads that sync without the interpreter's lock."""

CLAIMS_PURITY = re.compile(r"\bPure\b[.:;]")
IMPURE_MODULES = frozenset(
    {"asyncio", "time", "random", "secrets", "os", "io", "pathlib", "shutil", "tempfile", "mmap"}
    | {"socket", "ssl", "select", "threading", "concurrent", "multiprocessing", "subprocess"}
    | {"sqlite3", "signal", "uvloop"}
)
IMPURE_SEAMS = ("tidemill.core.clock", "tidemill.core.rng", "tidemill.core.net")

ASYNC_SHELLS = (
    "core/loop/awaiting.py",
    "core/loop/event_loop.py",
    "core/loop/lifecycle.py",
    "core/loop/live_pause.py",
    "core/net.py",
    "core/loop/pacing.py",
    "core/loop/timers.py",
    "storage/files/disk_work.py",  # the threads of `disk.run`, the one door to them
    "storage/files/disk_jobs.py",  # waits for the outcomes of the native threads
    "metadata/cluster.py",
    "metadata/log_end_survey.py",
    "metadata/log_size_survey.py",
    "metadata/image/image_keeper.py",
    "metadata/store/sqlite_store.py",
    "metadata/store/memory_store.py",
    "metadata/store/zookeeper_session.py",
    "metadata/store/zookeeper_store.py",
    "metadata/store/zookeeper_watches.py",
    "upkeep/cleaner.py",
    "upkeep/damage_watch.py",
    "upkeep/mend_attempts.py",
    "upkeep/mender.py",
    "replication/flushing/flusher.py",
    "upkeep/housekeeping.py",
    "replication/holding/hold_spills.py",
    "replication/holding/releaser.py",
    "replication/proposing/isr_proposals.py",
    "replication/flushing/journal_settler.py",
    "replication/pulling/",
    "upkeep/log_opener.py",
    "upkeep/room_watch.py",
    "upkeep/stray_logs.py",
    "core/loop/loop_watch.py",
    "replication/pending_logs.py",
    "coordinators/runtime/shard_loader.py",
    "coordinators/runtime/shard_loading.py",
    "coordinators/runtime/coordinator_runtime.py",
    "coordinators/transaction/hanging_transactions.py",
    "coordinators/transaction/transaction_verifier.py",
    "server/",
    "client/",
    "broker/",
    "cli/",
    "spark/",
    "testing/",
)

LAZY_LIBRARIES = {
    # Start-up and memory of `up`: these are imported by the commands that need them, when they do.
    "rich": ("cli/",),
    "confluent_kafka": ("cli/", "testing/"),
    "pyarrow": ("spark/",),
    "pyspark": ("spark/",),
}

EAGER_HOME = "spark/"
"""Only Spark's processes import it, so its files import these libraries at the top."""


def wrong_layer(module: Module) -> Iterator[Finding]:
    own = module.package
    allowed = MAY_IMPORT.get(own)
    if allowed is None:
        yield module.finding(1, f"`{own}` has no layer: give it a row in tests/tidy/layers.py")
        return
    permitted = {own, *allowed, *EXCEPTIONS.get(module.path, ())}
    if own != "core":
        permitted.add("hot")
    for node, name in imported_names(module):
        parts = name.split(".")
        if parts[0] != "tidemill" or parts[1:2] in ([], ["__version__"]):
            continue
        if parts[1] not in permitted:
            yield module.finding(
                node,
                f"`{own}` must not import `tidemill.{parts[1]}`; imports point down only: move the "
                "shared part to a lower layer, or declare a Protocol here for what you need",
            )


def core_beyond_standard_library(module: Module) -> Iterator[Finding]:
    if module.package not in {"core", "hot"}:
        return
    for node, name in imported_names(module):
        top = name.split(".")[0]
        if top == "uvloop" and module.path == "core/loop/event_loop.py":
            continue  # the one place that picks the loop
        if top not in sys.stdlib_module_names and top not in {"tidemill", "cython"}:
            yield module.finding(
                node,
                f"`{module.package}` has the standard library only; use `{top}` in a layer above",
            )


def impure(module: Module) -> Iterator[Finding]:
    if not matches(module.path, PURE) or matches(module.path, IMPURE_BETWEEN_PURE):
        return
    for node, name in imported_names(module):
        if name.split(".")[0] in IMPURE_MODULES or name.startswith(IMPURE_SEAMS):
            yield module.finding(
                node,
                f"pure code must not import `{name}`: take the time as `now_ms`, return effects as "
                "values, and let an async shell act on them",
            )


def unlisted_purity(module: Module) -> Iterator[Finding]:
    """The head says "Pure." but no rule checks it."""
    head = (ast.get_docstring(module.tree) or "").split("\n\n")[0]
    home = f"{module.path.rpartition('/')[0]}/" if module.path.endswith("__init__.py") else ""
    if CLAIMS_PURITY.search(head) and not matches(home or module.path, PURE):
        yield module.finding(
            1, "the head says that it is pure: add it to PURE in tests/tidy/layers.py"
        )


def ghosts(table: str, patterns: Iterable[str], paths: Iterable[str]) -> Iterator[Finding]:
    """Patterns of a table that match no file of the package."""
    existing = list(paths)
    for pattern in patterns:
        if not any(matches(path, (pattern,)) for path in existing):
            yield Finding("tests/tidy", 1, f"{table} names `{pattern}`, which does not exist")


def asyncio_outside_shells(module: Module) -> Iterator[Finding]:
    if matches(module.path, ASYNC_SHELLS):
        return
    for node, name in imported_names(module):
        if name.split(".")[0] == "asyncio":
            yield module.finding(
                node,
                "only async shells import asyncio: use core.loop.deferred, core.loop.timers, or "
                "add the file to ASYNC_SHELLS in tests/tidy/layers.py with its reason",
            )


def heavy_library(module: Module) -> Iterator[Finding]:
    for node, name in imported_names(module):
        homes = LAZY_LIBRARIES.get(name.split(".")[0])
        if homes is None:
            continue
        if not matches(module.path, homes):
            yield module.finding(node, f"`{name}` belongs to {', '.join(homes)} only")
        elif node in module.tree.body and not module.path.startswith(EAGER_HOME):
            yield module.finding(node, f"import `{name}` inside the function that needs it")
