"""Tidemill without its work: batches are acknowledged (acks=1) unread and never stored.

Only the wire, the event loop and the driver are left. Beside a real broker it shows how fast the
driver lets any broker be on that machine.

    python -m bench.null_broker up --listen HOST:PORT --data-dir DIR
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from struct import Struct
from unittest import mock

from tidemill.broker import serving
from tidemill.cli.main import main as tidemill
from tidemill.server.handlers import HANDLERS
from tidemill.server.request.context import AnyContext
from tidemill.server.request.handler import Handler
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.generated.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

__all__ = ["main"]

_RECORD_COUNT = Struct(">i")
_RECORD_COUNT_AT = 57


class _Nothing:
    """Answers Produce requests with the offsets that their batches would have had."""

    def __init__(self) -> None:
        self._next_offsets: Counter[tuple[str, int]] = Counter()

    def handle(self, _context: AnyContext, request: ProduceRequest) -> ProduceResponse:
        response = ProduceResponse()
        for topic in request.topic_data:
            entries = []
            for data in topic.partition_data:
                assert data.records is not None
                (count,) = _RECORD_COUNT.unpack_from(data.records, _RECORD_COUNT_AT)
                partition = (topic.name, data.index)
                offset = self._next_offsets[partition]
                entries.append(PartitionProduceResponse(index=data.index, base_offset=offset))
                self._next_offsets[partition] += count
            response.responses.append(
                TopicProduceResponse(name=topic.name, partition_responses=entries)
            )
        return response


def main() -> None:
    nothing = _Nothing()

    def without_work(handler: Handler) -> Handler:
        is_produce = handler.api_key == ApiKey.PRODUCE
        return replace(handler, handle=nothing.handle) if is_produce else handler

    with mock.patch.object(serving, "HANDLERS", tuple(map(without_work, HANDLERS))):
        tidemill()


if __name__ == "__main__":
    main()
