"""The Rng seam: the only source of randomness, so that a simulation can repeat it."""

from __future__ import annotations

import secrets
from random import Random
from typing import Protocol, final
from uuid import UUID

__all__ = ["Rng", "SeededRng", "SystemRng"]

_UUID_BITS = 128


class Rng(Protocol):
    """The random values that a broker needs."""

    def uuid(self) -> UUID:
        """A fresh random (version 4) identifier."""
        ...

    def below(self, limit: int) -> int:
        """A whole number in [0, limit)."""
        ...


def _uuid4(bits: int) -> UUID:
    return UUID(int=bits, version=4)


@final
class SystemRng:
    """Randomness from the operating system."""

    def uuid(self) -> UUID:
        return _uuid4(secrets.randbits(_UUID_BITS))

    def below(self, limit: int) -> int:
        return secrets.randbelow(limit)


@final
class SeededRng:
    """The same sequence for the same seed: for simulations and tests, never for secrets."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311 - repeatable on purpose

    def uuid(self) -> UUID:
        return _uuid4(self._random.getrandbits(_UUID_BITS))

    def below(self, limit: int) -> int:
        """The numbers of `Random.randrange`, without its calls: a simulation draws all the time."""
        if limit <= 0:
            raise ValueError(f"there is no number below {limit}")
        bits, draw = limit.bit_length(), self._random.getrandbits
        drawn = draw(bits)
        while drawn >= limit:
            drawn = draw(bits)
        return drawn
