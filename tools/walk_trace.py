"""Sends one request to a broker in this process and records which functions it runs through.

    python tools/walk_trace.py produce-group       prints JSON: [[file, function], ...]

`tools.walk` starts this with the tree to look at on PYTHONPATH. Nothing here may depend on where a
module of that tree is: what it imports, `tidemill.testing.embedded` and `pyspark_tidemill`, has
never moved, and the requests are written by hand.

The broker runs interpreted and on asyncio's own loop: compiled functions call no profiler. All its
threads are recorded, so a flush in a thread is part of the walk.
"""

from __future__ import annotations

import asyncio
import dis
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING

import crc32c

import tidemill
from tidemill.testing import embedded

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader

__all__ = ["Recorder", "main"]

Hop = tuple[str, str]

PACKAGE = os.path.dirname(tidemill.__file__ or "") + os.sep
ANSWER = ("answer", "written")
"""Stands in a recording for the write to a client's socket."""
FIRST_OF_A_REQUEST = "get_buffer"
"""The event loop asks a connection for a buffer: a request arrives."""
COMPREHENSIONS = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})
WRITES = frozenset({"write", "writelines"})
WARM_UP = 2
TRIES = 15
"""After the warm-up the shortest counts: timers and background loops make the others longer."""
QUIET_S = 0.05
"""After the last answer, for what the broker still does in the same turn of its loop."""

PRODUCE, FETCH, OFFSET_COMMIT, FIND_COORDINATOR, CREATE_TOPICS = 0, 1, 8, 10, 19
OS, GROUP = "os", "group"
"""Topics, named after their `tidemill.flush`."""
GROUP_ID = "walkers"


class Recorder:
    """Calls of the package's functions, in order, while `is_on`."""

    def __init__(self) -> None:
        self.is_on = False
        self.calls: list[Hop] = []

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or not self.is_on:
            return
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE):
            if code.co_name not in COMPREHENSIONS and frame.f_lasti <= _first_step(code):
                self.calls.append((code.co_filename.removeprefix(PACKAGE), code.co_qualname))
        elif code.co_name in WRITES and code.co_filename.endswith("selector_events.py"):
            self.calls.append(ANSWER)

    @contextmanager
    def recording(self) -> Iterator[None]:
        self.calls = []
        self.is_on = True
        try:
            yield
            time.sleep(QUIET_S)
        finally:
            self.is_on = False


@cache
def _first_step(code: CodeType) -> int:
    """Where the function begins; a coroutine that goes on after an await is further."""
    return next(step.offset for step in dis.get_instructions(code) if step.opname == "RESUME")


# --- requests, written by hand ------------------------------------------------------------------


