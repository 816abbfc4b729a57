"""Bytes that change between two brokers: TCP's checksum is weak, and switches have bad memory."""

from __future__ import annotations

from tests.sim.replicas import replica
from tests.sim.three_brokers import ORDERS, SEEDS, Bench, run
from tidemill.testing.sim.world import host_name

SENT_BEFORE = 3


async def _send_through_damage(bench: Bench) -> None:
    await bench.send(SENT_BEFORE)
    follower = bench.followers[0]
    met = []

    def damage(data: bytes) -> bytes:
        damaged = data.replace(b"1/", b"1?")
        met.extend([damaged] if damaged != data else [])
        return damaged

    bench.world.net.damage(host_name(bench.leader), host_name(follower), damage)
    await bench.send(SENT_BEFORE)  # the follower leaves the in-sync set
    assert met
    end = replica(bench.world, follower, ORDERS).log.log_end_offset
    assert end == SENT_BEFORE, "the follower took what is not what its leader has"
    bench.world.net.heal_all()
    await bench.check()


@SEEDS
def test_I10_a_follower_takes_no_batch_that_changed_on_its_way(seed):
    run(_send_through_damage, seed)
