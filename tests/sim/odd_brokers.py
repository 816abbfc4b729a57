"""Brokers that behave as none of this version does: hasty leaders, and other versions.

A leader that takes healthy followers out of in-sync sets breaks no rule: a machine that stood still
for a moment, or a person who set a low limit, comes to the same. Versions differ in what a broker
says of its software: it is let in or kept out by it, and asked other things.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tidemill.core.rng import SeededRng
from tidemill.metadata.features.feature_levels import (
    METADATA_VERSION,
    OLDER_SOFTWARE,
    THIS_SOFTWARE,
    TIDEMILL_VERSION,
    LevelRange,
    Software,
)
from tidemill.testing.sim.world import SimWorld

__all__ = ["OTHER_VERSION", "founding_software", "run_other_version", "shrink_early"]

OTHER_VERSION = "other_version"
Pause = Callable[[float], Awaitable[None]]

ALL_LAG_S = -1.0
ONE_LOOK_S = 0.6
"""A little longer than from one look at the followers to the next."""
NOBODY_MAY_LAG_S = 0.0

NEWER_SOFTWARE = Software(
    "99.0.0",
    {
        **THIS_SOFTWARE.ranges,
        TIDEMILL_VERSION: LevelRange(1, 3),
        "shelves.version": LevelRange(0, 1),
    },
)
"""It knows all that this one knows, and a feature more."""
TOO_NEW_SOFTWARE = Software(
    "100.0.0", {**THIS_SOFTWARE.ranges, METADATA_VERSION: LevelRange(31, 40)}
)
"""It has forgotten what this cluster goes by, and is kept out."""
OTHERS = (OLDER_SOFTWARE, THIS_SOFTWARE, NEWER_SOFTWARE, TOO_NEW_SOFTWARE)


def founding_software(seed: int, *, has_versions: bool) -> Software:
    """The oldest founds half of the clusters with several versions: there it stays let in."""
    return OLDER_SOFTWARE if has_versions and seed % 2 else THIS_SOFTWARE


async def shrink_early(world: SimWorld, rng: SeededRng, pause: Pause, broker_id: int) -> None:
    """As a leader it takes out all followers at once, or for a while each that is not level."""
    epochs = world.broker(broker_id).replicas.broker_epochs
    usual_s = epochs.lag_s_max
    if rng.below(2):
        epochs.lag_s_max = ALL_LAG_S
        await asyncio.sleep(ONE_LOOK_S)
    else:
        epochs.lag_s_max = NOBODY_MAY_LAG_S
        await pause(20.0)
    epochs.lag_s_max = usual_s


async def run_other_version(
    world: SimWorld,
    rng: SeededRng,
    pause: Pause,
    restart: Callable[[int], Awaitable[None]],
    broker_id: int,
) -> None:
    """It is restarted as other software, and after a while as this one."""
    world.software[broker_id] = OTHERS[rng.below(len(OTHERS))]
    await restart(broker_id)
    await pause(30.0)
    world.software[broker_id] = THIS_SOFTWARE
    await restart(broker_id)
