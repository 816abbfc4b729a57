"""The simulated disk must fail in every way that a real one can."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import NoneType
from zlib import crc32

import pytest

from tidemill.core.errors import DiskFull, InvariantViolation, StorageFault, UserError
from tidemill.core.rng import SeededRng
from tidemill.testing.sim.disk import SimDisk, SimulatedCrash
from tidemill.testing.sim.media import PAGE_BYTES, SECTOR_BYTES

SEEDS = range(60)


def written(disk: SimDisk, path: str, data: bytes, *, sync: bool) -> None:
    file = disk.open(path, create=True)
    file.pwrite([data], 0)
    if sync:
        file.sync()
        disk.sync_directory("/")


def test_synced_bytes_under_a_synced_name_survive_every_crash():
    disk = SimDisk()
    written(disk, "/a", b"safe" * 3000, sync=True)
    for seed in SEEDS:
        assert disk.crash_image(SeededRng(seed)).read_file("/a") == b"safe" * 3000


def test_unsynced_pages_are_kept_lost_or_torn_independently():
    disk = SimDisk()
    written(disk, "/a", b"o" * PAGE_BYTES * 3, sync=True)
    disk.open("/a").pwrite([b"n" * PAGE_BYTES * 3], 0)
    outcomes: set[tuple[str, ...]] = set()
    for seed in range(300):
        image = disk.crash_image(SeededRng(seed)).read_file("/a")
        pages = [image[start : start + PAGE_BYTES] for start in range(0, len(image), PAGE_BYTES)]
        outcomes.add(tuple("".join(sorted(set(page.decode()))) for page in pages))
    assert ("o", "o", "o") in outcomes
    assert ("n", "n", "n") in outcomes
    assert ("o", "n", "no") in outcomes
    assert len(outcomes) == 27


def test_a_torn_page_is_torn_between_sectors():
    disk = SimDisk()
    written(disk, "/a", b"o" * PAGE_BYTES, sync=True)
    disk.open("/a").pwrite([b"n" * PAGE_BYTES], 0)
    for seed in SEEDS:
        image = disk.crash_image(SeededRng(seed)).read_file("/a")
        for start in range(0, PAGE_BYTES, SECTOR_BYTES):
            assert len(set(image[start : start + SECTOR_BYTES])) == 1


def test_the_size_after_a_crash_lies_between_the_synced_and_the_written_one():
    disk = SimDisk()
    written(disk, "/a", b"o" * 100, sync=True)
    disk.open("/a").pwrite([b"n" * 9000], 100)
    sizes = {disk.crash_image(SeededRng(seed)).size("/a") for seed in SEEDS}
    assert {100, 9100} < sizes
    assert all(100 <= size <= 9100 for size in sizes)


def test_bytes_lost_below_the_new_size_read_as_zeros():
    disk = SimDisk()
    written(disk, "/a", b"", sync=True)
    disk.open("/a").pwrite([b"n" * PAGE_BYTES * 2], 0)
    images = [disk.crash_image(SeededRng(seed)).read_file("/a") for seed in range(200)]
    assert any(b"\0" in image and b"n" in image for image in images)
    assert all(set(image) <= set(b"\0n") for image in images)


def test_an_unsynced_truncation_may_be_undone_by_a_crash():
    disk = SimDisk()
    written(disk, "/a", b"o" * 10_000, sync=True)
    disk.open("/a").truncate(10)
    sizes = {disk.crash_image(SeededRng(seed)).size("/a") for seed in SEEDS}
    assert {10, 10_000} <= sizes


def test_bytes_cut_and_grown_again_are_zeros_once_synced():
    disk = SimDisk()
    written(disk, "/a", b"o" * 10_000, sync=True)
    file = disk.open("/a")
    file.truncate(10)
    file.truncate(10_000)
    file.sync()
    assert disk.crash_image(SeededRng(1)).read_file("/a") == b"o" * 10 + bytes(9990)


@pytest.mark.parametrize("change", ["create", "rename", "unlink", "make", "remove"])
def test_a_change_of_names_may_be_lost_until_the_directory_is_synced(change):
    disk = SimDisk()
    written(disk, "/old", b"1", sync=True)
    disk.make_directories("/dir")
    disk.sync_directory("/")
    before = tuple(disk.list_names("/"))
    if change == "create":
        written(disk, "/new", b"2", sync=False)
    elif change == "rename":
        disk.rename("/old", "/new")
    elif change == "unlink":
        disk.unlink("/old")
    elif change == "make":
        disk.make_directories("/made")
    else:
        disk.remove_directory("/dir")
    after = tuple(disk.list_names("/"))
    assert {tuple(disk.crash_image(SeededRng(seed)).list_names("/")) for seed in SEEDS} == {
        before,
        after,
    }
    disk.sync_directory("/")
    assert {tuple(disk.crash_image(SeededRng(seed)).list_names("/")) for seed in SEEDS} == {after}


def test_a_synced_file_is_lost_with_its_unsynced_name():
    disk = SimDisk()
    file = disk.open("/a", create=True)
    file.pwrite([b"x"], 0)
    file.sync()
    assert any(not disk.crash_image(SeededRng(seed)).exists("/a") for seed in SEEDS)


def test_atomic_write_leaves_the_old_or_the_new_content_at_every_call():
    disk = SimDisk()
    disk.write_file_atomically("/a", b"old" * 2000)
    contents: set[bytes] = set()

    def look(_disk: SimDisk, _call: str, _path: str) -> None:
        contents.update(disk.crash_image(SeededRng(seed)).read_file("/a") for seed in SEEDS)

    disk.on_call = look
    disk.write_file_atomically("/a", b"new" * 3000)
    assert contents == {b"old" * 2000, b"new" * 3000}
    assert disk.crash_image(SeededRng(0)).read_file("/a") == b"new" * 3000


def test_after_a_failed_sync_a_second_one_succeeds_and_proves_nothing():
    disk = SimDisk()
    written(disk, "/a", b"old", sync=True)
    file = disk.open("/a")
    file.pwrite([b"new"], 0)
    disk.fail("sync", "/a")
    with pytest.raises(StorageFault):
        file.sync()
    file.sync()
    assert file.pread(3, 0) == b"new"
    assert disk.crash(SeededRng(1)).read_file("/a") == b"old"


def test_after_a_failed_sync_only_another_write_gets_the_bytes_to_the_disk():
    disk = SimDisk()
    written(disk, "/a", b"", sync=True)
    file = disk.open("/a")
    file.pwrite([b"new" * 2000], 0)
    disk.fail("sync", "/a")
    with pytest.raises(StorageFault):
        file.sync()
    file.pwrite([file.pread(6000, 0)], 0)
    file.sync()
    assert disk.crash(SeededRng(1)).read_file("/a") == b"new" * 2000


def test_planted_faults_hit_the_named_call_and_path_as_often_as_asked():
    disk = SimDisk()
    one, two = disk.open("/one", create=True), disk.open("/two", create=True)
    disk.fail("pwrite", "two", times=2)
    one.pwrite([b"x"], 0)
    for _ in range(2):
        with pytest.raises(StorageFault):
            two.pwrite([b"x"], 0)
    two.pwrite([b"x"], 0)


def test_a_full_disk_writes_what_fits_and_raises():
    disk = SimDisk(capacity_bytes=10)
    file = disk.open("/a", create=True)
    file.pwrite([b"12345678"], 0)
    with pytest.raises(DiskFull):
        file.pwrite([b"abcd"], 8)
    assert file.pread(20, 0) == b"12345678ab"
    assert disk.space("/").usable_bytes == 0


def test_space_is_freed_when_files_are_cut_or_removed():
    disk = SimDisk(capacity_bytes=10)
    file = disk.open("/a", create=True)
    file.pwrite([b"12345678"], 0)
    file.truncate(3)
    assert disk.space("/").usable_bytes == 7
    disk.unlink("/a")
    assert disk.space("/").usable_bytes == 10


def test_the_process_dies_before_the_call_that_was_named():
    disk = SimDisk()
    disk.stop_at_call(3)
    file = disk.open("/a", create=True)
    file.pwrite([b"1"], 0)
    with pytest.raises(SimulatedCrash):
        file.pwrite([b"2"], 1)
    assert disk.calls == 3
    assert disk.read_file("/a") == b"1"


def test_after_a_crash_the_dead_process_can_do_nothing():
    disk = SimDisk()
    file = disk.open("/a", create=True)
    disk.crash(SeededRng(1))
    for attempt in (lambda: file.pread(1, 0), lambda: disk.exists("/a"), file.sync):
        with pytest.raises(SimulatedCrash):
            attempt()


def test_a_restart_keeps_written_bytes_and_a_later_crash_may_lose_them():
    disk = SimDisk()
    written(disk, "/a", b"x" * 5000, sync=False)
    successor = disk.restart()
    assert successor.read_file("/a") == b"x" * 5000
    assert any(not successor.crash_image(SeededRng(seed)).exists("/a") for seed in SEEDS)


def test_a_lock_dies_with_its_process_and_only_with_it():
    disk = SimDisk()
    disk.lock("/.lock")
    with pytest.raises(UserError):
        disk.beside().lock("/.lock")
    successor = disk.restart()
    successor.lock("/.lock")


def test_bit_rot_changes_the_bytes_for_good():
    disk = SimDisk()
    written(disk, "/a", b"\0\0\0", sync=True)
    disk.flip_bit("/a", 1, bit=3)
    assert disk.read_file("/a") == b"\0\x08\0"
    assert disk.crash(SeededRng(1)).read_file("/a") == b"\0\x08\0"


def test_cutting_mapped_bytes_in_place_is_caught():
    disk = SimDisk()
    file = disk.open("/a", create=True)
    file.pwrite([bytes(10)], 0)
    assert file.try_resident_view(0, 10) is not None
    file.pwrite([bytes(10)], 10)
    file.truncate(10)
    with pytest.raises(InvariantViolation):
        file.truncate(9)


def test_a_delayed_operation_happens_between_two_waits(run):
    seen: list[str] = []

    async def scenario() -> None:
        disk = SimDisk(run_delay_s=lambda: 1e-6)
        task = asyncio.ensure_future(disk.run(lambda: seen.append("operation")))
        seen.append("before")
        await task

    run(scenario())
    assert seen == ["before", "operation"]


def test_the_same_seed_gives_the_same_crash():
    def image(seed: int) -> bytes:
        disk = SimDisk()
        written(disk, "/a", b"", sync=True)
        disk.open("/a").pwrite([bytes(range(1, 251)) * 100], 0)
        return disk.crash(SeededRng(seed)).read_file("/a")

    assert [image(seed) for seed in SEEDS] == [image(seed) for seed in SEEDS]


def test_files_are_dated_by_the_clock_of_the_machine_and_keep_their_date_in_a_crash():
    now_ms = [1_000]
    disk = SimDisk(wall_ms=lambda: now_ms[0])
    disk.open("/a", create=True)
    disk.sync_directory("/")
    now_ms[0] = 2_000
    assert disk.crash(SeededRng(1)).changed_ms("/a") == 1_000


def test_a_rename_updates_the_date_of_a_file():
    now_ms = [1_000]
    disk = SimDisk(wall_ms=lambda: now_ms[0])
    disk.open("/a", create=True)
    now_ms[0] = 2_000
    disk.rename("/a", "/b")
    assert disk.changed_ms("/b") == 2_000


@pytest.mark.parametrize(
    ("calls", "survives"), [(0, {"nothing"}), (1, {"nothing", "all", "part"}), (2, {"all"})]
)
def test_a_crash_may_come_before_between_or_after_the_two_calls_of_a_gathered_write(
    run, calls, survives
):
    disk = SimDisk()
    written(disk, "/s", b"n" * PAGE_BYTES, sync=True)
    written(disk, "/t", b"", sync=True)
    disk.stop_at_call(disk.calls + calls + 1)
    with suppress(SimulatedCrash):
        run(disk.write_gathered(disk.open("/t"), 0, b"head", [(disk.open("/s"), 0, PAGE_BYTES)]))
    whole = crc32(b"head" + b"n" * PAGE_BYTES).to_bytes(4, "big") + b"head" + b"n" * PAGE_BYTES
    images = [disk.crash_image(SeededRng(seed)).read_file("/t") for seed in SEEDS]
    kinds = {whole: "all", b"": "nothing"}
    assert {kinds.get(image, "part") for image in images} == survives


def test_a_planted_fault_hits_one_of_the_files_that_are_synced_together(run):
    disk = SimDisk()
    files = [disk.open(f"/{name}", create=True) for name in "abc"]
    calls = disk.calls
    disk.fail("sync", "/b")
    outcomes = run(disk.sync_files(files))
    assert [type(outcome) for outcome in outcomes] == [NoneType, StorageFault, NoneType]
    assert disk.calls == calls + 3


@pytest.mark.parametrize(("call", "path"), [("pread", "/s"), ("pwrite", "/t"), ("sync", "/t")])
def test_a_planted_fault_fails_a_gathered_write(run, call, path):
    disk = SimDisk()
    source, target = disk.open("/s", create=True), disk.open("/t", create=True)
    source.pwrite([b"12345"], 0)
    disk.fail(call, path)
    with pytest.raises(StorageFault, match=call):
        run(disk.write_gathered(target, 0, b"head", [(source, 0, 5)]))


def test_a_delayed_sync_happens_between_two_waits(run):
    disk = SimDisk(run_delay_s=lambda: 0.0001)
    file = disk.open("/a", create=True)
    file.pwrite([b"x"], 0)
    assert run(disk.sync_files([file])) == [None]
