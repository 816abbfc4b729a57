"""The options of the sink: those of Spark's Kafka sink, and producer settings as `kafka.` options.

Spark passes options in lower case, and its own sinks ignore unknown ones. Here an unknown option is
refused: a mistyped option must not silently have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar, final

from tidemill.core.config.broker_config import Endpoint
from tidemill.core.errors import UserError
from tidemill.core.ids import is_legal_topic_name
from tidemill.core.limits import KIB, MIB
from tidemill.spark.bridge.blocking_client import Address
from tidemill.spark.options.option_values import parse_bootstrap
from tidemill.spark.sink.delivery import AT_LEAST_ONCE, DELIVERIES, EXACTLY_ONCE
from tidemill.spark.sink.transactional_id import transactional_id_of
from tidemill.wire.compression import CODEC_IDS

__all__ = ["SINK_OPTIONS", "SinkOptions", "sink_options"]

T = TypeVar("T")

_ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}
_ADDED_BY_SPARK = frozenset({"checkpointlocation", "queryname"})
"""Spark adds these to a stream's options."""
_CHECKPOINT = "checkpointlocation"

_REFUSED = {
    "kafka.key.serializer": "key is written as it is: cast it to binary or string",
    "kafka.value.serializer": "value is written as it is: cast it to binary or string",
    "kafka.partitioner.class": "keys go where Java's default partitioner puts them; to choose "
    "yourself, give the rows a column `partition`",
    "kafka.interceptor.classes": "there is no JVM producer that could run them",
    "kafka.retries": "a batch is retried until kafka.delivery.timeout.ms is over",
    "path": "the topic is named by option `topic` or by column `topic`, not by a path",
}


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options. Hashable: tasks with equal options share a client."""

    bootstrap: tuple[Endpoint, ...]
    topic: str | None = None
    """The topic of all rows; None: every row names its own."""
    delivery: str = AT_LEAST_ONCE
    client_id: str = "tidemill-spark"
    acks: int = -1
    codec: int = CODEC_IDS["lz4"]
    """A record that came compressed may be too large for its topic without."""
    batch_bytes: int = 256 * KIB
    linger_ms: int | None = None
    """None: a batch waits for more rows until it is full or its task ends."""
    in_flight_max: int = 5
    request_bytes_max: int = 16 * MIB
    """Limit of one request, and so of one record."""
    buffer_bytes_max: int = 32 * MIB
    request_timeout_ms: int = 30_000
    delivery_timeout_ms: int = 120_000
    checkpoint: str | None = None
    """Of a stream with exactly_once, which keeps its lease there."""
    transactional_id: str | None = None
    """Given with exactly_once, and only then; the default is made from the checkpoint's place."""
    transaction_timeout_ms: int = 300_000
    """A batch that writes for longer is aborted, and repeated after a restart."""

    @property
    def address(self) -> Address:
        """How the driver reaches the cluster."""
        return Address(self.bootstrap, self.client_id, self.request_timeout_ms)


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Check the options of a write. UserError names the wrong option and the reason."""
    fields: dict[str, object] = {}
    for name, text in given.items():
        word = name.lower()
        if word in _ADDED_BY_SPARK:
            if word == _CHECKPOINT:
                fields["checkpoint"] = text
            continue
        if word in _REFUSED:
            raise UserError(f"option {name} is not supported: {_REFUSED[word]}")
        if word not in _KNOWN:
            raise UserError(f"option {name} is not known to the sink; it knows {_known_words()}")
        field, parse = _KNOWN[word]
        parsed = _parsed(name, text, parse)
        if field is not None:
            fields[field] = parsed
    if "bootstrap" not in fields:
        hint = "" if given else "; of a table, INSERT INTO name WITH (...) names it and the topic"
        raise UserError(
            f"option kafka.bootstrap.servers is required: HOST:PORT[,HOST:PORT...]{hint}"
        )
    options = SinkOptions(**fields)  # type: ignore[arg-type]  # each parser gives its field's type
    return _with_transactions(options) if options.delivery == EXACTLY_ONCE else _without(options)


def _with_transactions(options: SinkOptions) -> SinkOptions:
    if options.acks != _ACKS["all"]:
        raise UserError("delivery=exactly_once needs kafka.acks=all")
    if options.transactional_id is not None:
        return options
    if options.checkpoint is None:
        raise UserError(
            "delivery=exactly_once needs the option checkpointLocation or, outside a stream and "
            "in foreachBatch, kafka.transactional.id: a name that no other query uses"
        )
    return replace(options, transactional_id=transactional_id_of(options.checkpoint))


def _without(options: SinkOptions) -> SinkOptions:
    if options.transactional_id is not None:
        raise UserError("option kafka.transactional.id needs delivery=exactly_once")
    return replace(options, checkpoint=None)


def _parsed(name: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text.strip())
    except ValueError as error:
        raise UserError(f"option {name}={text}: {error}") from None


def _known_words() -> str:
    return ", ".join(sorted(_KNOWN))


def _addresses(text: str) -> tuple[Endpoint, ...]:
    return parse_bootstrap(text, "kafka.bootstrap.servers")


def _plaintext(text: str) -> str:
    if text.upper() != "PLAINTEXT":
        raise ValueError("only PLAINTEXT is supported so far")
    return text


def _topic(text: str) -> str:
    if not is_legal_topic_name(text):
        raise ValueError("not a topic name: letters, digits, `.`, `_` and `-`, at most 249")
    return text


def _one_of(choices: Mapping[str, T]) -> Callable[[str], T]:
    def parse(text: str) -> T:
        if text.lower() not in choices:
            raise ValueError(f"use one of {', '.join(choices)}")
        return choices[text.lower()]

    return parse


def _number(low: int, high: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not text.removeprefix("-").isdecimal() or not low <= int(text) <= high:
            raise ValueError(f"use a whole number from {low} to {high}")
        return int(text)

    return parse


def _name(text: str) -> str:
    if not text:
        raise ValueError("it is empty")
    return text


def _idempotence(text: str) -> str:
    if text.lower() != "true":
        raise ValueError("acks=all is always idempotent; to do without, use kafka.acks=1")
    return text


_INT32_MAX = 2**31 - 1
_KNOWN: dict[str, tuple[str | None, Callable[[str], object]]] = {
    "kafka.bootstrap.servers": ("bootstrap", _addresses),
    "topic": ("topic", _topic),
    "delivery": ("delivery", _one_of({name: name for name in DELIVERIES})),
    "kafka.client.id": ("client_id", str),
    "kafka.acks": ("acks", _one_of(_ACKS)),
    "kafka.compression.type": ("codec", _one_of(CODEC_IDS)),
    "kafka.batch.size": ("batch_bytes", _number(1, 16 * MIB)),
    "kafka.linger.ms": ("linger_ms", _number(0, _INT32_MAX)),
    "kafka.max.in.flight.requests.per.connection": ("in_flight_max", _number(1, 5)),
    "kafka.max.request.size": ("request_bytes_max", _number(1 * KIB, 100 * MIB)),
    "kafka.buffer.memory": ("buffer_bytes_max", _number(64 * KIB, 1024 * MIB)),
    "kafka.request.timeout.ms": ("request_timeout_ms", _number(1, _INT32_MAX)),
    "kafka.delivery.timeout.ms": ("delivery_timeout_ms", _number(1, _INT32_MAX)),
    "kafka.transactional.id": ("transactional_id", _name),
    "kafka.transaction.timeout.ms": ("transaction_timeout_ms", _number(1_000, 900_000)),
    "kafka.enable.idempotence": (None, _idempotence),
    "kafka.security.protocol": (None, _plaintext),
}
"""By name in lower case: the field that it sets (None if it is only checked) and its parser."""
SINK_OPTIONS = tuple(_KNOWN)
