"""The four kinds of error, and what handles each. Pure.

kind                    type                              handled by
the peer broke a rule   ProtocolViolation                 the connection: logs one line, closes
an expected refusal     KafkaError                        dispatch: an error code in the answer
an operating fault      StorageFault, StoreUnavailable    its owner: goes offline, or retries
our own bug             InvariantViolation                nothing: the owner fails loudly
"""

from __future__ import annotations

from tidemill.core.error_codes import ErrorCode

__all__ = [
    "DiskBusy",
    "DiskFull",
    "DiskReserved",
    "ErrorCode",
    "InvariantViolation",
    "KafkaError",
    "ProtocolViolation",
    "StorageFault",
    "StoreUnavailable",
    "TidemillError",
    "UserError",
    "code_of",
    "invariant",
]


class TidemillError(Exception):
    """Base of all errors that Tidemill raises on purpose."""


class ProtocolViolation(TidemillError):
    """A peer sent bytes that the protocol does not allow; its connection is closed."""


class KafkaError(TidemillError):
    """An expected refusal: the answer has `code` and, if the API has a field for it, `detail`."""

    def __init__(self, code: ErrorCode, detail: str = "") -> None:
        super().__init__(f"{code.name}: {detail}" if detail else code.name)
        self.code = code
        self.detail = detail


class StorageFault(TidemillError):
    """The disk failed (EIO, failed fsync, damage in durable data)."""


class DiskFull(StorageFault):
    """No space left: writes are refused until there is space again; reads continue."""


class DiskReserved(DiskFull):
    """What is left is kept for metadata and deletions; the log has a line when that begins."""


class DiskBusy(StorageFault):
    """Too many reads wait for a thread: this one did not run, and may be tried again later."""


def code_of(error: KafkaError | StorageFault) -> ErrorCode:
    """What an answer says of it."""
    return error.code if isinstance(error, KafkaError) else ErrorCode.KAFKA_STORAGE_ERROR


class StoreUnavailable(TidemillError):
    """The coordination store cannot be reached, or our session with it is in doubt."""


class UserError(TidemillError):
    """A mistake that only the user can correct; shown as one line, exit code 2."""


class InvariantViolation(AssertionError):
    """A promise of Tidemill does not hold: a bug. Never caught, never answered with "ok"."""


def invariant(condition: object, message: str) -> None:
    """Guard what an acknowledgement depends on; unlike `assert`, always on."""
    if not condition:
        raise InvariantViolation(message)
