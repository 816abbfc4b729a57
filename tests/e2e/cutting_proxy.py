"""A TCP relay that cuts connections in the middle of a request or an answer.

Each connection gets a direction and a number of bytes. When that many have passed, the relay drops
the rest and closes both ends: so a request arrives in part, or is stored and its answer is lost. It
cuts `cuts_left` connections; the default is 0.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from random import Random
from typing import final

__all__ = ["CuttingProxy"]

CHUNK_BYTES = 65_536
RETRY_S = 0.01
REQUEST_BYTES = (200, 40_000)
"""Enough for the exchange of versions, seldom enough for all that a client sends."""
ANSWER_BYTES = (200, 2_000)


@final
class CuttingProxy:
    """Listens as soon as it is created, so that a broker can advertise it; relays to `target`."""

    def __init__(self, seed: int) -> None:
        self.target = ""
        self.cuts = 0
        self.cuts_left = 0
        self._rng = Random(seed)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._closed.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for one in self._sockets:
            _end(one)
        for thread in self._threads[1:]:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            broker = self._try_reach_broker()
            if broker is None:
                client.close()
                continue
            self._sockets += [client, broker]
            requests, answers = self._allowances()
            for source, sink, allowance in ((client, broker, requests), (broker, client, answers)):
                thread = threading.Thread(
                    target=self._relay, args=(source, sink, allowance), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _try_reach_broker(self) -> socket.socket | None:
        """Connect, waiting for a broker that restarts; None once the relay is closed."""
        host, _, port = self.target.rpartition(":")
        while not self._closed.wait(RETRY_S):
            try:
                return socket.create_connection((host, int(port)))
            except OSError:
                continue
        return None

    def _allowances(self) -> tuple[int | None, int | None]:
        """How many bytes may pass in each direction; None means no limit."""
        if self._rng.random() < 0.5:
            return self._rng.randint(*REQUEST_BYTES), None
        return None, self._rng.randint(*ANSWER_BYTES)

    def _relay(self, source: socket.socket, sink: socket.socket, allowance: int | None) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if allowance is not None and len(data) > allowance and self._take_cut():
                    sink.sendall(data[: max(allowance, 0)])
                    break
                if allowance is not None:
                    allowance -= len(data)
                sink.sendall(data)
        _end(source)
        _end(sink)

    def _take_cut(self) -> bool:
        with self._lock:
            if self.cuts_left == 0:
                return False
            self.cuts_left -= 1
            self.cuts += 1
            return True


def _end(one: socket.socket) -> None:
    """Close it and wake the thread that reads from it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
