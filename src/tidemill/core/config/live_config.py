"""The configuration that a broker runs with: what it was started with, and what was set since.

Keys that can change at run time are marked `dynamic`. Code that uses one of them keeps the
`LiveConfig` and reads `current` each time; code that copies a value at start must not use a dynamic
key. Overrides come from the metadata image: one set for all brokers and one for this broker, which
wins. They were checked before they were stored, but the file may have changed since: an override
that no longer fits the other keys is ignored, and the broker runs without it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.config.keys import overridden
from tidemill.core.errors import UserError

__all__ = ["LiveConfig"]


@final
class LiveConfig:
    """Holds the current configuration; each one is frozen and replaced as a whole."""

    def __init__(self, static: BrokerConfig) -> None:
        self.static = static
        """From the file, the flags and the code."""
        self.current = static
        self.cluster_overrides: Mapping[str, str] = {}
        """The overrides for all brokers that are in force."""
        self.own_overrides: Mapping[str, str] = {}
        """The overrides for this broker that are in force."""
        self._listeners: list[Callable[[], None]] = []

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after each change, for as long as the broker runs."""
        self._listeners.append(on_change)

    def check(self, *, cluster: Mapping[str, str], own: Mapping[str, str]) -> BrokerConfig:
        """The configuration with these overrides; UserError names keys that do not fit together."""
        made = overridden(self.static, {**cluster, **own})
        made.validate()
        return made

    def override(self, *, cluster: Mapping[str, str], own: Mapping[str, str]) -> list[str]:
        """Replace all overrides; returns why some of them are ignored."""
        complaints: list[str] = []
        try:
            made = self.check(cluster=cluster, own=own)
        except UserError:
            cluster = self._fitting(cluster, complaints, lambda some: (some, {}))
            own = self._fitting(own, complaints, lambda some: (cluster, some))
            made = self.check(cluster=cluster, own=own)
        self.cluster_overrides, self.own_overrides = cluster, own
        if made != self.current:
            self.current = made
            for on_change in self._listeners:
                on_change()
        return complaints

    def _fitting(
        self,
        layer: Mapping[str, str],
        complaints: list[str],
        layers: Callable[[dict[str, str]], tuple[Mapping[str, str], Mapping[str, str]]],
    ) -> dict[str, str]:
        """The overrides of one layer that fit together, tried one after the other."""
        kept: dict[str, str] = {}
        for key, value in layer.items():
            cluster, own = layers({**kept, key: value})
            try:
                self.check(cluster=cluster, own=own)
            except UserError as error:
                complaints.append(f"{key}={value} is ignored: {error}")
            else:
                kept[key] = value
        return kept
