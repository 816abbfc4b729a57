"""Keys that begin with `kafka.`: client settings that a pipeline hands to its source and its sink.

Each side gets the options that it knows, and the client that looks after topics gets those that
both know. An option that neither knows is refused, and so are those that the pipeline sets itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final

from tidemill.core.config.keys import nearest_key_hint
from tidemill.core.errors import UserError
from tidemill.spark.bridge.blocking_client import Address
from tidemill.spark.options.source_options import SOURCE_OPTIONS, parse_source_options
from tidemill.spark.sink.options import SINK_OPTIONS, SinkOptions, sink_options

__all__ = ["KAFKA_PREFIX", "KafkaOptions", "kafka_options"]

KAFKA_PREFIX: Final = "kafka."
_BOOTSTRAP: Final = "kafka.bootstrap.servers"
_CLIENT_ID: Final = "kafka.client.id"
_ADMIN_CLIENT_ID: Final = "tidemill-pipeline"
_OWN_KEYS: Final = {_BOOTSTRAP: "bootstrap", "kafka.group.id": "group"}
"""What the runner sets, and the key that users set instead."""
_SOURCE: Final = frozenset(name for name in SOURCE_OPTIONS if name.startswith(KAFKA_PREFIX))
_SINK: Final = frozenset(name for name in SINK_OPTIONS if name.startswith(KAFKA_PREFIX))


@final
@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """Options of both sides, each with the brokers' addresses."""

    source: Mapping[str, str] = field(default_factory=dict)
    sink: Mapping[str, str] = field(default_factory=dict)

    @property
    def writing(self) -> SinkOptions:
        """The sink's options, with its defaults."""
        return sink_options(self.sink)

    @property
    def address(self) -> Address:
        """How to reach the cluster, for a client that neither reads nor writes records."""
        options = self.writing
        client_id = self.sink.get(_CLIENT_ID, _ADMIN_CLIENT_ID)
        return Address(options.bootstrap, client_id, options.request_timeout_ms)


def kafka_options(given: Mapping[str, str], bootstrap: str) -> KafkaOptions:
    """Divide the options. UserError names one that is unknown, wrong or set by the pipeline."""
    for name in given:
        if name in _OWN_KEYS:
            raise UserError(f"{name} is set by the pipeline: use the key {_OWN_KEYS[name]}")
        if name not in _SOURCE | _SINK:
            hint = nearest_key_hint(name, sorted((_SOURCE | _SINK) - _OWN_KEYS.keys()))
            raise UserError(f"neither source nor sink has an option {name!a}{hint}")
    address = {_BOOTSTRAP: bootstrap}
    source = {name: text for name, text in given.items() if name in _SOURCE}
    sink = {name: text for name, text in given.items() if name in _SINK}
    parse_source_options({**address, **source, "subscribe": "checked"})
    divided = KafkaOptions(address | source, address | sink)
    _ = divided.writing
    return divided