def _text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def _compact(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def _array(*items: bytes) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def _record_batch(value: bytes) -> bytes:
    """One record, magic 2."""
    record = bytes([0, 0, 0, 1, len(value) << 1]) + value + b"\0"
    record = bytes([len(record) << 1]) + record
    now_ms = int(time.time() * 1000)
    body = struct.pack(">hiqqqhii", 0, 0, now_ms, now_ms, -1, -1, -1, 1) + record
    checked = struct.pack(">ibI", -1, 2, crc32c.crc32c(body)) + body
    return struct.pack(">qi", 0, len(checked)) + checked


def _create(topic: str, *, flush: str) -> bytes:
    settings = _array(_text("tidemill.flush") + _text(flush))
    one = _text(topic) + struct.pack(">ih", 1, 1) + _array() + settings
    return _array(one) + struct.pack(">ib", 10_000, 0)


def _produce(topic: str, *, acks: int) -> bytes:
    batch = _record_batch(b"a record")
    partition = struct.pack(">ii", 0, len(batch)) + batch
    head = struct.pack(">hhi", -1, acks, 10_000)
    return head + _array(_text(topic) + _array(partition))


def _fetch(topic: str, *, offset: int, max_wait_ms: int) -> bytes:
    partition = struct.pack(">iiqqi", 0, -1, offset, -1, 1 << 20)
    head = struct.pack(">iiiibii", -1, max_wait_ms, 1, 1 << 20, 0, 0, -1)
    return head + _array(_text(topic) + _array(partition)) + _array() + _text("")


def _offset_commit(topic: str) -> bytes:
    partition = struct.pack(">iqi", 0, 1, -1) + b"\x01\0"
    one = _compact(topic) + bytes([2]) + partition + b"\0"
    head = _compact(GROUP_ID) + struct.pack(">i", -1) + _compact("") + b"\0"
    return head + bytes([2]) + one + b"\0"


class Peer:
    """A client with one connection and one request in flight."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=20)

    def send(self, api_key: int, version: int, body: bytes, *, flexible: bool = False) -> None:
        head = struct.pack(">hhi", api_key, version, 1) + _text("walk") + b"\0" * flexible
        self._socket.sendall(struct.pack(">i", len(head + body)) + head + body)

    def receive(self) -> bytes:
        """The answer behind its correlation id."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)[4:]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data

    def ask(self, api_key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
        self.send(api_key, version, body, flexible=flexible)
        return self.receive()


# --- walks through the broker -------------------------------------------------------------------


Walk = Callable[["Recorder", Peer, Peer], None]
"""Brings the broker into the state, then records; the second peer is for what must come first."""


def _produce_walk(topic: str) -> Walk:
    def walk(recorder: Recorder, peer: Peer, _: Peer) -> None:
        with recorder.recording():
            peer.ask(PRODUCE, 7, _produce(topic, acks=-1))

    return walk


def _fetch_walk(recorder: Recorder, peer: Peer, _: Peer) -> None:
    with recorder.recording():
        peer.ask(FETCH, 11, _fetch(OS, offset=0, max_wait_ms=0))


def _parked_fetch_walk(recorder: Recorder, peer: Peer, other: Peer) -> None:
    end = _log_end(other)
    with recorder.recording():
        peer.send(FETCH, 11, _fetch(OS, offset=end, max_wait_ms=10_000))
        time.sleep(QUIET_S)  # until it is parked
        other.ask(PRODUCE, 7, _produce(OS, acks=1))
        peer.receive()


def _offset_commit_walk(recorder: Recorder, peer: Peer, _: Peer) -> None:
    with recorder.recording():
        peer.ask(OFFSET_COMMIT, 8, _offset_commit(OS), flexible=True)


def _log_end(peer: Peer) -> int:
    return _base_offset(peer.ask(PRODUCE, 7, _produce(OS, acks=1))) + 1


def _base_offset(answer: bytes) -> int:
    name_bytes = struct.unpack_from(">h", answer, 4)[0]
    return int(struct.unpack_from(">q", answer, 4 + 2 + name_bytes + 4 + 4 + 2)[0])


SCENARIOS: dict[str, Walk] = {
    "produce-os": _produce_walk(OS),
    "produce-group": _produce_walk(GROUP),
    "fetch": _fetch_walk,
    "parked-fetch": _parked_fetch_walk,
    "offset-commit": _offset_commit_walk,
}


def _ready(peer: Peer) -> None:
    """The topics exist, the coordinator is loaded, and its log is open."""
    for topic in (OS, GROUP):
        peer.ask(CREATE_TOPICS, 4, _create(topic, flush=topic))
        produce = partial(peer.ask, PRODUCE, 7, _produce(topic, acks=-1))
        _until_accepted(produce, len(_array()) + len(_text(topic)) + 8)
    peer.ask(FIND_COORDINATOR, 1, _text(GROUP_ID) + b"\0")
    commit = partial(peer.ask, OFFSET_COMMIT, 8, _offset_commit(OS), flexible=True)
    _until_accepted(commit, 1 + 4 + 1 + len(_compact(OS)) + 1 + 4)


def _until_accepted(ask: Callable[[], bytes], error_at: int) -> None:
    deadline = time.monotonic() + 20
    while struct.unpack_from(">h", ask(), error_at)[0] != 0:
        if time.monotonic() > deadline:
            raise TimeoutError("the broker does not accept the request")
        time.sleep(0.1)


def _request_walk(name: str) -> list[Hop]:
    recorder = Recorder()
    threading.setprofile(recorder.profile)  # of threads that start from here on: the broker's
    vars(embedded)["new_event_loop"] = asyncio.SelectorEventLoop
    walks = []
    with embedded.broker() as running:
        peer, other = Peer(running.bootstrap), Peer(running.bootstrap)
        _ready(other)
        for _ in range(TRIES):
            SCENARIOS[name](recorder, peer, other)
            walks.append(_trimmed(recorder.calls))
    return _shortest(walks)


def _trimmed(calls: list[Hop]) -> list[Hop]:
    """From the arrival of the request to the write of the last answer."""
    start = next(n for n, (_, name) in enumerate(calls) if name.endswith(FIRST_OF_A_REQUEST))
    end = max(n for n, call in enumerate(calls) if call == ANSWER)
    return [call for call in calls[start:end] if call != ANSWER]


def _shortest(walks: list[list[Hop]]) -> list[Hop]:
    return min(walks[WARM_UP:], key=len)


# --- the walk through Spark's source -------------------------------------------------------------

MICRO_BATCH = "micro-batch"
SERVE = """
import sys
from tidemill.testing import broker
with broker() as running:
    print(running.bootstrap, flush=True)
    sys.stdin.read()
"""


def _micro_batch_walk() -> list[Hop]:
    """What Spark calls for one micro-batch, in its order, in one process and without the JVM."""
    recorder = Recorder()
    threading.setprofile(recorder.profile)
    walks = []
    with _broker_process() as bootstrap:
        peer = Peer(bootstrap)
        _ready(peer)
        reader = _stream_reader(bootstrap)
        start = reader.initialOffset()
        for _ in range(TRIES):
            peer.ask(PRODUCE, 7, _produce(OS, acks=-1))
            sys.setprofile(recorder.profile)
            with recorder.recording():
                start = _micro_batch(reader, start)
            sys.setprofile(None)
            walks.append([call for call in recorder.calls if call != ANSWER])
        reader.stop()
    return _shortest(walks)


@contextmanager
def _broker_process() -> Iterator[str]:
    """In a process of its own, so that only the connector is recorded."""
    command = [sys.executable, "-c", SERVE]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate(timeout=20)


def _stream_reader(bootstrap: str) -> DataSourceStreamReader:
    from pyspark_tidemill import DefaultSource

    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": OS}
    source = DefaultSource({**options, "startingOffsets": "earliest"})
    return source.streamReader(source.schema())


def _micro_batch(reader: DataSourceStreamReader, start: dict[str, object]) -> dict[str, object]:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    end = reader.latestOffset(start, ReadAllAvailable())
    for task in reader.partitions(start, end):
        for _ in reader.read(task):
            pass
    reader.commit(end)
    return end


def main() -> None:
    name = sys.argv[1]
    walk = _micro_batch_walk() if name == MICRO_BATCH else _request_walk(name)
    json.dump(walk, sys.stdout)


if __name__ == "__main__":
    main()
