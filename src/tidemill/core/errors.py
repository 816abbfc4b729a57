"""The four kinds of error, and who handles each.

kind                    type                              handled by, and then
the peer broke a rule   ProtocolViolation                 the connection: one log line, closed
an expected refusal     KafkaError                        dispatch: an error code in the answer
an operating fault      StorageFault, StoreUnavailable    its owner: goes offline, or retries
our own bug             InvariantViolation                nobody: the owner fails, loudly
"""

from __future__ import annotations

from tidemill.core.error_codes import ErrorCode

__all__ = [
    "DiskFull",
    "ErrorCode",
    "InvariantViolation",
    "KafkaError",
    "ProtocolViolation",
    "StorageFault",
    "StoreUnavailable",
    "TidemillError",
    "UserError",
    "invariant",
]


class TidemillError(Exception):
    """Base of all errors that Tidemill raises on purpose."""


class ProtocolViolation(TidemillError):
    """A peer sent bytes that the protocol does not allow; the connection cannot go on."""


class KafkaError(TidemillError):
    """An expected refusal: the request gets `code` and, where the API has room, `detail`."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(f"{code.name}: {detail}" if detail else code.name)
        self.code = code
        self.detail = detail


class StorageFault(TidemillError):
    """The disk did not do what was asked (EIO, failed fsync, damage in durable data)."""


class DiskFull(StorageFault):
    """No space left: writes are refused until there is some again; reads go on."""


class StoreUnavailable(TidemillError):
    """The coordination store cannot be reached, or our session with it is in doubt."""


class UserError(TidemillError):
    """Something only the person at the keyboard can mend; shown as one line, exit code 2."""


class InvariantViolation(AssertionError):
    """A promise of ours does not hold: a bug. Never caught, never answered with "ok"."""


def invariant(condition: object, message: str) -> None:
    """Guard what an acknowledgement depends on; unlike `assert`, always on."""
    if not condition:
        raise InvariantViolation(message)
