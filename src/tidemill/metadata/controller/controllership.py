"""The work of the controller: the shell around the decisions of `controller.py` and `election.py`.

- Every write checks the version of the controller epoch's node (I33). So the writes of a deposed
  controller fail, even if it does not know that it was deposed.
- A write that failed puts the image in doubt: before the next one everything is read again, after
  an unknown outcome was settled (`page_writer.py`).

All methods are called with the cluster's lock held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar, final
from uuid import UUID

from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import NO_LEADER, TopicId
from tidemill.metadata.controller.controller import (
    ConfigChange,
    PartitionsSpec,
    TopicPlanner,
    TopicResult,
    TopicSpec,
)
from tidemill.metadata.controller.election import PartitionChange, reconcile
from tidemill.metadata.controller.internal_topics import internal_partitions, wrong_keys
from tidemill.metadata.controller.page_writer import CAS_ATTEMPTS_MAX, PageWriter, PartTooLarge
from tidemill.metadata.controller.placement import ClusterLoad
from tidemill.metadata.controller.store_writes import altered_topic, put_changes
from tidemill.metadata.image import nodes
from tidemill.metadata.image.head import page_path
from tidemill.metadata.image.image_keeper import ALL, ImageKeeper
from tidemill.metadata.image.metadata_image import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    Delta,
    ImageDraft,
    MemberImage,
    MetadataImage,
    TopicImage,
)
from tidemill.metadata.image.page import page_of
from tidemill.metadata.store.coord import Coord, CoordConflict, Create, Put

__all__ = ["Controllership"]


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Request = TypeVar("_Request", bound=_Named)


@final
class Controllership:
    """How this broker becomes the controller, and what it does while it is."""

    def __init__(
        self,
        coord: Coord,
        keeper: ImageKeeper,
        writer: PageWriter,
        live: LiveConfig,
        alarm: Callable[[str], None],
    ) -> None:
        self._coord = coord
        self._keeper = keeper
        self._writer = writer
        self._live = live
        self._alarm = alarm
        self._load = ClusterLoad()
        self._in_doubt = False
        self._all_unserved = True
        self._unserved: set[str] = set()
        """Topics that changed since the last election round; `_all_unserved` means all topics."""
        keeper.subscribe(self._follow)
        self.term: int | None = None
        """The version of the controller epoch's node since this broker is the controller, as far as
        it knows; else None."""

    @property
    def _image(self) -> MetadataImage:
        return self._keeper.image

    def _follow(self, delta: Delta) -> None:
        self._load.follow(delta)
        if delta.brokers_changed:
            self._all_unserved = True
        if self.term is not None:
            self._unserved.update(delta.topics_changed)

    # --- term ------------------------------------------------------------------------------------

    def step_down(self) -> None:
        self.term = None

    async def campaign(self) -> None:
        """Become the controller, unless another broker does."""
        epoch = await self._coord.get(nodes.CONTROLLER_EPOCH)
        if epoch is None:
            self._alarm(f"{nodes.CONTROLLER_EPOCH}: missing; no broker can become the controller")
            return
        try:
            next_epoch = nodes.decode_counter(nodes.CONTROLLER_EPOCH, epoch) + 1
        except nodes.BadNode as bad:
            self._alarm(str(bad))
            return
        value = nodes.encode_controller(self._live.static.node_id, next_epoch)
        try:
            await self._coord.multi(
                [
                    Create(nodes.CONTROLLER, value, ephemeral=True),
                    Put(nodes.CONTROLLER_EPOCH, nodes.encode_counter(next_epoch), epoch.version),
                ]
            )
        except CoordConflict:
            self._keeper.mark(ALL)
            return
        self.term = epoch.version + 1
        self._in_doubt = True
        self._all_unserved = True
        self._report_offsets_partitions()

    def _report_offsets_partitions(self) -> None:
        """Say once a term that the configured number is not the one in use."""
        topic = self._image.topic(OFFSETS_TOPIC)
        wanted = internal_partitions(OFFSETS_TOPIC, self._live.static)
        if topic is not None and len(topic.partitions) != wanted:
            self._alarm(
                f"{OFFSETS_TOPIC} keeps its {len(topic.partitions)} partitions, although "
                f"offsets.topic.num.partitions={wanted}: groups are found by a hash over the number"
            )

    async def serve(self) -> None:
        """React to the newest image: settle any doubt, elect where a leader is missing."""
        for _ in range(CAS_ATTEMPTS_MAX):
            if self.term is None:
                return
            try:
                await self.settle()
                await self._mend_internal_topics(self.term)
                await self._elect(self.term)
            except CoordConflict as conflict:
                self.conflict(conflict)
            else:
                return

    async def _elect(self, term: int) -> None:
        image = self._image
        if self._all_unserved:
            changes = reconcile(image)
        else:
            names = sorted(self._unserved & image.topics.keys())
            changes = reconcile(image, [image.topics[name] for name in names])
        await self.change_partitions(changes, term=term, members=_let_in(image))
        self._all_unserved = False
        self._unserved.clear()

    async def _mend_internal_topics(self, term: int) -> None:
        """Give internal topics their coordinators' settings where theirs would lose state."""
        results: list[TopicResult] = []
        for name in sorted(INTERNAL_TOPICS & self._image.topics.keys()):
            topic = self._image.topics[name]
            wrong = wrong_keys(name, topic.overrides)
            if wrong:
                mended = self._planner().plan_mending(topic)
                self._alarm(_mending_line(topic, mended, wrong))
                results.append(TopicResult(name, mended))
        if results:
            await self._put(results, term=term)

    async def settle(self) -> None:
        """If the image is in doubt, settle the last write and read everything."""
        if not self._in_doubt:
            return
        await self._writer.settle()
        await self._keeper.load()
        self._in_doubt = False

    def conflict(self, conflict: CoordConflict) -> None:
        """After a conflicting write: read everything, and step down if we were deposed."""
        self._keeper.mark(ALL)
        if conflict.path == nodes.CONTROLLER_EPOCH:
            self.step_down()

    # --- writing ---------------------------------------------------------------------------------

    async def _write(self, draft: ImageDraft, *, term: int, bounded: bool = False) -> None:
        try:
            await self._writer.write(draft, term=term, bounded=bounded)
        except PartTooLarge:
            raise
        except BaseException:
            self._in_doubt = True
            raise

    async def change_partitions(
        self,
        changes: Sequence[PartitionChange],
        *,
        term: int,
        members: Mapping[int, MemberImage] | None = None,
    ) -> None:
        """Write and publish partition states; also for brokers that are not the controller."""
        writable = [one for one in changes if self._is_writable(one.topic_id)]
        draft = ImageDraft(self._image)
        put_changes(draft, writable)
        if members is not None and self._keeper.is_readable(nodes.MEMBERS):
            draft.set_members(members)
        names = self._image.names
        await self._write(draft, term=term)
        for change in writable:
            if _is_unclean(change):
                place = f"{names[change.topic_id]}-{change.partition}"
                self._alarm(f"{place}: broker {change.after.leader} leads without being in sync")

    def _is_writable(self, topic_id: UUID) -> bool:
        return self._keeper.is_readable(page_path(page_of(topic_id)))

    # --- topics ----------------------------------------------------------------------------------

    async def create_topics(
        self,
        specs: Sequence[TopicSpec],
        topic_ids: Sequence[TopicId],
        *,
        validate_only: bool,
        term: int,
    ) -> list[TopicResult]:
        planner = self._planner()
        ids = dict(zip((spec.name for spec in specs), topic_ids, strict=True))

        def plan(spec: TopicSpec) -> TopicImage:
            # An earlier attempt of this request, whose outcome we missed, may have made it.
            made = self._image.topic_by_id(ids[spec.name])
            return made or planner.plan_topic(spec, ids[spec.name])

        results = _planned(specs, plan)
        self._refuse_unknown_names(results)
        if not validate_only:
            await self._put(results, term=term)
        return results

    async def delete_topics(self, topics: Sequence[str | UUID], *, term: int) -> list[TopicResult]:
        results = [_deletion(self._image, topic) for topic in topics]
        self._refuse_unwritable(results)
        draft = ImageDraft(self._image)
        for result in results:
            if result.topic is not None:
                draft.drop_topic(result.topic.name)
        await self._write(draft, term=term)
        return results

    async def create_partitions(
        self, specs: Sequence[PartitionsSpec], *, validate_only: bool, term: int
    ) -> list[TopicResult]:
        results = _planned(specs, self._planner().plan_partitions)
        if not validate_only:
            await self._put(results, term=term)
        return results

    async def alter_topic_configs(
        self, changes: Sequence[ConfigChange], *, validate_only: bool, term: int
    ) -> list[TopicResult]:
        results = _planned(changes, self._planner().plan_config)
        if not validate_only:
            await self._put(results, term=term)
        return results

    def _planner(self) -> TopicPlanner:
        defaults = self._keeper.topic_defaults
        return TopicPlanner(self._image, self._load.copy(), self._live.current, defaults)

    async def _put(self, results: Sequence[TopicResult], *, term: int) -> None:
        """Write the topics of the results; those that do not fit into their pages are refused."""
        self._refuse_unwritable(results)
        while True:
            draft = ImageDraft(self._image)
            for result in results:
                if result.topic is not None:
                    before = self._image.topic_by_id(result.topic_id)
                    after = result.topic if before is None else altered_topic(before, result.topic)
                    draft.put_topic(after)
            try:
                await self._write(draft, term=term, bounded=True)
            except PartTooLarge as error:
                _refuse_page(results, error)
            else:
                break
        for result in results:
            if result.topic is not None:
                result.topic = self._image.topics[result.name]

    def _refuse_unknown_names(self, results: Iterable[TopicResult]) -> None:
        """A page that cannot be read may have a topic of any name, whose logs are there (I34)."""
        if self._keeper.topics_readable:
            return
        for result in results:
            if result.topic is not None and self._image.topic_by_id(result.topic_id) is None:
                detail = "a page of the metadata cannot be read, and may have this topic"
                result.refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, detail))

    def _refuse_unwritable(self, results: Iterable[TopicResult]) -> None:
        for result in results:
            if result.topic is not None and not self._is_writable(result.topic.topic_id):
                detail = "its page of the metadata cannot be read, so it is not written"
                result.refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, detail))


