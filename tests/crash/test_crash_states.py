"""A power loss at any moment breaks no promise."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tidemill.core.rng import SeededRng
from tidemill.storage.files.disk import DiskFile
from tidemill.testing.crash.crash_states import CrashExplorer
from tidemill.testing.crash.crash_workloads import (
    creation_workload,
    damage_workload,
    deletion_workload,
    failing_disk_workload,
    journal_workload,
    kill_workload,
    mixed_workload,
    restart_workload,
    transaction_workload,
    truncation_workload,
)
from tidemill.testing.crash.mini_broker import JournaledBroker, MiniBroker
from tidemill.testing.sim.disk import SimDisk

pytestmark = pytest.mark.slow

both_brokers = pytest.mark.parametrize("broker_class", [MiniBroker, JournaledBroker])
"""For workloads with rounds that go to the journal; in any other the two leave the same bytes."""


def mixed(seed: int, *, transactions: bool) -> Callable[[MiniBroker, SimDisk], None]:
    def workload(broker: MiniBroker, disk: SimDisk) -> None:
        mixed_workload(broker, disk, rng=SeededRng(seed), steps=16, transactions=transactions)

    return workload


def test_F22_I1_I10_I18_hold_in_every_crash_state_of_a_mixed_workload(crash_seed):
    explorer = CrashExplorer(mixed(crash_seed, transactions=False), fates=2, seed=crash_seed)
    explorer.run()
    assert explorer.states > 2 * explorer.calls > 200


def test_I23_holds_in_every_crash_state_of_a_mixed_workload(crash_seed):
    CrashExplorer(mixed(crash_seed, transactions=True), fates=2, seed=crash_seed).run()


@pytest.mark.parametrize(
    ("seed", "transactions"),
    [(4, False), (8, False), *((seed, True) for seed in (0, 1, 4, 7, 9, 15))],
)
def test_I1_I10_I18_I23_hold_where_a_mixed_workload_makes_a_journal(seed, transactions):
    """The rounds of other seeds are none for the journal: both brokers would do the same."""
    made: list[int] = []

    class NotedBroker(JournaledBroker):
        def make_journal(self) -> list[DiskFile]:
            made.append(seed)
            return super().make_journal()

    workload = mixed(seed, transactions=transactions)
    CrashExplorer(workload, fates=2, seed=seed, broker_class=NotedBroker).run()
    assert made


def test_I1_nothing_is_acknowledged_after_a_failed_sync_and_nothing_before_it_is_lost():
    CrashExplorer(failing_disk_workload, fates=3).run()


def test_I17_damage_in_flushed_data_costs_only_the_damaged_batch():
    CrashExplorer(damage_workload, fates=3).run()


def test_I1_what_a_killed_process_left_in_the_page_cache_is_durable_once_it_counts():
    CrashExplorer(kill_workload, fates=3).run()


@both_brokers
def test_I10_I18_no_truncated_batch_reappears(broker_class):
    CrashExplorer(truncation_workload, fates=3, broker_class=broker_class).run()


def test_I23_open_and_aborted_transactions_are_known_in_every_crash_state(fate_seed):
    explorer = CrashExplorer(transaction_workload, fates=3, seed=fate_seed)
    explorer.run()
    assert explorer.calls > 60


def test_I1_I34_logs_created_together_all_exist_once_that_was_promised(fate_seed):
    explorer = CrashExplorer(creation_workload, fates=6, seed=fate_seed)
    explorer.run()
    assert explorer.calls > 60


def test_I1_I10_I34_hold_over_laps_cuts_and_new_topics_while_bytes_are_in_the_journal(fate_seed):
    explorer = CrashExplorer(
        journal_workload, fates=3, seed=fate_seed, broker_class=JournaledBroker
    )
    explorer.run()
    assert explorer.calls > 100


@both_brokers
def test_I1_I10_a_log_that_restarts_where_a_segment_was_dropped_keeps_its_new_records(
    fate_seed, broker_class
):
    CrashExplorer(restart_workload, fates=4, seed=fate_seed, broker_class=broker_class).run()


@both_brokers
def test_I1_I17_what_comes_after_deleted_records_stays_readable(fate_seed, broker_class):
    CrashExplorer(deletion_workload, fates=4, seed=fate_seed, broker_class=broker_class).run()


def test_the_same_seed_explores_the_same_states():
    def states(seed: int) -> tuple[int, int]:
        workload = partial(mixed_workload, rng=SeededRng(seed), steps=4)
        explorer = CrashExplorer(lambda broker, disk: workload(broker, disk), fates=1, seed=seed)
        explorer.run()
        return explorer.calls, explorer.states

    assert states(3) == states(3)
