"""A power loss at any moment of a compaction breaks no promise; and planted bugs are found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from tests.crash.exploration import explored
from tidemill.core.rng import SeededRng
from tidemill.storage.compaction import cleaning, segment_rewriter
from tidemill.storage.compaction.segment_rewriter import SegmentRewriter
from tidemill.storage.files.live_laps import LiveLaps
from tidemill.storage.log.partition_log import FilePartitionLog
from tidemill.storage.log.segment import Segment
from tidemill.storage.recovery import segment_files
from tidemill.storage.rewriting.new_segment import NewSegment
from tidemill.testing.crash.compaction_states import (
    CompactingBroker,
    JournaledCompactingBroker,
    KeyPromises,
    check_keys,
    compaction_workload,
    unflushed_workload,
)
from tidemill.testing.crash.crash_states import CrashExplorer
from tidemill.testing.crash.promises import BrokenPromise
from tidemill.testing.sim.disk import SimDisk

pytestmark = pytest.mark.slow

SEEDS_MAX = 12


Workload = Callable[[CompactingBroker, SimDisk], None]


def by_chance(seed: int) -> Workload:
    return partial(compaction_workload, rng=SeededRng(seed), rounds=5)


def explore(
    chosen: Workload, seed: int = 0, broker_class: type[CompactingBroker] = CompactingBroker
) -> CrashExplorer:
    keyed = KeyPromises()
    return explored(
        chosen,
        seed,
        broker_class=partial(broker_class, keyed=keyed),
        check=lambda directory, _promises: check_keys(directory, keyed),
    )


def finds(
    chosen: Workload, seed: int = 0, broker_class: type[CompactingBroker] = CompactingBroker
) -> bool:
    try:
        explore(chosen, seed, broker_class)
    except BrokenPromise:
        return True
    return False


def is_found() -> bool:
    return any(finds(by_chance(seed), seed) for seed in range(SEEDS_MAX))


@pytest.mark.parametrize("broker_class", [CompactingBroker, JournaledCompactingBroker])
def test_I35_I1_I18_hold_in_every_crash_state_of_a_compaction(crash_seed, broker_class):
    explorer = explore(by_chance(crash_seed), crash_seed, broker_class)
    assert explorer.states > explorer.calls > 100


def test_I35_a_record_that_a_power_loss_may_lose_replaces_nothing():
    explore(unflushed_workload)


def test_mutant_renamed_before_it_is_synced_is_found(monkeypatch):
    monkeypatch.setattr(NewSegment, "sync", lambda _new: None)
    assert is_found()


def without(number: int) -> Callable[..., Iterator[Callable[[], None]]]:
    """All steps of a swap but one."""
    swap = cleaning.swap_steps

    def steps(*arguments: object) -> Iterator[Callable[[], None]]:
        for place, step in enumerate(swap(*arguments)):  # type: ignore[arg-type]
            if place != number:
                yield step

    return steps


def test_mutant_old_segments_removed_before_the_new_one_is_durable_is_found(
    monkeypatch,
):
    monkeypatch.setattr(cleaning, "swap_steps", without(0))
    assert is_found()


def test_mutant_tombstones_dropped_before_their_horizon_is_found(
    monkeypatch,
):
    sift = segment_rewriter.sift_records

    def sift_records(*arguments: object) -> tuple[int, int, int, int]:
        *head, _is_expired, shift, out = arguments
        return sift(*head, True, shift, out)  # type: ignore[arg-type]

    monkeypatch.setattr(segment_rewriter, "sift_records", sift_records)
    assert is_found()


def test_mutant_cleaning_past_the_flushed_offset_is_found(monkeypatch):
    def segments(log: FilePartitionLog, _end_offset: int) -> Sequence[Segment]:
        return [segment for segment in log.segments if segment.is_closed]

    monkeypatch.setattr(FilePartitionLog, "compactable_segments", segments)
    assert finds(unflushed_workload)


def test_mutant_a_decided_swap_is_not_finished_by_the_next_start_is_found(
    monkeypatch,
):
    monkeypatch.setattr(segment_files, "finish_swaps", lambda *_arguments: None)
    assert is_found()


def test_mutant_dropping_the_last_batch_of_a_segment_is_found(
    monkeypatch,
):
    monkeypatch.setattr(SegmentRewriter, "_keep_last_batch", lambda *_arguments: None)
    assert is_found()


def test_mutant_cleaning_a_segment_whose_bytes_are_in_the_journal_is_found(monkeypatch):
    no_lap = property(lambda _laps: 1 << 60, lambda _laps, _oldest: None)
    monkeypatch.setattr(LiveLaps, "oldest", no_lap)
    assert any(finds(by_chance(seed), seed, JournaledCompactingBroker) for seed in range(SEEDS_MAX))
