"""Requests that change topics: planned by `topic_planner.py`, checked against the pages, written.

There is one result per request, in order (T21). A topic whose page cannot be read is not written,
and one that does not fit into its page is refused alone. Long requests are worked on in slices of
the loop (S11); the lock keeps the image as it is meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar, final
from uuid import UUID

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.ids import TopicId
from tidemill.core.limits import PARTITIONS_CHANGED_PER_SLICE
from tidemill.core.loop.pacing import Pacer, run_steps
from tidemill.metadata.controller.page_writer import PartTooLarge
from tidemill.metadata.image.head import page_path
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.image_keeper import ImageKeeper
from tidemill.metadata.image.metadata_image import (
    MetadataImage,
    TopicImage,
)
from tidemill.metadata.image.page import page_of
from tidemill.metadata.rules.store_writes import altered_topic
from tidemill.metadata.rules.topic_planner import (
    ConfigChange,
    PartitionsSpec,
    TopicPlanner,
    TopicResult,
    TopicSpec,
)
from tidemill.metadata.special_topics.views import VIEW_OF, check_deletion

__all__ = ["TopicChanges", "WriteDraft"]


class WriteDraft(Protocol):
    """Writes a draft as the controller of a term, and publishes it."""

    async def __call__(self, draft: ImageDraft, *, term: int, bounded: bool = False) -> None: ...


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_Request = TypeVar("_Request", bound=_Named)


@final
class TopicChanges:
    """The changes of topics that the controller makes; called with the cluster's lock held."""

    def __init__(
        self, keeper: ImageKeeper, planner: Callable[[], TopicPlanner], write: WriteDraft
    ) -> None:
        self._keeper = keeper
        self._planner = planner
        self._write = write

    @property
    def _image(self) -> MetadataImage:
        return self._keeper.image

    async def create(
        self,
        specs: Sequence[TopicSpec],
        topic_ids: Sequence[TopicId],
        *,
        validate_only: bool,
        term: int,
    ) -> list[TopicResult]:
        planner = self._planner()
        ids = dict(zip((spec.name for spec in specs), topic_ids, strict=True))

        async def plan(spec: TopicSpec) -> TopicImage:
            # An earlier attempt of this request, whose outcome we missed, may have made it.
            made = self._image.topic_by_id(ids[spec.name])
            if made is not None:
                return made
            return await run_steps(planner.plan_topic(spec, ids[spec.name]))

        # Views last: a request may make their bases too, in any order.
        order = sorted(range(len(specs)), key=lambda at: VIEW_OF in specs[at].overrides)
        in_order = await _planned([specs[at] for at in order], plan)
        planned = dict(zip(order, in_order, strict=True))
        results = [planned[at] for at in range(len(specs))]
        self._refuse_unknown_names(results)
        if not validate_only:
            await self.put(results, term=term)
        return results

    async def delete(self, topics: Sequence[str | UUID], *, term: int) -> list[TopicResult]:
        results = [_deletion(self._image, topic) for topic in topics]
        self._refuse_unwritable(results)
        await self._refuse_bases(results)
        draft = ImageDraft(self._image)
        for result in results:
            if result.topic is not None:
                draft.drop_topic(result.topic.name)
        await self._write(draft, term=term)
        return results

    async def add_partitions(
        self, specs: Sequence[PartitionsSpec], *, validate_only: bool, term: int
    ) -> list[TopicResult]:
        planner = self._planner()
        results = await _planned(specs, lambda spec: run_steps(planner.plan_partitions(spec)))
        if not validate_only:
            await self.put(results, term=term)
        return results

    async def configure(
        self, changes: Sequence[ConfigChange], *, validate_only: bool, term: int
    ) -> list[TopicResult]:
        planner = self._planner()

        async def plan(change: ConfigChange) -> TopicImage:
            return planner.plan_config(change)

        results = await _planned(changes, plan)
        if not validate_only:
            await self.put(results, term=term)
        return results

    async def put(self, results: Sequence[TopicResult], *, term: int) -> None:
        """Write the topics of the results; those that do not fit into their pages are refused."""
        self._refuse_unwritable(results)
        while True:
            self._refuse_views_alone(results)
            try:
                await self._write(await self._draft(results), term=term, bounded=True)
            except PartTooLarge as error:
                _refuse_page(results, error)
            else:
                break
        for result in results:
            if result.topic is not None:
                result.topic = self._image.topics[result.name]

    async def _draft(self, results: Iterable[TopicResult]) -> ImageDraft:
        """The image with the topics of the results."""
        draft, pacer = ImageDraft(self._image), Pacer(PARTITIONS_CHANGED_PER_SLICE)
        for result in results:
            if result.topic is not None:
                await pacer.step(_cost(result))
                before = self._image.topic_by_id(result.topic_id)
                after = result.topic
                if before is not None:
                    after = await run_steps(altered_topic(before, after))
                draft.put_topic(after)
        return draft

    def is_writable(self, topic_id: UUID) -> bool:
        return self._keeper.is_readable(page_path(page_of(topic_id)))

    def _refuse_unknown_names(self, results: Iterable[TopicResult]) -> None:
        """A page that cannot be read may have a topic of any name, whose logs are there (I34)."""
        if self._keeper.topics_readable:
            return
        for result in results:
            if result.topic is not None and self._image.topic_by_id(result.topic_id) is None:
                detail = "a page of the metadata cannot be read, and may have this topic"
                result.refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, detail))

    def _refuse_views_alone(self, results: Iterable[TopicResult]) -> None:
        """A new view whose base the same request was to make, and did not."""
        made = {result.name for result in results if result.topic is not None}
        for result in results:
            topic = result.topic
            if topic is None or not topic.is_view or self._image.topic_by_id(topic.topic_id):
                continue
            if topic.view_of not in made and self._image.topic(topic.view_of) is None:
                detail = f"no topic {topic.view_of!a} to view: it was not made"
                result.refuse(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, detail))

    async def _refuse_bases(self, results: Iterable[TopicResult]) -> None:
        """A topic with views stays, unless the same request deletes them too."""
        deleted = {result.name for result in results if result.topic is not None}
        pacer = Pacer(PARTITIONS_CHANGED_PER_SLICE)
        for result in results:
            await pacer.step()
            if result.topic is not None:
                try:
                    check_deletion(self._image, result.topic, deleted)
                except KafkaError as error:
                    result.refuse(error)

    def _refuse_unwritable(self, results: Iterable[TopicResult]) -> None:
        if self._keeper.topics_readable:
            return
        for result in results:
            if result.topic is not None and not self.is_writable(result.topic.topic_id):
                detail = "its page of the metadata cannot be read, so it is not written"
                result.refuse(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, detail))


def _refuse_page(results: Iterable[TopicResult], error: PartTooLarge) -> None:
    for result in results:
        if result.topic is not None and page_path(page_of(result.topic.topic_id)) == error.path:
            result.refuse(error)


async def _planned(
    requests: Sequence[_Request], plan: Callable[[_Request], Awaitable[TopicImage]]
) -> list[TopicResult]:
    """One result per request, in order; a topic that occurs twice is refused both times."""
    times = Counter(request.name for request in requests)
    results: list[TopicResult] = []
    pacer = Pacer(PARTITIONS_CHANGED_PER_SLICE)
    for request in requests:
        result = TopicResult(request.name)
        try:
            if times[request.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the request names it more than once")
            result.topic = await plan(request)
            result.topic_id = result.topic.topic_id
        except KafkaError as error:
            result.refuse(error)
        results.append(result)
        await pacer.step(_cost(result))
    return results


def _cost(result: TopicResult) -> int:
    """What the result takes of a slice."""
    return 1 if result.topic is None else max(1, len(result.topic.partitions))


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
