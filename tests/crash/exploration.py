"""Explores the crash states of a workload for one kind of broker."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from tidemill.core.ids import TopicPartition
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.testing.crash.crash_states import CrashExplorer
from tidemill.testing.crash.mini_broker import MiniBroker
from tidemill.testing.crash.promises import Promises
from tidemill.testing.sim.disk import SimDisk

__all__ = ["explored"]

FATES = 2

PromisesByLog = dict[TopicPartition, Promises]
B = TypeVar("B", bound=MiniBroker)


def explored(
    chosen: Callable[[B, SimDisk], None],
    seed: int,
    *,
    broker_class: Callable[[SimDisk, PromisesByLog], B],
    check: Callable[[LogDirectory, PromisesByLog], None],
) -> CrashExplorer:
    """Run a workload whose broker knows more promises, which `check` compares in every state."""
    explorer = CrashExplorer(
        lambda broker, disk: chosen(cast(B, broker), disk),
        fates=FATES,
        seed=seed,
        broker_class=broker_class,
        check=check,
    )
    explorer.run()
    return explorer
