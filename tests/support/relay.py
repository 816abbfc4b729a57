"""A TCP relay whose test decides what passes: answers can be held back, connections cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import final

__all__ = ["Relay"]

CHUNK_BYTES = 65_536


@final
class Relay:
    """Relays connections to `target` until it is closed."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._refuses = False
        self._mutes = False
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def mute(self) -> None:
        """Answers do not arrive any more; requests do."""
        self._mutes = True

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        self._refuses = True
        for one in self._sockets:
            _end(one)

    def mend(self) -> None:
        """Let everything through again, for new connections."""
        self._refuses = self._mutes = False

    def close(self) -> None:
        self.cut()
        _end(self._listener)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets += [client, server]
            if self._refuses:
                self.cut()
                continue
            for source, sink, is_answer in ((client, server, False), (server, client, True)):
                thread = threading.Thread(
                    target=self._relay, args=(source, sink, is_answer), daemon=True
                )
                self._threads.append(thread)
                thread.start()

    def _relay(self, source: socket.socket, sink: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if not (is_answer and self._mutes):
                    sink.sendall(data)
        _end(source)
        _end(sink)


def _end(one: socket.socket) -> None:
    """Close it and wake the thread that reads from it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
