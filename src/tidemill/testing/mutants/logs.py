"""Planted bugs of the logs; crash states find those of transactions too (`tests/crash`)."""

from __future__ import annotations

from tidemill.core.config.keys import INT64_MAX
from tidemill.core.ids import TopicPartition
from tidemill.storage.directory.log_directory import LogDirectory
from tidemill.storage.state.producer_state import ProducerStates
from tidemill.testing.mutants.planting import Function, mutant

__all__: list[str] = []

# --- storage --------------------------------------------------------------------------------------


@mutant("sequence not checked", "tidemill.storage.state.producer_state:ProducerStates.check")
def _no_sequence(_original: Function) -> Function:
    return lambda _producers, _header: None


@mutant("failed sync counts", "tidemill.storage.directory.flush_round:FlushRound.check_synced")
def _failed_sync(original: Function) -> Function:
    return lambda flush_round, outcomes: original(flush_round, [None] * len(outcomes))


@mutant(
    "rename during a flush",
    "tidemill.storage.directory.log_directory:LogDirectory.delete_log",
)
def _rename_at_once(original: Function) -> Function:
    def delete_log(directory: LogDirectory, partition: TopicPartition) -> None:
        original(directory, partition)
        directory._busy.clear()

    return delete_log


@mutant("topic by name", "tidemill.storage.directory.log_directory:LogDirectory.get")
def _by_name(original: Function) -> Function:
    return lambda directory, partition, _topic_id=None: original(directory, partition)


# --- transactions: in the logs, where crash states find them too (`tests/crash`) ------------------

_PRODUCERS = "tidemill.storage.state.producer_state:ProducerStates"


@mutant("stable offset before the marker", f"{_PRODUCERS}.stable_offset")
def _stable_too_early(_original: Function) -> Function:
    return lambda _producers, high_watermark: high_watermark


@mutant("open transaction expires", f"{_PRODUCERS}.expire")
def _open_expires(original: Function) -> Function:
    def expire(producers: ProducerStates, *bounds: int, **options: int) -> int:
        producers._open.clear()
        count: int = original(producers, *bounds, **options)
        return count

    return expire


@mutant("aborted index not cut", "tidemill.storage.index.aborted_index:AbortedIndex.head")
def _aborted_not_cut(original: Function) -> Function:
    return lambda aborted, _end_offset: original(aborted, INT64_MAX)
