"""A produced batch that takes long to check: a thread does it, then the batch is appended (S18)."""

from __future__ import annotations

from functools import partial
from typing import final

from tidemill.core.errors import DiskBusy, KafkaError, StorageFault
from tidemill.delivery.intake import Requests, read_requests
from tidemill.server.request.services import DataServices
from tidemill.wire.batch import BatchHeader
from tidemill.wire.produced_batch import BatchPolicy, prepare_produced

__all__ = ["CheckedBatch", "LongBatchCheck"]

CheckedBatch = tuple[memoryview, BatchHeader, Requests | None]
"""A batch in the form in which it is stored, and what it asks for."""


@final
class LongBatchCheck:
    """One batch, from the moment it proved to be long until it is appended or refused."""

    __slots__ = ("_checked", "_policy", "_refusal")

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self._checked: CheckedBatch | None = None
        self._refusal: KafkaError | StorageFault | None = None
        """What the thread made of it: one of the two."""

    @property
    def is_done(self) -> bool:
        return self._checked is not None or self._refusal is not None

    async def run(self, services: DataServices, records: memoryview, now_ms: int) -> None:
        """Check the batch; few others are checked at the same time."""
        async with services.long_batches:
            check = partial(_try_prepare, records, self._policy, now_ms)
            prepared: CheckedBatch | KafkaError | StorageFault
            try:
                prepared = await services.disk.run(check)
            except DiskBusy as busy:
                prepared = busy
        if isinstance(prepared, tuple):
            self._checked = prepared
        else:
            self._refusal = prepared

    def result(self) -> CheckedBatch:
        """The batch to append. KafkaError, StorageFault: it is refused."""
        if self._refusal is not None:
            raise self._refusal
        assert self._checked is not None
        return self._checked


def _try_prepare(
    records: memoryview, policy: BatchPolicy, now_ms: int
) -> CheckedBatch | KafkaError:
    """As `prepare_produced`, in a thread; a refusal is returned.

    Its traceback would keep the decompressed records until the refusal is answered.
    """
    try:
        view, header, requesting = prepare_produced(records, policy, now_ms)
        if requesting is None:
            return view, header, None
        return view, header, read_requests(requesting, header, now_ms)
    except KafkaError as refusal:
        refusal.__context__ = None
        return refusal.with_traceback(None)
