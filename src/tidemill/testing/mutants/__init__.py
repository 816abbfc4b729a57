"""Planted bugs by subject; importing this makes all of them known."""

from __future__ import annotations

from tidemill.testing.mutants import (
    control,
    groups,
    holds,
    logs,
    mending,
    replicas,
    transactions,
    views,
)
from tidemill.testing.mutants.planting import (
    MUTANTS,
    Detection,
    Mutant,
    MutantNotPlantable,
    mutant,
    seeds_to_detection,
)

__all__ = [
    "MUTANTS",
    "Detection",
    "Mutant",
    "MutantNotPlantable",
    "control",
    "groups",
    "holds",
    "logs",
    "mending",
    "mutant",
    "replicas",
    "seeds_to_detection",
    "transactions",
    "views",
]
