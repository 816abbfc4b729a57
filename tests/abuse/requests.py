"""The requests of the abuse tests, with short names."""

from __future__ import annotations

from uuid import UUID

from tidemill.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest
from tidemill.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from tidemill.wire.generated.metadata import MetadataRequest, MetadataRequestTopic
from tidemill.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.wire.records import Record, build_batch

PRODUCE = 9
FETCH = 12
METADATA = 9
CREATE_TOPICS = 5
NO_ID = UUID(int=0)


def batch(*values, codec=0, **options):
    return bytes(
        build_batch([Record(value, timestamp=1) for value in values], codec=codec, **options)
    )


def produce(topic, records, *, acks=1, partition=0, timeout_ms=5000):
    data = PartitionProduceData(index=partition, records=records)
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )


def fetch(topic, *, offset=0, partitions=(0,), max_wait_ms=0, min_bytes=1, max_bytes=1 << 20):
    wanted = [
        FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=max_bytes)
        for index in partitions
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_epoch=-1,
        topics=[FetchTopic(topic=topic, partitions=wanted)],
    )


def metadata(*names, create=True):
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=name, topic_id=NO_ID) for name in names],
        allow_auto_topic_creation=create,
    )


def all_topics():
    return MetadataRequest(topics=None)


def create(name, partitions=1):
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    return CreateTopicsRequest(topics=[topic], timeout_ms=5000)


def code_of(produced):
    """The error code of the only partition in a Produce answer."""
    return produced.responses[0].partition_responses[0].error_code


def partition_of(fetched, index=0):
    return fetched.responses[0].partitions[index]
