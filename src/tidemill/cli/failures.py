"""How a failed command reports its error: one line on standard error and an exit code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import click

from tidemill.cli.text import escape
from tidemill.client.network.errors import BrokerUnreachable, ClientError
from tidemill.core.errors import (
    ErrorCode,
    KafkaError,
    ProtocolViolation,
    TidemillError,
    UserError,
)

__all__ = ["Failure", "explain"]

REFUSED = 1
WRONG_USE = 2
UNREACHABLE = 3
INTERRUPTED = 130

_ADVICE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`tidemill topic list` shows what there is",
    ErrorCode.UNKNOWN_TOPIC_ID: "the topic was deleted or created again; try again",
    ErrorCode.TOPIC_ALREADY_EXISTS: "choose another name, or change it with `tidemill topic alter`",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "a name has 1 to 249 of the characters a-z A-Z 0-9 . _ -",
    ErrorCode.INVALID_REPLICATION_FACTOR: "start more brokers, or ask for fewer with --replication",
    ErrorCode.INVALID_PARTITIONS: "partitions can be added, not removed",
    ErrorCode.MESSAGE_TOO_LARGE: "raise the topic's max.message.bytes with `tidemill topic alter`",
    ErrorCode.NOT_ENOUGH_REPLICAS: "start more brokers, or lower min.insync.replicas",
    ErrorCode.NOT_CONTROLLER: "no broker acts as the controller now, so nothing can be changed: "
    "see in the brokers' logs whether they reach their store",
    ErrorCode.KAFKA_STORAGE_ERROR: "see the broker's log about its disk",
    ErrorCode.OFFSET_OUT_OF_RANGE: "`--from beginning` starts with what is still kept",
    ErrorCode.GROUP_ID_NOT_FOUND: "`tidemill group list` shows what there is",
    ErrorCode.NON_EMPTY_GROUP: "stop its members first; `tidemill group describe` names them",
    ErrorCode.UNSUPPORTED_VERSION: "the broker is too old or too new for this tool",
}


@final
@dataclass(frozen=True, slots=True)
class Failure:
    """A line for the user and an exit code for scripts. An empty line is not printed."""

    line: str
    exit_code: int


def explain(error: BaseException) -> Failure | None:
    """How to report `error`; None if it is a bug, which is shown with its traceback."""
    match error:
        case KeyboardInterrupt() | click.Abort():
            return Failure("", INTERRUPTED)
        case click.UsageError():
            return Failure(_usage_line(error), WRONG_USE)
        case click.ClickException():
            return Failure(_one_line(error.format_message()), WRONG_USE)
        case UserError():
            return Failure(_one_line(str(error)), WRONG_USE)
        case KafkaError():
            return Failure(_refusal_line(error), REFUSED)
        case ClientError():
            return Failure(_transport_line(error), UNREACHABLE)
        case ProtocolViolation():
            return Failure(
                _one_line(f"the peer does not speak Kafka as expected: {error}"), REFUSED
            )
        case TidemillError():
            return Failure(_one_line(str(error)), REFUSED)
        case OSError():
            return Failure(_one_line(_os_error_text(error)), REFUSED)
        case _:
            return None


def _one_line(text: str) -> str:
    return escape(" ".join(text.split("\n")))


def _usage_line(error: click.UsageError) -> str:
    path = error.ctx.command_path if error.ctx is not None else "tidemill"
    return f"{_one_line(error.format_message())} (see `{path} --help`)"


def _transport_line(error: ClientError) -> str:
    if isinstance(error, BrokerUnreachable):
        return _one_line(
            f"{error}; start a broker with `tidemill up`, or name another with --bootstrap"
        )
    return _one_line(f"{error}; see the broker's log")


def _refusal_line(error: KafkaError) -> str:
    advice = _ADVICE.get(error.code)
    return _one_line(f"{error}; {advice}" if advice else str(error))


def _os_error_text(error: OSError) -> str:
    name = f"{error.filename}: " if error.filename is not None else ""
    return f"{name}{error.strerror or error}"
