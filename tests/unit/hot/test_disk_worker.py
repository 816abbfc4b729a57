"""The threads of flushes: compiled and plain keep the same promises."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
import select
import struct
import sys
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.flavours import FLAVOURS, load

DEADLINE_MS = 30_000
CLOSED = 1 << 20
"""No process of ours has as many descriptors."""


@pytest.fixture(params=FLAVOURS)
def module(request):
    return load(request.param, "disk_worker")


@pytest.fixture
def worker(module):
    made = module.DiskWorker(4, "disk-test")
    yield made
    made.close()


@pytest.fixture
def files(tmp_path):
    flags = os.O_RDWR | os.O_CREAT
    descriptors = [os.open(tmp_path / str(number), flags) for number in range(8)]
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def wait(worker, count=1):
    """The next `count` outcomes, by ticket."""
    poll = select.poll()
    poll.register(worker.fileno(), select.POLLIN)
    outcomes = []
    while len(outcomes) < count:
        assert poll.poll(DEADLINE_MS), "no outcome"
        outcomes += worker.take_outcomes()
    assert len(outcomes) == count
    return dict(outcomes)


@given(data=st.binary(max_size=100))
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_checksum_is_that_of_zlib(flavour, data):
    assert load(flavour, "disk_worker").checksum(data) == crc32(data)


def test_the_checksum_of_many_bytes_is_that_of_zlib(module):
    data = bytes(number * 31 % 256 for number in range(100_001))
    for end in range(100_001 - 9, 100_001):
        assert module.checksum(data[:end]) == crc32(data[:end])


def test_a_ticket_comes_back_with_its_outcome(worker, files):
    worker.submit_sync("a", files)
    worker.submit_sync("b", files[:1])
    worker.submit_gathered("c", files[0], 0, b"head", [])
    assert wait(worker, 3) == {"a": [], "b": [], "c": []}
    assert worker.take_outcomes() == []


def test_a_failed_file_is_named_by_its_index_and_errno(worker, files):
    worker.submit_sync("a", [files[0], -1, files[1], CLOSED, files[2], files[3]])
    assert wait(worker) == {"a": [(1, errno.EBADF), (3, errno.EBADF)]}


def test_a_file_of_a_kind_that_cannot_be_synced_is_a_failure(worker):
    reading, writing = os.pipe()
    worker.submit_sync("a", [reading])
    assert wait(worker) == {"a": [(0, errno.EINVAL)]}
    worker.submit_gathered("b", writing, 0, b"", [])
    assert wait(worker) == {"b": [(-1, errno.ESPIPE)]}
    os.close(reading)
    os.close(writing)


def test_a_range_that_cannot_be_read_is_named_and_nothing_is_written(module, worker, files):
    os.pwrite(files[0], b"12345", 0)
    worker.submit_gathered("short", files[7], 0, b"", [(files[0], 0, 5), (files[0], 3, 3)])
    assert wait(worker) == {"short": [(1, module.SHORT_READ)]}
    worker.submit_gathered("gone", files[7], 0, b"", [(CLOSED, 0, 5)])
    assert wait(worker) == {"gone": [(0, errno.EBADF)]}
    assert os.fstat(files[7]).st_size == 0


def test_a_full_device_is_a_failure_of_the_target(module, worker, files):
    full = os.open("/dev/full", os.O_RDWR)
    worker.submit_gathered("a", full, 0, b"head", [])
    assert wait(worker) == {"a": [(module.TARGET, errno.ENOSPC)]}
    os.close(full)


def test_a_write_at_a_far_position_keeps_all_of_its_bits(worker, files):
    far = 5 << 32
    os.pwrite(files[0], b"12345", far)
    worker.submit_gathered("a", files[1], far + 7, b"h", [(files[0], far + 1, 3)])
    assert wait(worker) == {"a": []}
    assert os.pread(files[1], 100, far + 7) == crc32(b"h234").to_bytes(4, "big") + b"h234"


def test_what_cannot_be_a_job_is_refused_and_leaves_nothing_behind(worker, files):
    with pytest.raises(ValueError, match="no file"):
        worker.submit_sync("a", [])
    for position, one in [(-1, (files[0], 0, 1)), (0, (files[0], -1, 1)), (0, (files[0], 0, -1))]:
        with pytest.raises(ValueError, match="below zero"):
            worker.submit_gathered("a", files[1], position, b"", [one])
    assert worker.load() == (0, 0)


def test_the_worker_holds_a_ticket_until_its_outcome_is_taken(worker, files):
    ticket = object()
    before = sys.getrefcount(ticket)
    worker.submit_sync(ticket, files)
    assert sys.getrefcount(ticket) > before
    wait(worker)
    worker.submit_sync(None, files)  # the plain threads forget the last job with the next one
    wait(worker)
    gc.collect()
    assert sys.getrefcount(ticket) == before


def test_close_waits_for_every_job_and_outcomes_can_still_be_taken(module, files):
    worker = module.DiskWorker(2, "disk-test")
    os.pwrite(files[0], bytes(1 << 16), 0)
    ranges = [(files[0], number, 256) for number in range(1_000)]
    for number in range(20):
        worker.submit_gathered(number, files[1], number << 20, b"", ranges)
    worker.close()
    assert worker.load() == (0, 0)
    assert sorted(worker.take_outcomes()) == [(number, []) for number in range(20)]
    assert os.fstat(files[1]).st_size == (19 << 20) + 4 + 256_000
    assert worker.fileno() == -1
    worker.close()


def test_a_closed_worker_takes_no_more_jobs(module, files):
    worker = module.DiskWorker(1, "disk-test")
    worker.close()
    with pytest.raises(ValueError, match="closed"):
        worker.submit_sync("a", files)
    with pytest.raises(ValueError, match="closed"):
        worker.submit_gathered("a", files[0], 0, b"", [])


def test_a_worker_that_is_dropped_while_it_is_busy_ends_its_jobs(files):
    worker = load("compiled", "disk_worker").DiskWorker(2, "disk-test")
    event = worker.fileno()
    ticket = object()
    before = sys.getrefcount(ticket)
    os.pwrite(files[0], bytes(1 << 16), 0)
    for number in range(20):
        worker.submit_gathered(ticket, files[1], number << 20, b"", [(files[0], 0, 1 << 16)])
    del worker
    assert os.fstat(files[1]).st_size == (19 << 20) + 4 + (1 << 16)
    assert sys.getrefcount(ticket) == before
    with pytest.raises(OSError, match="Bad file"):
        os.eventfd_read(event)


def test_the_load_counts_jobs_and_never_more_than_were_submitted(worker, files):
    os.pwrite(files[0], bytes(1 << 16), 0)
    for number in range(50):
        worker.submit_gathered(number, files[1], 0, b"", [(files[0], 0, 1 << 16)] * 16)
        running, waiting = worker.load()
        assert 0 <= running <= 4
        assert waiting >= 0
        assert running + waiting <= number + 1
    wait(worker, 50)
    assert worker.load() == (0, 0)


def test_jobs_end_while_this_thread_never_lets_go_of_the_interpreter(files):
    worker = load("compiled", "disk_worker").DiskWorker(2, "disk-test")
    # A call through PyDLL keeps the interpreter's lock, here until outcomes wait.
    poll = ctypes.PyDLL(None).poll
    watched = ctypes.create_string_buffer(struct.pack("ihh", worker.fileno(), select.POLLIN, 0))
    os.pwrite(files[0], b"12345", 0)
    worker.submit_sync("sync", files)
    assert poll(watched, 1, DEADLINE_MS) == 1
    assert worker.take_outcomes() == [("sync", [])]
    worker.submit_gathered("write", files[1], 0, b"head", [(files[0], 0, 5)])
    assert poll(watched, 1, DEADLINE_MS) == 1
    assert worker.take_outcomes() == [("write", [])]
    worker.close()


def test_jobs_of_every_kind_and_outcome_are_all_told_apart(worker, files):
    for number, file in enumerate(files):
        os.pwrite(file, bytes([number]) * 100, 0)
    expected = {}
    for number in range(2_000):
        match number % 5:
            case 0:
                worker.submit_sync(number, [files[number % 8]])
                expected[number] = []
            case 1:
                worker.submit_sync(number, [files[0], CLOSED, -1])
                expected[number] = [(1, errno.EBADF), (2, errno.EBADF)]
            case 2:
                worker.submit_gathered(number, files[0], 200, b"x", [(files[1], 0, 50)] * 3)
                expected[number] = []
            case 3:
                worker.submit_gathered(number, files[0], 200, b"x", [(files[2], 51, 50)])
                expected[number] = [(0, -1)]
            case _:
                worker.submit_gathered(number, CLOSED, 200, b"x", [(files[2], 50, 50)])
                expected[number] = [(-1, errno.EBADF)]
    assert wait(worker, 2_000) == expected


@pytest.mark.filterwarnings("ignore:This process")  # of threads: that is what is tried
def test_a_forked_process_has_no_threads_and_leaves_those_of_its_parent_alone(module, files):
    worker = module.DiskWorker(2, "disk-test")
    worker.submit_sync("before", files)
    wait(worker)
    child = os.fork()
    if child == 0:
        worker.close()
        del worker
        os._exit(7)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    worker.submit_sync("after", files)
    assert wait(worker) == {"after": []}
    worker.close()
