"""Features, their levels, and what one version of the software supports of them. Pure.

A feature is a part of the protocol or of a stored form that all brokers must understand alike. Each
broker registers the range of levels that its software supports; the cluster has one *finalized*
level of each feature, which a person raises when all brokers can (`level_changes.py`). A broker
whose ranges lack a finalized level is kept out: it stays fenced, and is not a candidate for the
controller.

| feature             | level | meaning                                                          |
|---------------------|-------|------------------------------------------------------------------|
| group.version       | 1     | the consumer protocol for groups (KIP-848)                       |
| metadata.version    | 30    | Kafka's 4.3-IV0: its tools take the cluster for one of Kafka 4.3 |
| transaction.version | 0, 1  | an epoch for each instance of a producer; here both are the same |
|                     | 2     | an epoch for each transaction (KIP-890)                          |
| tidemill.version    | 1     | before features: no level is stored                              |
|                     | 2     | levels are stored with the settings, in a form that software of  |
|                     |       | level 1 does not read and so never overwrites; such a broker     |
|                     |       | answers ReplicaLogEnds (ADR 0023)                                |

A level of 0 means that the feature is off, which every software supports that does not know it.
Stock clients find transaction.version in the ApiVersions answer and choose their generation by it;
brokers serve both generations at every level, because a client learns of a new level late.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, final

from tidemill import __version__

__all__ = [
    "BEFORE_FEATURES",
    "FEATURE_LEVEL_MAX",
    "GROUP_VERSION",
    "LEVELS_STORED",
    "METADATA_VERSION",
    "NOT_STORED",
    "OLDER_SOFTWARE",
    "TELLS_LOG_ENDS",
    "THIS_SOFTWARE",
    "TIDEMILL_VERSION",
    "TRANSACTION_VERSION",
    "UNKNOWN_LEVELS",
    "FinalizedLevels",
    "LevelRange",
    "Software",
    "first_levels",
    "why_kept_out",
]

GROUP_VERSION = "group.version"
METADATA_VERSION = "metadata.version"
TRANSACTION_VERSION = "transaction.version"
TIDEMILL_VERSION = "tidemill.version"

LEVELS_STORED = 2
"""The tidemill.version from which finalized levels are stored."""
TELLS_LOG_ENDS = 2
"""The tidemill.version of software that answers ReplicaLogEnds."""
FEATURE_LEVEL_MAX = 2**15 - 1
NOT_KNOWN = -1
"""As an epoch of finalized levels: this broker has not read them; so does ApiVersions say it."""
NOT_STORED = -2
"""As an epoch of finalized levels: nobody has changed or stored them."""


@final
class LevelRange(NamedTuple):
    """The levels of one feature that some software supports."""

    lowest: int
    highest: int

    def includes(self, level: int) -> bool:
        return self.lowest <= level <= self.highest

    def __str__(self) -> str:
        low, high = self
        return str(high) if low == high else f"{low} to {high}"


_OFF = LevelRange(0, 0)


@final
@dataclass(frozen=True, slots=True)
class Software:
    """What a broker says of the software that it runs."""

    version: str
    """Empty if it does not say it."""
    ranges: Mapping[str, LevelRange]

    def range_of(self, name: str) -> LevelRange:
        return self.ranges.get(name, _OFF)

    def supports(self, name: str, level: int) -> bool:
        return self.range_of(name).includes(level)

    @property
    def shown_version(self) -> str:
        return self.version or "an older version"


THIS_SOFTWARE = Software(
    __version__,
    {
        GROUP_VERSION: LevelRange(1, 1),
        METADATA_VERSION: LevelRange(30, 30),
        TIDEMILL_VERSION: LevelRange(1, 2),
        TRANSACTION_VERSION: LevelRange(0, 2),
    },
)
OLDER_SOFTWARE = Software(
    "",
    {
        GROUP_VERSION: LevelRange(1, 1),
        METADATA_VERSION: LevelRange(30, 30),
        TIDEMILL_VERSION: LevelRange(1, 1),
        TRANSACTION_VERSION: LevelRange(2, 2),
    },
)
"""The software whose registrations name neither version nor features."""


@final
@dataclass(frozen=True, slots=True)
class FinalizedLevels:
    """The levels that the cluster has agreed on."""

    levels: Mapping[str, int]
    """Also those of features that this software does not know."""
    epoch: int = NOT_STORED
    """Rises with every change."""

    @property
    def is_stored(self) -> bool:
        return self.epoch >= 0

    @property
    def is_known(self) -> bool:
        return self.epoch != NOT_KNOWN

    def level_of(self, name: str) -> int:
        return self.levels.get(name, 0)

    def lacking_in(self, software: Software) -> list[str]:
        """The features whose finalized level the software does not support, by name."""
        names = sorted(software.ranges.keys() | self.levels.keys())
        return [name for name in names if not software.supports(name, self.level_of(name))]


BEFORE_FEATURES = FinalizedLevels(
    {name: levels.highest for name, levels in OLDER_SOFTWARE.ranges.items()}
)
"""The levels of a cluster that has none stored."""
UNKNOWN_LEVELS = FinalizedLevels({}, NOT_KNOWN)
"""The levels of a cluster whose settings were not read yet, or cannot be."""


def first_levels(software: Software) -> FinalizedLevels:
    """The levels of a new cluster: the highest ones of the software that founds it."""
    levels = {name: found.highest for name, found in sorted(software.ranges.items())}
    is_stored = levels.get(TIDEMILL_VERSION, 0) >= LEVELS_STORED
    return FinalizedLevels(levels, 0) if is_stored else BEFORE_FEATURES


def why_kept_out(broker_id: int, software: Software, finalized: FinalizedLevels) -> str | None:
    """The sentence that says which level a broker lacks; None if it lacks none that is known."""
    lacking = finalized.lacking_in(software) if finalized.is_known else []
    if not lacking:
        return None
    name = lacking[0]
    level, supported = finalized.level_of(name), software.range_of(name)
    runs = f"broker {broker_id} runs {software.shown_version} and"
    if level > supported.highest:
        return f"{runs} lacks {name} {level}: upgrade it"
    return (
        f"{runs} needs {name} {supported.lowest} or higher, where the cluster has {level}: run an "
        "older version there until the level is raised"
    )
