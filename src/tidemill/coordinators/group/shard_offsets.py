"""The offsets of the groups of one shard: committed, pending, and those that expire. Pure.

HOT PATH: `commit` and `replay` run once per OffsetCommit.

A commit is checked by the group that it names, if there is one; a group that does not exist accepts
commits of simple consumers, and begins to exist with the first one that is replayed. What a request
is answered with, and the records of a commit, come from `offsets/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, final

from tidemill.coordinators.group.base.group import CommitIdentity, ShardContext
from tidemill.coordinators.group.base.records import decode_offset_value
from tidemill.coordinators.group.consumer.consumer_group import ConsumerGroup
from tidemill.coordinators.group.offsets import transactional_offsets
from tidemill.coordinators.group.offsets.committed_offsets import OffsetStore
from tidemill.coordinators.group.offsets.deletion import delete_offsets
from tidemill.coordinators.group.offsets.expiry import OffsetExpiry
from tidemill.coordinators.group.offsets.pending_offsets import PendingOffsets, Verification
from tidemill.coordinators.group.offsets.reading import OffsetReading
from tidemill.coordinators.group.registry import AnyGroup, GroupRegistry
from tidemill.coordinators.runtime.batch_sized_work import BatchSizedWork
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Now, ProducerName, Result
from tidemill.core.config.group_config import GroupConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.metadata.image.metadata_image import DeletedTopic
from tidemill.wire.generated.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidemill.wire.generated.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from tidemill.wire.generated.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from tidemill.wire.generated.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

__all__ = ["NO_GENERATION", "ShardOffsets"]

FIRST_COMMIT_WITH_MEMBER_EPOCH: Final = 9
FIRST_FETCH_WITH_TOPIC_IDS: Final = 10
NO_GENERATION: Final = -1


@final
class ShardOffsets:
    """All offsets of one shard; its groups decide who may commit and fetch them."""

    def __init__(
        self,
        context: ShardContext,
        groups: GroupRegistry,
        knows_all_topics: Callable[[], bool],
    ) -> None:
        self._context = context
        self._groups = groups
        self._store = OffsetStore()
        self.pending = PendingOffsets()
        """Offsets of open transactions, and questions about them."""
        self._expiry = OffsetExpiry(context.config, self._store, knows_all_topics)

    @property
    def count(self) -> int:
        """Of committed offsets."""
        return len(self._store)

    def committed(self) -> Iterator[tuple[str, int, int]]:
        """Topic, partition and offset of every committed offset."""
        return iter(self._store)

    def has_any(self, group_id: str) -> bool:
        """Whether the log has an offset of the group, committed or pending."""
        return self._store.has_any(group_id) or self.pending.has_any(group_id)

    # --- replay ----------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a record of an offset; it also decides what is pending under its key."""
        if key in self.pending.by_key:
            self.pending.supersede(key)
        self._apply(key, value)

    def _apply(self, key: bytes, value: bytes | None) -> None:
        group_id = self._store.replay(key, value)
        if group_id is not None:
            self._groups.replay_offset(group_id)

    def replay_pending(self, key: bytes, value: bytes | None, producer: ProducerName) -> None:
        """Keep an offset of a transaction until its marker comes."""
        if value is not None:
            decode_offset_value(value)  # a damaged value must not wait for its marker
        self._groups.replay_offset(self.pending.add(key, value, producer))

    def replay_marker(self, producer: ProducerName, *, is_commit: bool) -> None:
        """The producer's transaction has ended."""
        for key, value in self.pending.take(producer, is_commit=is_commit):
            self._apply(key, value)

    # --- requests --------------------------------------------------------------------------------

    def commit(
        self, request: OffsetCommitRequest, *, version: int, now: Now
    ) -> Result[OffsetCommitResponse]:
        """OffsetCommit (T46)."""
        group = self._groups.try_find(request.group_id)
        if group is None:
            self._check_simple_commit(request.generation_id_or_member_epoch, version)
        else:
            _check_commit(group, request, version, now)
        response, records = self._store.commit(
            request,
            image=self._context.image,
            metadata_bytes_max=self._context.config.offset_metadata_max_bytes,
            now_ms=now.wall_ms,
        )
        return Result(response, records)

    def begin_verification(self, producer: ProducerName) -> Result[Verification | None]:
        """Before the coordinator of a transaction is asked; None if that is not necessary."""
        if self.pending.is_open(producer):
            return Result(None)
        return Result(self.pending.begin_verification(producer.producer_id))

    def commit_in_transaction(
        self,
        request: TxnOffsetCommitRequest,
        verification: Verification | None,
        *,
        now: Now,
    ) -> Result[TxnOffsetCommitResponse]:
        """TxnOffsetCommit of a producer that its coordinator has confirmed (T55)."""
        producer = ProducerName(request.producer_id, request.producer_epoch)
        if verification is None:
            is_open = self.pending.is_open(producer)
        else:
            is_open = self.pending.end_verification(verification)
        if not is_open:
            # Asked again, the coordinator says whether the transaction is still open.
            raise KafkaError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "a marker of the producer came meanwhile"
            )
        group = self._groups.try_find(request.group_id)
        if group is None:
            self._check_simple_commit(request.generation_id)
        else:
            transactional_offsets.check_group(group, request, now)
        response, records = self._store.commit(
            transactional_offsets.plain_request(request),
            image=self._context.image,
            metadata_bytes_max=self._context.config.offset_metadata_max_bytes,
            now_ms=now.wall_ms,
        )
        answer = transactional_offsets.answer_of(response)
        return Result(answer, records, producer=producer if records else None)

    def _check_simple_commit(self, generation: int, version: int = 0) -> None:
        """A group that does not exist accepts commits of simple consumers only."""
        if generation <= NO_GENERATION:
            self._groups.limit.check_one_more()
        elif version >= FIRST_COMMIT_WITH_MEMBER_EPOCH:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        else:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)

    def fetch(
        self, wanted: OffsetFetchRequestGroup, *, version: int, require_stable: bool = False
    ) -> OffsetFetchResponseGroup:
        """One group's part of OffsetFetch (T45); topics are named by id from version 10 on."""
        group = self._groups.try_find(wanted.group_id)
        if group is not None:
            group.check_fetch(CommitIdentity(wanted.member_id or "", wanted.member_epoch))
        by_id = version >= FIRST_FETCH_WITH_TOPIC_IDS
        unstable = self.pending.of(wanted.group_id).values() if require_stable else ()
        reading = OffsetReading(
            self._store.of(wanted.group_id),
            self._context.image,
            self._expiry.deleted,
            frozenset(unstable),
        )
        if wanted.topics is None:
            topics = reading.all(by_id=by_id)
        else:
            read = reading.identified if by_id else reading.named
            topics = [read(topic) for topic in wanted.topics]
        return OffsetFetchResponseGroup(group_id=wanted.group_id, topics=topics)

    def delete(self, request: OffsetDeleteRequest) -> Result[OffsetDeleteResponse]:
        """OffsetDelete: delete offsets of topics that no member of the group subscribes to."""
        group = self._groups.try_find(request.group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
        if not group.is_empty and group.protocol_type != "consumer":
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)
        return delete_offsets(
            request,
            group,
            self._store.of(request.group_id),
            self.pending.of(request.group_id),
            self._context.image,
        )

    # --- expiry ----------------------------------------------------------------------------------

    def loaded(self, now: Now) -> None:
        """The log has been replayed: the interval to the first regular sweep begins."""
        self._expiry.loaded(now)

    def config_changed(self, config: GroupConfig) -> None:
        self._expiry.config = config

    def topics_deleted(self, topics: Iterable[DeletedTopic]) -> None:
        """Hide the offsets of these topics; the next sweep deletes them."""
        self._expiry.topics_deleted(topics)

    def next_deadline_ms(self) -> int | None:
        """When a sweep is due; None if none is planned."""
        return self._expiry.next_deadline_ms()

    def expire(self, work: BatchSizedWork, now: Now) -> None:
        """Begin or continue the sweep that is due, as far as one batch holds."""
        if not self._expiry.begin(self._groups.ids(), now):
            return
        while not work.is_full and (group_id := self._expiry.try_next_group()) is not None:
            if not work.add_until_full(self._expire_group(group_id, now)):
                break
            self._expiry.done(group_id)

    def _expire_group(self, group_id: str, now: Now) -> list[CoordinatorRecord]:
        """Tombstones of the group's expired offsets, and of the group itself if it keeps none."""
        group = self._groups.try_find(group_id)
        if group is None:
            return []
        records = self._expiry.expired(group, self._context.image, now)
        if self.pending.by_key:
            records = [record for record in records if record.key not in self.pending.by_key]
        keeps_nothing = group.is_empty and len(records) == self._store.count_of(group_id)
        if keeps_nothing and not group.expects_members and not self.pending.has_any(group_id):
            records += group.tombstones()
        return records

    def tombstones_of(self, group_id: str) -> list[CoordinatorRecord]:
        """The records that delete all offsets of a group, also those that are pending."""
        topics = self._store.of(group_id).values()
        keys = dict.fromkeys(entry.key for partitions in topics for entry in partitions.values())
        keys |= dict.fromkeys(self.pending.of(group_id))
        return [CoordinatorRecord(key, None) for key in keys]


def _check_commit(group: AnyGroup, request: OffsetCommitRequest, version: int, now: Now) -> None:
    generation = request.generation_id_or_member_epoch
    if (
        version < FIRST_COMMIT_WITH_MEMBER_EPOCH
        and generation > NO_GENERATION
        and isinstance(group, ConsumerGroup)
        and group.has_new(request.member_id)
    ):
        detail = "members of the consumer protocol commit with version 9 or later"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, detail)
    who = CommitIdentity(request.member_id, generation, request.group_instance_id)
    group.check_commit(who, request.topics, now)
