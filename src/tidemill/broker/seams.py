"""The doors to the outside that a broker is given; a simulation brings its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from tidemill.core.clock import Clock
from tidemill.core.net import Net
from tidemill.core.rng import Rng
from tidemill.storage.files.disk import Disk

__all__ = ["Seams"]


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Seams:
    """Clock, network, disk and random numbers; the fifth seam, Coord, belongs to the cluster."""

    clock: Clock
    net: Net
    disk: Disk
    rng: Rng