def _refuse_page(results: Iterable[TopicResult], error: PartTooLarge) -> None:
    for result in results:
        if result.topic is not None and page_path(page_of(result.topic.topic_id)) == error.path:
            result.refuse(error)


def _let_in(image: MetadataImage) -> dict[int, MemberImage]:
    """The members with every registered broker, in the epoch of its registration."""
    registered = {
        one.broker_id: MemberImage(broker_id=one.broker_id, epoch=one.epoch, rack=one.rack)
        for one in image.brokers.values()
    }
    return {**image.members, **registered}


def _planned(
    requests: Sequence[_Request], plan: Callable[[_Request], TopicImage]
) -> list[TopicResult]:
    """One result per request, in order; a topic that occurs twice is refused both times."""
    times = Counter(request.name for request in requests)
    results: list[TopicResult] = []
    for request in requests:
        result = TopicResult(request.name)
        try:
            if times[request.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names it more than once")
            result.topic = plan(request)
            result.topic_id = result.topic.topic_id
        except KafkaError as error:
            result.refuse(error)
        results.append(result)
    return results


def _deletion(image: MetadataImage, wanted: str | UUID) -> TopicResult:
    if isinstance(wanted, UUID):
        topic, missing = image.topic_by_id(wanted), ErrorCode.UNKNOWN_TOPIC_ID
        result = TopicResult("", topic_id=wanted)
    else:
        topic, missing = image.topic(wanted), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        result = TopicResult(wanted)
    if topic is None:
        result.refuse(KafkaError(missing, "no such topic"))
    else:
        result.name, result.topic_id, result.topic = topic.name, topic.topic_id, topic
    return result


def _mending_line(topic: TopicImage, mended: TopicImage, wrong: Sequence[str]) -> str:
    changes = ", ".join(
        f"{key}={topic.overrides.get(key, '(not set)')} becomes {mended.overrides[key]}"
        for key in wrong
    )
    return f"{topic.name} had settings that lose the state in it: {changes}"


def _is_unclean(change: PartitionChange) -> bool:
    leader = change.after.leader
    if leader in {NO_LEADER, change.before.leader}:
        return False
    return leader not in change.before.isr and leader not in change.before.elr
