"""The driver on plain sockets, against a thread that answers like a broker, or nearly."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bench.group_rows import _commit_exchange
from bench.pipes import Pipe, drive_pipes
from bench.processes import MeasurementFailed
from bench.wire_client import Address, read_frame
from tidemill.wire.generated.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from tidemill.wire.offset_commit_fast import try_encode_response

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the driver is built by gcc")

EXCHANGE = _commit_exchange("group", "topic")
IN_FLIGHT = 3
SECONDS = 0.02

Send = Callable[[socket.socket, int], None]
"""Answers the request with this number, counted from 0."""


def answer(error_code: int = 0, name: str = "topic") -> bytes:
    partition = OffsetCommitResponsePartition(error_code=error_code)
    topic = OffsetCommitResponseTopic(name=name, partitions=[partition])
    frame = try_encode_response(OffsetCommitResponse(topics=[topic]), EXCHANGE.version, 1)
    assert frame is not None
    return frame


@contextmanager
def broker(send: Send) -> Iterator[Address]:
    """Serves one connection until the driver closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                number = 0
                try:
                    while read_frame(connection):
                        send(connection, number)
                        number += 1
                except OSError:
                    return

        thread = threading.Thread(target=serve)
        thread.start()
        yield Address(*listener.getsockname())
        thread.join()


def drive(send: Send) -> int:
    with broker(send) as address:
        count, _ = drive_pipes([Pipe(address, EXCHANGE, IN_FLIGHT)], SECONDS)
    return count


def test_every_request_that_was_driven_is_counted():
    sent = []
    count = drive(lambda connection, number: sent.append(connection.sendall(answer())))
    assert count == len(sent) - 1  # the first answer came before the drive
    assert count >= IN_FLIGHT


def test_answers_may_come_in_pieces():
    def send(connection: socket.socket, number: int) -> None:
        connection.sendall(answer()[:7])
        connection.sendall(answer()[7:])

    assert drive(send) >= IN_FLIGHT


def test_an_error_in_a_later_answer_fails_the_measurement():
    with pytest.raises(MeasurementFailed, match="an error"):
        drive(lambda connection, number: connection.sendall(answer(0x1600 if number == 5 else 0)))


def test_an_answer_of_another_size_fails_the_measurement():
    def send(connection: socket.socket, number: int) -> None:
        connection.sendall(answer(name="topic" if number < 5 else "another one"))

    with pytest.raises(MeasurementFailed, match="another size"):
        drive(send)


def test_a_connection_that_is_closed_fails_the_measurement():
    def send(connection: socket.socket, number: int) -> None:
        if number < 5:
            connection.sendall(answer())
        else:
            connection.shutdown(socket.SHUT_RDWR)

    with pytest.raises(MeasurementFailed):
        drive(send)
