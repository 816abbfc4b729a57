from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.errors import InvariantViolation
from tidemill.storage.files.checked_file import DamagedFile, encode_checked
from tidemill.storage.state.leader_epochs import NO_EPOCH, LeaderEpochs

LOG_END = 100


@pytest.fixture
def epochs() -> LeaderEpochs:
    return LeaderEpochs([(1, 0), (3, 10), (7, 40)])


def test_a_new_list_knows_nothing():
    empty = LeaderEpochs()
    assert (len(empty), empty.latest, empty.latest_start_offset) == (0, NO_EPOCH, -1)
    assert empty.end_offset_for(NO_EPOCH, 0) == (-1, -1)
    assert empty.epoch_at(0) == NO_EPOCH


def test_a_log_that_lost_all_its_records_tells_a_reader_at_its_end_to_go_on():
    # A reset instead would skip what is written before the reader has looked the end up again.
    assert LeaderEpochs().end_offset_for(5, 40) == (5, 40)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 0)),
        (1, (1, 10)),
        (2, (1, 10)),
        (3, (3, 40)),
        (6, (3, 40)),
        (7, (7, LOG_END)),
        (8, (7, LOG_END)),
    ],
)
def test_T37_the_largest_epoch_up_to_the_asked_one_and_its_end(epochs, asked, answer):
    assert epochs.end_offset_for(asked, LOG_END) == answer


def test_T37_an_epoch_older_than_all_ended_where_the_log_now_begins(epochs):
    """Everything that it wrote was deleted: its readers lost nothing and go on from there."""
    epochs.truncate_from_start(50)
    assert epochs.end_offset_for(3, LOG_END) == (3, 50)


@pytest.mark.parametrize(("offset", "epoch"), [(0, 1), (9, 1), (10, 3), (39, 3), (40, 7), (99, 7)])
def test_every_offset_has_the_epoch_that_wrote_it(epochs, offset, epoch):
    assert epochs.epoch_at(offset) == epoch


def test_naming_the_newest_epoch_again_changes_nothing(epochs):
    version = epochs.version
    epochs.assign(7, 70)
    assert epochs.entries() == ((1, 0), (3, 10), (7, 40))
    assert epochs.version == version


def test_an_epoch_that_wrote_nothing_is_replaced_by_the_next(epochs):
    epochs.assign(8, 60)
    epochs.assign(9, 60)
    assert epochs.entries() == ((1, 0), (3, 10), (7, 40), (9, 60))
    assert epochs.latest_start_offset == 60


@pytest.mark.parametrize(("epoch", "start"), [(6, 50), (8, 39)])
def test_I11_epochs_and_their_starts_never_fall(epochs, epoch, start):
    with pytest.raises(InvariantViolation):
        epochs.assign(epoch, start)


@pytest.mark.parametrize(
    ("offset", "kept"), [(0, 0), (1, 1), (10, 1), (11, 2), (40, 2), (41, 3), (99, 3)]
)
def test_truncation_from_the_end_forgets_epochs_that_began_there(epochs, offset, kept):
    expected = epochs.entries()[:kept]
    epochs.truncate_from_end(offset)
    assert epochs.entries() == expected
    assert epochs.latest == (expected[-1][0] if expected else NO_EPOCH)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, ((1, 0), (3, 10), (7, 40))),
        (5, ((1, 5), (3, 10), (7, 40))),
        (10, ((3, 10), (7, 40))),
        (39, ((3, 39), (7, 40))),
        (90, ((7, 90),)),
    ],
)
def test_truncation_from_the_start_merges_into_the_epoch_that_holds_it(epochs, offset, expected):
    epochs.truncate_from_start(offset)
    assert epochs.entries() == expected


def test_every_change_raises_the_version(epochs):
    seen = [epochs.version]
    for change in (
        lambda: epochs.assign(8, 50),
        lambda: epochs.truncate_from_start(5),
        lambda: epochs.truncate_from_end(50),
        epochs.clear,
    ):
        change()
        seen.append(epochs.version)
    assert seen == sorted(set(seen))


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 99)), max_size=30))
def test_encoded_epochs_are_decoded(steps):
    epochs, epoch, offset = LeaderEpochs(), 0, 0
    for epoch_step, offset_step in steps:
        epoch, offset = epoch + epoch_step, offset + offset_step
        epochs.assign(epoch, offset)
    assert LeaderEpochs.decode(epochs.encode()).entries() == epochs.entries()


@pytest.mark.parametrize("payload", [b"x", bytes(24)], ids=["half an entry", "not rising"])
def test_an_impossible_list_is_damage(payload):
    with pytest.raises(DamagedFile):
        LeaderEpochs.decode(encode_checked(b"EPOC", 1, payload))
