"""Tidemill: a durable message queue that speaks the Kafka wire protocol.

Programs talk to a broker with any Kafka client. What they import from here makes the headers of
delayed records, or runs a broker in their own process:

    from tidemill import Broker, broker_config

    broker = Broker(broker_config(values={"listeners": "127.0.0.1:0", "data.dir": "data"}))
    address = await broker.start()
    ...
    await broker.stop()

`Broker`            the broker that `tidemill up` runs
`BrokerConfig`      its settings, checked
`broker_config`     settings from a file's text, `key=value` flags or a mapping
`Delay`             headers of a record that is delivered after a length of time
`DeliverAt`         headers of a record that is delivered at a time
`Schedule`          headers of a record that is delivered when a cron line says
`Cancel`            headers of a command: never deliver what is held
`Move`              headers of a command: deliver it at another time
`TidemillError`     the base of the errors below
`UserError`         what only a person can mend: a wrong setting, a port in use
`KafkaError`        an expected refusal, with the protocol's error code
`__version__`       the version of this package

`tidemill.testing` starts brokers for tests. Spark finds its source and sink by the name `tidemill`.
Every other module is internal and may change with any version.

A name is imported when it is first used: `import tidemill` alone loads no other module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.broker import Broker
    from tidemill.client.holding.delay_headers import Cancel, Delay, DeliverAt, Move, Schedule
    from tidemill.core.config.broker_config import BrokerConfig, broker_config
    from tidemill.core.errors import KafkaError, TidemillError, UserError

__all__ = [
    "Broker",
    "BrokerConfig",
    "Cancel",
    "Delay",
    "DeliverAt",
    "KafkaError",
    "Move",
    "Schedule",
    "TidemillError",
    "UserError",
    "__version__",
    "broker_config",
]

__version__ = "0.1.0"

_DELAYS = "tidemill.client.holding.delay_headers"
_HOMES = {
    "Broker": "tidemill.broker",
    "BrokerConfig": "tidemill.core.config.broker_config",
    "Cancel": _DELAYS,
    "Delay": _DELAYS,
    "DeliverAt": _DELAYS,
    "KafkaError": "tidemill.core.errors",
    "Move": _DELAYS,
    "Schedule": _DELAYS,
    "TidemillError": "tidemill.core.errors",
    "UserError": "tidemill.core.errors",
    "broker_config": "tidemill.core.config.broker_config",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
