"""Transport errors between the client and a broker. A refusal by the broker is a `KafkaError`.

Each case that lets a caller act differently has its own type: the request would block and was not
sent (`WouldBlock`), we closed the connection (`ConnectionClosed`), the peer or the network broke it
(`ConnectionLost`), no answer came (`RequestTimedOut`). After the last two a request may have taken
effect: only an idempotent request may be sent again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, final

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
    "single_result",
]

T = TypeVar("T")


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
    """The peer or the network ended the connection; the requests in flight are in doubt."""


@final
class RequestTimedOut(ClientError):
    """No answer within the caller's time; this ends the connection, since answers come in order."""


@final
class BrokerUnreachable(ClientError):
    """None of the known addresses accepts a connection."""


def error_code(value: int) -> ErrorCode:
    """The code in an answer; a code that our protocol version lacks is an unknown error."""
    try:
        return ErrorCode(value)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def single_result(results: Sequence[T]) -> T:
    """The only entry of an answer about one thing; KafkaError if there are more, or none."""
    if len(results) != 1:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{len(results)} results for one request")
    return results[0]


def check(value: int, detail: object = None) -> None:
    """Raise KafkaError unless the answer's code is NONE; `detail` becomes its text only then."""
    code = error_code(value)
    if code is not ErrorCode.NONE:
        raise KafkaError(code, str(detail or ""))
