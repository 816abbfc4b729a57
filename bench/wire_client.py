"""The smallest client: one request and one answer on a blocking socket, for either broker."""

from __future__ import annotations

import socket
from struct import Struct
from typing import NamedTuple, TypeVar

from tidemill.wire.api_keys import API_SPECS, ApiKey
from tidemill.wire.generated.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.generated.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from tidemill.wire.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from tidemill.wire.headers import encode_request, parse_response_header
from tidemill.wire.message import Message
from tidemill.wire.primitives import Reader

__all__ = [
    "Address",
    "answers_api_versions",
    "connect",
    "end_offset_sum",
    "end_offsets",
    "log_bytes",
    "parse_answer",
    "read_frame",
    "request_frame",
]

ANSWER_SECONDS_MAX = 30.0
CLIENT_ID = "bench"
LATEST = -1
_LENGTH = Struct(">i")
_ANSWER_BYTES_MAX = 16 << 20
_LIST_OFFSETS_VERSION = 7
_LOG_DIRS_VERSION = 1
M = TypeVar("M", bound=Message)


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def connect(address: Address) -> socket.socket:
    connection = socket.create_connection(address, ANSWER_SECONDS_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def request_frame(request: Message, api_key: ApiKey, version: int) -> bytes:
    """A complete frame; every request of the bench has the same correlation id."""
    chunks = encode_request(
        request, spec=API_SPECS[api_key], version=version, correlation_id=1, client_id=CLIENT_ID
    )
    return b"".join(chunks)


def read_frame(connection: socket.socket) -> bytes:
    """The next frame, length included."""
    head = _receive(connection, _LENGTH.size)
    (size,) = _LENGTH.unpack(head)
    if not 0 < size <= _ANSWER_BYTES_MAX:
        raise ConnectionError(f"an answer of {size} bytes")
    return head + _receive(connection, size)


def parse_answer(frame: bytes, kind: type[M], api_key: ApiKey, version: int) -> M:
    body = frame[_LENGTH.size :]
    _, start = parse_response_header(body, spec=API_SPECS[api_key], version=version)
    return kind.read(Reader(body[start:]), version)


def answers_api_versions(address: Address) -> bool:
    """Whether a broker at `address` answers ApiVersions, the first request of every client."""
    request = request_frame(ApiVersionsRequest(), ApiKey.API_VERSIONS, 0)
    try:
        with connect(address) as connection:
            connection.sendall(request)
            frame = read_frame(connection)
    except OSError:
        return False
    return parse_answer(frame, ApiVersionsResponse, ApiKey.API_VERSIONS, 0).error_code == 0


def end_offsets(address: Address, topic: str, partitions: int) -> list[int] | None:
    """The end offset of each partition, in order; None while one of them is not served."""
    wanted = [
        ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in range(partitions)
    ]
    request = ListOffsetsRequest(
        replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=wanted)]
    )
    try:
        with connect(address) as connection:
            connection.sendall(request_frame(request, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION))
            frame = read_frame(connection)
    except OSError:
        return None
    answer = parse_answer(frame, ListOffsetsResponse, ApiKey.LIST_OFFSETS, _LIST_OFFSETS_VERSION)
    found = {
        p.partition_index: p.offset for t in answer.topics for p in t.partitions if not p.error_code
    }
    return [found[index] for index in range(partitions)] if len(found) == partitions else None


def end_offset_sum(address: Address, topic: str, partitions: int) -> int | None:
    """The number of records of a topic without deletions; None while a partition is not served."""
    ends = end_offsets(address, topic, partitions)
    return None if ends is None else sum(ends)


def log_bytes(address: Address, topic: str, partitions: int) -> int:
    """The size of a topic's logs on one broker."""
    wanted = DescribableLogDirTopic(topic=topic, partitions=list(range(partitions)))
    request = DescribeLogDirsRequest(topics=[wanted])
    with connect(address) as connection:
        connection.sendall(request_frame(request, ApiKey.DESCRIBE_LOG_DIRS, _LOG_DIRS_VERSION))
        frame = read_frame(connection)
    answer = parse_answer(
        frame, DescribeLogDirsResponse, ApiKey.DESCRIBE_LOG_DIRS, _LOG_DIRS_VERSION
    )
    return sum(
        partition.partition_size
        for directory in answer.results
        for found in directory.topics
        for partition in found.partitions
    )


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        received += chunk
    return bytes(received)
