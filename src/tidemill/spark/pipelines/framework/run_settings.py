"""The settings that every pipeline has: brokers, master, checkpoint, trigger, restarts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tidemill.core.config.keys import option
from tidemill.spark.sink.delivery import AT_LEAST_ONCE, DELIVERIES, EXACTLY_ONCE

__all__ = ["RunSettings"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """The settings of the runner; their keys are in the same file as the pipeline's own."""

    bootstrap: str = option(
        "127.0.0.1:9092",
        key="bootstrap",
        doc="Brokers to connect to first: HOST:PORT, several separated by commas.",
    )
    master: str = option(
        "local[*]",
        key="master",
        doc="Where Spark runs: local[*] is this machine with all its cores, spark://HOST:PORT a "
        "standalone cluster; yarn and k8s://... work as in Spark. On a cluster the package is sent "
        "to the workers; directories must be on storage that all of them can reach.",
    )
    checkpoint_dir: str = option(
        "./checkpoints",
        key="checkpoint.dir",
        doc="Where the pipeline records what it has read, and its open windows. A restart "
        "continues from here. Without it the pipeline starts from the beginning. A relative path "
        "begins at the folder of this file, as all paths do here.",
    )
    start: str = option(
        "earliest",
        key="start",
        doc="Where the first run begins: earliest, latest, or a time before now such as -10m. "
        "Later runs ignore it and continue from the checkpoint.",
    )
    delivery: str = option(
        AT_LEAST_ONCE,
        key="delivery",
        doc="How often a record reaches the topics that the pipeline writes. at_least_once: a "
        "batch that is repeated after a failure is written again. exactly_once: every batch is one "
        "transaction; other programs read the topics with isolation.level=read_committed, and so "
        "does the pipeline its own input.",
        choices=DELIVERIES,
    )
    group: str = option(
        "",
        key="group",
        doc="Prefix of the consumer groups that show the progress, one for each stage; empty: the "
        "pipeline's name. See them with `tidemill group describe`.",
    )
    trigger_s: float = option(
        5.0,
        key="trigger.s",
        doc="Time between two batches. Shorter is fresher, longer gives fewer and larger files.",
        unit="s",
        minimum=0.1,
        maximum=86_400,
    )
    batch_rows_max: int = option(
        1_000_000,
        key="batch.rows.max",
        doc="Most records that one batch reads from the topic; bounds memory after a long pause.",
        minimum=1,
    )
    state_partitions: int = option(
        4,
        key="state.partitions",
        doc="Tasks that share the open windows. It cannot change while a checkpoint is in use.",
        minimum=1,
        maximum=10_000,
    )
    restart_max: int = option(
        8,
        key="restart.max",
        doc="Restarts in a row after failures of one stage before the command gives up with exit "
        "code 1. A successful batch of the stage resets the count.",
        maximum=1_000,
    )
    restart_pause_max_s: float = option(
        60.0,
        key="restart.pause.max.s",
        doc="Longest pause before a restart; the first takes a second, each later one is doubled.",
        unit="s",
        minimum=0.0,
        maximum=3_600,
    )
    stop_wait_s: float = option(
        15.0,
        key="stop.wait.s",
        doc="How long a stop waits for the running batch. The next run repeats a batch that was "
        "interrupted.",
        unit="s",
        minimum=0.0,
        maximum=600,
    )

    @property
    def is_exactly_once(self) -> bool:
        return self.delivery == EXACTLY_ONCE
