from __future__ import annotations

import pytest

from tidemill.spark.pipelines.merging.batch_folders import BatchFolder, folders_to_merge

Q = "1f0c2d3e"


@pytest.mark.parametrize("name", [f"batch={Q}-41", f"batch={Q}-3-40", "batch=batch-0"])
def test_a_name_comes_back_from_its_parts(name):
    assert BatchFolder.try_parse(name).name == name


@pytest.mark.parametrize(
    "name", ["batch=", "batch=x", f".batch={Q}-1", f"batch={Q}-1-2-3", "hour=1"]
)
def test_names_of_others_are_not_ours(name):
    assert BatchFolder.try_parse(name) is None


def test_only_a_range_has_merged_a_batch():
    batch = BatchFolder.of_batch(f"{Q}-and-the-rest", 7)

    assert BatchFolder(Q, 3, 7).has_merged(batch)
    assert not BatchFolder(Q, 7, 7).has_merged(batch)
    assert not BatchFolder(Q, 8, 9).has_merged(batch)
    assert not BatchFolder("other", 3, 7).has_merged(batch)


def test_small_folders_of_finished_batches_of_one_query_are_merged_in_their_order():
    sizes = {
        BatchFolder(Q, 10, 10): 1,
        BatchFolder(Q, 2, 2): 1,
        BatchFolder(Q, 3, 9): 100,
        BatchFolder(Q, 11, 11): 1,
        BatchFolder("other", 1, 1): 1,
    }

    chosen = folders_to_merge(sizes, BatchFolder(Q, 10, 10), 100)

    assert chosen == [BatchFolder(Q, 2, 2), BatchFolder(Q, 10, 10)]
    assert BatchFolder.around(chosen) == BatchFolder(Q, 2, 10)


def test_a_single_small_folder_is_not_copied():
    sizes = {BatchFolder(Q, 1, 8): 500, BatchFolder(Q, 9, 9): 1}

    assert folders_to_merge(sizes, BatchFolder(Q, 10, 10), 100) == []


def test_a_late_line_does_not_copy_a_folder_that_is_much_larger():
    sizes = {BatchFolder(Q, 0, 8): 90, BatchFolder(Q, 9, 9): 1}

    assert folders_to_merge(sizes, BatchFolder(Q, 10, 10), 100) == []


@pytest.mark.parametrize("late_bytes", [1, 3])
def test_rows_are_copied_a_bounded_number_of_times_however_often_late_lines_come(late_bytes):
    full_bytes = 100_000
    sizes = {BatchFolder(Q, 0, 0): 60_000, BatchFolder(Q, 1, 1): 20_000}
    copied = 0
    for number in range(2, 3_000):
        sizes[BatchFolder(Q, number, number)] = late_bytes
        chosen = folders_to_merge(sizes, BatchFolder(Q, number, number), full_bytes)
        if chosen:
            copied += sum(sizes[folder] for folder in chosen if sizes[folder] > full_bytes // 64)
            sizes[BatchFolder.around(chosen)] = sum(sizes.pop(folder) for folder in chosen)
        assert len(sizes) < 12

    assert copied < 10 * sum(sizes.values())


def test_an_hour_of_any_size_is_merged_a_bounded_part_at_a_time():
    sizes = {BatchFolder(Q, n, n): 50 for n in range(20)}

    chosen = folders_to_merge(sizes, BatchFolder(Q, 19, 19), 100)

    assert chosen == [BatchFolder(Q, n, n) for n in range(8)]
