"""The settings that every pipeline has: where to read, how often, where progress is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tidemill.core.config.keys import option

__all__ = ["RunSettings"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What the runner needs to know; the keys stand in the same file as the pipeline's own."""

    bootstrap: str = option(
        "127.0.0.1:9092",
        key="bootstrap",
        doc="Brokers to ask first, HOST:PORT, several with commas between.",
    )
    master: str = option(
        "local[*]",
        key="master",
        doc="Where Spark runs: local[*] is this machine with all its cores, spark://HOST:PORT a "
        "standalone cluster, yarn or k8s://... as Spark knows them. On a cluster the package "
        "is sent to the workers; directories must be on storage that all of them see.",
    )
    checkpoint_dir: str = option(
        "./checkpoints",
        key="checkpoint.dir",
        doc="Where the pipeline keeps what it has read and its open windows. With it, a restart "
        "goes on where the last run stopped. Without it the pipeline begins anew.",
    )
    start: str = option(
        "earliest",
        key="start",
        doc="Where the first run begins: earliest, latest, or a time back from now such as -10m. "
        "Later runs go on from the checkpoint, whatever this says.",
    )
    group: str = option(
        "",
        key="group",
        doc="Consumer groups that show the progress are named after this word and the stage; "
        "empty: after the pipeline. See them with `tidemill group describe`.",
    )
    trigger_s: float = option(
        5.0,
        key="trigger.s",
        doc="Time between two batches. Shorter is fresher, longer makes fewer and larger files.",
        unit="s",
        minimum=0.1,
        maximum=86_400,
    )
    batch_rows_max: int = option(
        1_000_000,
        key="batch.rows.max",
        doc="Most records that one batch takes from the topic; bounds memory after a long pause.",
        minimum=1,
    )
    state_partitions: int = option(
        4,
        key="state.partitions",
        doc="Tasks that share the open windows. Cannot change while a checkpoint is used.",
        minimum=1,
        maximum=10_000,
    )
    restart_max: int = option(
        8,
        key="restart.max",
        doc="Restarts in a row after failures, before the command gives up with exit code 1. A "
        "batch that succeeds sets the count back.",
        maximum=1_000,
    )
    restart_pause_max_s: float = option(
        60.0,
        key="restart.pause.max.s",
        doc="Longest pause before a restart; the first takes a second, each next one twice that.",
        unit="s",
        minimum=0.0,
        maximum=3_600,
    )
    stop_wait_s: float = option(
        15.0,
        key="stop.wait.s",
        doc="How long a stop waits for the batch in work. One that is cut off is done again by "
        "the next run.",
        unit="s",
        minimum=0.0,
        maximum=600,
    )
