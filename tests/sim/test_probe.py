"""The probe sees what no planted bug leads to, because a second check stands behind the first."""

from __future__ import annotations

import pytest

from tests.sim.probe import InvariantBroken, Probe
from tidemill.metadata.image.head import PARTS
from tidemill.metadata.image.nodes import CONTROLLER_EPOCH
from tidemill.metadata.store.coord import Create, Put
from tidemill.testing.sim.world import SimWorld


@pytest.mark.parametrize("is_replaced", [False, True])
def test_I33_a_write_of_a_controller_that_was_replaced_is_seen(is_replaced):
    async def main(world: SimWorld) -> None:
        probe, store = Probe(world, []), world.coord
        first, second = store.session(), store.session()
        store.multi(first, [Create(CONTROLLER_EPOCH, b"1")])
        if is_replaced:
            store.multi(second, [Put(CONTROLLER_EPOCH, b"2", 0)])
        store.multi(first, [Create(PARTS[0], b"")])
        probe.check()

    if not is_replaced:
        SimWorld(0).run(main)
        return
    with pytest.raises(InvariantBroken, match="I33"):
        SimWorld(0).run(main)
