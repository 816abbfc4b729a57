"""Topics on a broker for tests of the sink, read back by librdkafka."""

from __future__ import annotations

from tests.support.clients import Confluent, Record, create_topic, end_offset

__all__ = ["create_topic", "records_of"]


def records_of(bootstrap: str, topic: str, partitions: int = 1) -> list[Record]:
    """All records of a topic, by partition and offset."""
    ends = [end_offset(bootstrap, topic, partition) for partition in range(partitions)]
    found = Confluent().consume(bootstrap, topic, sum(ends), dict.fromkeys(range(partitions), 0))
    return sorted(found, key=lambda record: (record.partition, record.offset))
