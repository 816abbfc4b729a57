"""What can go wrong between us and a broker, apart from refusals (`KafkaError`).

Four questions decide what a caller may do next, so each has a type of its own: would it block
(`WouldBlock`: nothing was sent), did we close it (`ConnectionClosed`), did the peer or the network
break it (`ConnectionLost`), did the answer stay out (`RequestTimedOut`). After the last two a
request may have had its effect: only what is idempotent may be sent again.
"""

from __future__ import annotations

from typing import final

from tidemill.core.errors import ErrorCode, KafkaError, TidemillError

__all__ = [
    "BrokerUnreachable",
    "ClientError",
    "ConnectionClosed",
    "ConnectionLost",
    "RequestTimedOut",
    "WouldBlock",
    "check",
    "error_code",
]


class ClientError(TidemillError):
    """Base of the transport errors of the client."""


@final
class WouldBlock(ClientError):
    """The connection has its full number of requests in flight; nothing was sent."""


@final
class ConnectionClosed(ClientError):
    """We closed this connection ourselves; it cannot be used any more."""


@final
class ConnectionLost(ClientError):
    """The peer or the network ended the connection; what was in flight is in doubt."""


@final
class RequestTimedOut(ClientError):
    """No answer within the caller's time; the connection is over, since answers come in order."""


@final
class BrokerUnreachable(ClientError):
    """No connection could be made to any of the addresses that are known."""


def error_code(value: int) -> ErrorCode:
    """The code in an answer; one from a later protocol than ours counts as an unknown error."""
    try:
        return ErrorCode(value)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def check(value: int, detail: str | None = None) -> None:
    """Raise KafkaError unless the answer's code says that all is well."""
    code = error_code(value)
    if code is not ErrorCode.NONE:
        raise KafkaError(code, detail or "")
