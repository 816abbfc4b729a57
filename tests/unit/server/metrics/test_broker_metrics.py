"""The metrics page parses as Prometheus text; values are exact, labels from closed sets."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace

from tests.support.memory_peer import Server, settle, simulated
from tidemill.metadata.image.metadata_image import MetadataImage
from tidemill.server.metrics.broker_metrics import METRICS, render
from tidemill.storage.files.disk_work import DiskLoad, DiskWork

LINE = re.compile(r"^([a-z_]+)(?:\{((?:[a-z]+=\"[^\"\\\n]*\",?)*)\})? (\S+)$")


def parse(page):
    """Families by name: kind and samples (name, labels) -> value; fails on anything else."""
    families, samples = {}, None
    for line in page.splitlines():
        if line.startswith("# HELP "):
            continue
        if line.startswith("# TYPE "):
            name, kind = line.removeprefix("# TYPE ").split()
            samples = {}
            families[name] = (kind, samples)
            continue
        name, labels, value = LINE.match(line).groups()
        assert name.startswith(next(reversed(families)))
        assert (name, labels) not in samples
        samples[name, labels] = float(value)
    return families


class NoLogs:
    hold_clock_steps = 0

    def __iter__(self):
        return iter(())

    def __len__(self):
        return 0

    def find(self, topic, index):
        return None


class NoShards:
    def shards(self):
        return iter(())


def coordinate_nothing(server):
    server.services.groups = server.services.transactions = NoShards()
    server.services.marker_sender = SimpleNamespace(markers_left=0)


class WalkedOffsets:
    """One committed offset; counts how often it was walked."""

    count = 1
    walks = 0

    def committed(self):
        self.walks += 1
        yield "t", 0, 5


class WalkedShard:
    """A shard with one committed offset."""

    rebalances = 0

    def __init__(self):
        self.offsets = WalkedOffsets()

    def count_states(self):
        return Counter(Empty=1)


async def page_of(server):
    server.services.replicas = NoLogs()
    coordinate_nothing(server)
    return parse(render(server.resources))


@simulated
async def test_every_metric_is_on_the_page_and_every_line_parses():
    server = Server()
    client = server.connect()
    server.step_ends.set()
    client.send(client.quick() + client.slow() + client.refused())
    await settle()
    families = await page_of(server)
    assert list(families) == [metric.name for metric in METRICS]
    requests = families["tidemill_requests_total"][1]
    assert requests["tidemill_requests_total", 'api="DescribeGroups"'] == 1


@simulated
async def test_each_kind_of_disk_work_is_measured_apart(monkeypatch):
    server = Server()
    loads = {
        DiskWork.FLUSH: DiskLoad(),
        DiskWork.READ: DiskLoad(running=4, waiting=3, waited=2, refused=1),
        DiskWork.BACKGROUND: DiskLoad(running=1),
    }
    monkeypatch.setattr(server.services.disk, "load_of", loads.get)
    families = await page_of(server)
    names = ("running", "waiting", "waited_total", "refused_total")
    shown = [families[f"tidemill_disk_{name}"][1].values() for name in names]
    assert [list(samples) for samples in shown] == [[0, 4, 1], [0, 3, 0], [0, 2, 0], [0, 1, 0]]


@simulated
async def test_large_counters_keep_every_digit():
    server = Server()
    server.services.telemetry.bytes_in = 123_456_789_012_345
    families = await page_of(server)
    _, samples = families["tidemill_bytes_in_total"]
    assert samples["tidemill_bytes_in_total", None] == 123_456_789_012_345


@simulated
async def test_a_histogram_rises_to_its_count_and_its_bounds_are_exact():
    server = Server()
    stall = server.services.telemetry.loop_stall
    for seconds in (0.0, 0.000001, 0.003, 0.5, 1000.0):
        stall.observe(seconds)
    _, samples = (await page_of(server))["tidemill_loop_stall_seconds"]
    name = "tidemill_loop_stall_seconds"
    buckets = [
        (float(labels.removeprefix('le="').rstrip('"')), value)
        for (sample, labels), value in samples.items()
        if sample == f"{name}_bucket"
    ]
    assert buckets == sorted(buckets)
    assert buckets[-1] == (float("inf"), 5)
    assert dict(buckets)[0.004096] == 3
    assert samples[f"{name}_count", None] == 5
    assert abs(samples[f"{name}_sum", None] - 1000.503001) < 1e-9


@simulated
async def test_committed_offsets_are_walked_once_per_scrape():
    server = Server()
    shard = WalkedShard()
    server.services.replicas = NoLogs()
    coordinate_nothing(server)
    server.services.cluster = SimpleNamespace(image=MetadataImage())
    server.services.groups = SimpleNamespace(shards=lambda: iter([shard]))
    for scrapes in (1, 2):
        render(server.resources)
        assert shard.offsets.walks == scrapes


@simulated
async def test_S38_no_text_from_a_client_becomes_a_label():
    server = Server()
    server.group_ids = ['evil"} 1\n']
    client = server.connect()
    client.send(client.quick())
    families = await page_of(server)
    assert "evil" not in str(families)
