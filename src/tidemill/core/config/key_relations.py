"""Which values of a broker's keys do not fit together, beyond the range of each. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.core.config.endpoint import ANY_ADDRESS, parse_endpoint
from tidemill.core.errors import UserError

if TYPE_CHECKING:
    from tidemill.core.config.broker_config import BrokerConfig

__all__ = ["check_relations"]


def check_relations(config: BrokerConfig) -> None:
    """UserError names the keys that do not fit together."""
    _check_addresses(config)
    _check_rack(config.broker_rack)
    _check_sizes(config)
    config.groups.validate()
    config.zookeeper.validate()
    _check_several_hosts(config)


def _check_rack(rack: str) -> None:
    """Every client and broker is told it: a byte of the command line that is no text cannot be."""
    try:
        rack.encode()
    except UnicodeEncodeError:
        raise UserError(f"broker.rack={rack!a} is not text in UTF-8") from None


def _check_several_hosts(config: BrokerConfig) -> None:
    """Brokers that meet in ZooKeeper find each other by what they register."""
    if not config.zookeeper.connect or not config.listens_everywhere:
        return
    missing = {
        "advertised.listeners (--advertise)": config.advertised_listeners,
        "tidemill.internal.listen (--internal)": config.internal_listen,
    }
    for key, value in missing.items():
        if not value:
            raise UserError(
                f"listeners={config.listeners}: with ZooKeeper {key} must name the address at "
                "which other hosts reach this broker"
            )


def _check_addresses(config: BrokerConfig) -> None:
    """Check that each address parses, and that clients can connect to the advertised one."""
    parse_endpoint(config.listeners, key="listeners")
    if config.metrics_listen:
        parse_endpoint(config.metrics_listen, key="metrics.listen")
    if config.route_endpoint is None and config.route_advertised_endpoint is not None:
        raise UserError("tidemill.route.advertised needs tidemill.route.listen")
    if config.internal_listen and config.internal_endpoint.host in ANY_ADDRESS:
        raise UserError(
            f"tidemill.internal.listen={config.internal_listen}: other brokers cannot connect to "
            "every address; name one"
        )
    if not config.advertised_listeners:
        return
    advertised = parse_endpoint(config.advertised_listeners, key="advertised.listeners")
    if advertised.host in ANY_ADDRESS:
        raise UserError(
            f"advertised.listeners={config.advertised_listeners}: clients cannot connect to "
            "every address; name one"
        )


def _check_sizes(config: BrokerConfig) -> None:
    if config.request_memory_bytes < 2 * config.socket_request_max_bytes:
        # One request may exceed the pool's limit, so that there is always progress.
        raise UserError(
            f"request.memory.bytes={config.request_memory_bytes} must hold at least two requests "
            f"of socket.request.max.bytes={config.socket_request_max_bytes}"
        )
    if config.response_memory_bytes < config.fetch_max_bytes:
        raise UserError(
            f"response.memory.bytes={config.response_memory_bytes} must hold at least one answer "
            f"of fetch.max.bytes={config.fetch_max_bytes}"
        )
    message_max_bytes = config.topic_defaults.message_max_bytes
    if message_max_bytes > config.socket_request_max_bytes:
        raise UserError(
            f"message.max.bytes={message_max_bytes} is more than a request may have "
            f"(socket.request.max.bytes={config.socket_request_max_bytes})"
        )
