"""Which planted bugs a test of one part finds: no run of a cluster reaches them, or not soon.

python -m tests.support.interpreted tests.sim.unit_hunt NAME
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tidemill.testing.mutants import MUTANTS

__all__ = ["UNIT_TESTS", "find_in_unit_test"]

ROOT = Path(__file__).parents[2]
_UNIT = "tests/unit"
_CLASSIC = f"{_UNIT}/coordinators/group/classic"
_CONSUMER = f"{_UNIT}/coordinators/group/consumer"
_RUNTIME = f"{_UNIT}/coordinators/runtime/test_coordinator_runtime.py"
_READS = f"{_UNIT}/storage/log/test_damaged_reads.py"
_DAMAGE = f"{_UNIT}/storage/state/test_log_damage.py"
_MEND = f"{_UNIT}/storage/rewriting/test_segment_mend.py"
_PROGRESS = f"{_UNIT}/upkeep/test_mend_progress.py"
_HOLDING = f"{_UNIT}/replication/holding"
_FOLLOWER_FETCH = f"{_UNIT}/server/handlers/data/test_replica_fetch.py"
_THREE = f"{_UNIT}/metadata/test_cluster_of_three.py"
UNIT_TESTS: dict[str, str] = {
    # --- groups
    "unknown member may commit": f"{_CLASSIC}/test_classic_group.py"
    "::test_T46_commit_of_a_member_that_left_is_refused",
    "old generation is heard": f"{_CLASSIC}/test_sessions.py"
    "::test_T41_heartbeat_of_another_generation_is_refused_and_does_not_extend_the_session",
    "replaced static member is heard": f"{_CLASSIC}/test_static_members.py"
    "::test_T42_old_id_of_a_static_member_is_fenced_everywhere",
    "old member epoch may commit": f"{_CONSUMER}/test_consumer_group.py"
    "::test_I26_commit_with_an_older_epoch_is_taken_for_what_the_member_kept",
    "fenced member may commit": f"{_CONSUMER}/test_consumer_group.py"
    "::test_I26_commit_of_a_member_that_was_replaced_is_refused",
    "fenced epoch is heard": f"{_CONSUMER}/test_heartbeat_request.py"
    "::test_T48_epoch_long_past_is_fenced",
    "list from before the answer frees": f"{_CONSUMER}/test_consumer_group.py"
    "::test_I26_a_list_that_is_older_than_the_assignment_gives_nothing_away",
    "new round does not wait": f"{_CLASSIC}/test_rounds.py"
    "::test_T41_only_the_leader_gets_the_list_of_members",
    "session cut short at takeover": f"{_CONSUMER}/test_consumer_group.py"
    "::test_loading_gives_members_a_new_session_and_a_new_time_to_give_up",
    "read does not wait for commits": f"{_RUNTIME}"
    "::test_I28_a_read_does_not_show_what_may_still_be_lost",
    "generation not stored": f"{_CLASSIC}/test_classic_group.py"
    "::test_members_of_a_reloaded_group_keep_leader_and_assignments",
    # --- mending
    "damaged range is read": f"{_DAMAGE}::test_a_read_that_begins_in_damage_is_refused_for_now",
    "lost range is passed over": f"{_DAMAGE}::test_a_read_of_what_was_given_up_is_refused_for_good",
    "memory beside damage is believed": f"{_READS}"
    "::test_I17_no_damaged_header_that_is_known_misleads_a_read_behind_it",
    "damage in memory is final": f"{_READS}"
    "::test_I17_damage_in_a_batch_is_found_by_the_read_that_meets_it",
    "recovery's damage registers as clean": f"{_UNIT}/storage/recovery/test_log_recovery.py"
    "::test_R11_a_valid_batch_after_the_hole_makes_the_partition_suspect",
    "mended without the batch that follows": f"{_MEND}"
    "::test_I10_the_batch_that_follows_shows_another_log_where_epochs_are_not_known",
    "batch of another epoch mends": f"{_MEND}"
    "::test_I10_the_epoch_shows_another_log_where_no_batch_follows",
    "own batch of another epoch is kept": f"{_MEND}"
    "::test_any_damaged_byte_of_any_batch_is_replaced",
    "fetched batches not verified": f"{_MEND}::test_damaged_bytes_of_another_replica_are_refused",
    "gap of a follower is believed": f"{_MEND}"
    "::test_a_replica_that_lacks_the_same_offsets_mends_nothing_unless_it_is_believed",
    "compacted log of two replicas": f"{_PROGRESS}"
    "::test_a_compacted_log_goes_on_with_the_replica_that_it_began_with",
    "given up at the first answer": f"{_PROGRESS}"
    "::test_a_segment_is_lost_when_all_have_said_ten_times_in_a_row_that_they_lack_it",
    "answers counted by log": f"{_PROGRESS}"
    "::test_what_is_said_of_one_segment_does_not_count_for_another",
    # --- holds
    "no floor during a replay": f"{_HOLDING}/test_releases.py"
    "::test_a_follower_that_is_sent_very_much_at_once_folds_it_later",
    "snapshot that the log start has passed": f"{_HOLDING}/test_hold_snapshots.py"
    "::test_a_snapshot_is_not_used_if_the_log_lets_go_what_came_after_it_while_it_is_read",
    # --- replication and control: no promise breaks
    "progress of another epoch": f"{_FOLLOWER_FETCH}"
    "::test_progress_of_another_epoch_life_or_connection_does_not_count",
    "progress before the cut": f"{_FOLLOWER_FETCH}"
    "::test_progress_counts_as_far_as_the_follower_has_fetched",
    "answer of a former epoch applied": f"{_UNIT}/replication/test_followers.py"
    "::test_an_answer_from_before_the_leaders_next_epoch_is_not_applied",
    "epoch not checked": f"{_UNIT}/replication/test_partition.py"
    "::test_T36_another_leader_epoch_is_refused",
    "cut below what was committed": f"{_UNIT}/replication/test_follower_cuts.py"
    "::test_I13_a_cut_of_committed_records_is_refused_once_and_the_others_go_on",
    "rename during a flush": f"{_UNIT}/storage/directory/test_log_directory.py"
    "::test_a_log_deleted_under_a_running_round_cannot_be_created_before_it_ends",
    "controller unguarded by its epoch": f"{_THREE}"
    "::test_I33_a_stale_controller_steps_down_when_its_write_is_refused",
    "follower does not flush": f"{_UNIT}/replication/test_following.py"
    "::test_what_acknowledgements_wait_for_is_flushed_in_the_next_round",
    "candidates do not count": f"{_UNIT}/replication/test_led_replicas.py"
    "::test_the_marks_wait_for_a_follower_that_has_caught_up_until_it_lags",
    "storm counted dead": f"{_THREE}"
    "::test_a_new_controller_waits_for_several_brokers_that_are_missing_at_once",
}
"""By bug: the test that fails while it is planted."""


def find_in_unit_test(name: str) -> str:
    """How the test fails while the bug is planted; empty: it passes.

    In a process of its own, which runs the sources: compiled code takes no bug.
    """
    command = [sys.executable, "-m", "tests.support.interpreted", "tests.sim.unit_hunt", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), done.stdout
    return done.stdout if done.returncode else ""


def main(name: str, test: str) -> int:
    with MUTANTS[name].planted():
        return pytest.main(["-q", "-x", "--tb=line", "-p", "no:cacheprovider", test])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *(sys.argv[2:] or [UNIT_TESTS[sys.argv[1]]])))
