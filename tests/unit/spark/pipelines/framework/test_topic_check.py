from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from tidemill.client.network.errors import ClientError
from tidemill.spark.pipelines.catalogue import pipeline_kind
from tidemill.spark.pipelines.framework.config_file import ConfiguredPipeline, configure
from tidemill.spark.pipelines.framework.topic_check import prepare_topics, record_bytes_max


class MuteBroker:
    """Keeps the first request of each connection and closes it without an answer."""

    def __init__(self) -> None:
        self.received = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.bootstrap = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.received += connection.recv(4_096)


@pytest.fixture
def mute() -> Iterator[MuteBroker]:
    made = MuteBroker()
    yield made
    made.close()


ASKING: list[Callable[[ConfiguredPipeline], object]] = [
    lambda made: prepare_topics(made.kafka.address, made.pipeline.topics()),
    lambda made: record_bytes_max(made.kafka.address, "t"),
]


@pytest.mark.parametrize("ask", ASKING)
def test_kafka_options_of_a_pipeline_reach_the_client_that_looks_after_its_topics(mute, ask):
    values = {"bootstrap": mute.bootstrap, "kafka.client.id": "from-the-file"}

    with pytest.raises(ClientError):
        ask(configure(pipeline_kind("logs"), values))

    assert b"from-the-file" in mute.received


def test_the_client_that_looks_after_topics_has_a_name_of_its_own():
    values = {"bootstrap": "a:1,b:2", "kafka.request.timeout.ms": 20}

    made = configure(pipeline_kind("logs"), values).kafka.address

    assert (made.client_id, made.request_timeout_ms) == ("tidemill-pipeline", 20)
    assert list(made.bootstrap) == [("a", 1), ("b", 2)]
