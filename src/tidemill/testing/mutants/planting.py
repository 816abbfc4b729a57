"""Planted bugs: a test that finds none of them proves nothing.

Each mutant replaces one function of the broker while it is planted. The checks of the simulation
(`tests/sim`) must find it within some seeds; `seeds_to_detection` says how many it took, and
`docs/internals/simulation.md` has the table.

Another mutant takes three lines: its name, the place of the function, and what stands there
instead; the replacement is made from the original.

    @mutant("no_ack", "tidemill.replication.leader_log:LeaderLog.wait_acknowledged")
    def _no_ack(original):
        return lambda partition, next_offset, settle: ...

Compiled modules take no replacement (`make plain` removes them), so planting one there raises
`MutantNotPlantable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, final

from tidemill.core.compiled import is_compiled

__all__ = [
    "MUTANTS",
    "Detection",
    "Function",
    "Mutant",
    "MutantNotPlantable",
    "mutant",
    "seeds_to_detection",
]

Function = Any
"""Any function or property: a mutant has the signature of what it replaces."""
Make = Callable[[Function], Function]


class MutantNotPlantable(Exception):
    """The module is compiled: its functions cannot be replaced."""


@final
@dataclass(frozen=True, slots=True)
class Mutant:
    """A named bug and its place, `module:function` or `module:Class.function`."""

    name: str
    place: str
    make: Make

    @property
    def is_plantable(self) -> bool:
        return not is_compiled(self.place.partition(":")[0])

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The broker has the bug while this is open."""
        module, _, path = self.place.partition(":")
        if not self.is_plantable:
            raise MutantNotPlantable(f"{self.name}: {module} is compiled; `make plain` first")
        owner: Any = import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        original = vars(owner)[name]
        setattr(owner, name, self.make(original))
        try:
            yield
        finally:
            setattr(owner, name, original)


MUTANTS: dict[str, Mutant] = {}


def mutant(name: str, place: str) -> Callable[[Make], Make]:
    """Add a mutant to `MUTANTS`."""

    def add(make: Make) -> Make:
        MUTANTS[name] = Mutant(name, place, make)
        return make

    return add


@final
@dataclass(frozen=True, slots=True)
class Detection:
    """When a bug was found, and what was seen of it."""

    seeds: int
    error: Exception


def seeds_to_detection(
    planted: Mutant, run: Callable[[int], object], *, seeds_max: int, first: int = 0
) -> Detection | None:
    """How many seeds `run` needs until it fails; None: it does not within `seeds_max`.

    `run(seed)` must pass for these seeds without the mutant.
    """
    with planted.planted():
        for number in range(seeds_max):
            try:
                run(first + number)
            except Exception as error:  # noqa: BLE001 - whatever a planted bug leads to has found it
                return Detection(number + 1, error)
    return None
