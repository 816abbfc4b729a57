"""What a broker's log says about the cluster: who comes and goes, who is the controller, who leads.

Without these lines a log shows that a broker leads more than before, and not why. All that one
change of the metadata brings is a few lines, whatever the number of partitions.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import final

from tidemill.core.ids import NO_LEADER
from tidemill.core.logs import listed
from tidemill.core.loop.steps import Steps
from tidemill.metadata.image.metadata_image import (
    Delta,
    MetadataImage,
    TopicImage,
    topic_slices,
)

__all__ = ["ClusterNews"]

log = logging.getLogger(__name__)


@final
class ClusterNews:
    """Follows the metadata of one broker. A broker that has always been alone says nothing."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id

    def follow(self, delta: Delta) -> Steps[None]:
        """Log what others may ask for later."""
        if not _others(delta.before, self._broker_id) and not _others(delta.after, self._broker_id):
            return
        for line in (*self._about_brokers(delta), *_about_controller(delta)):
            log.info("%s", line)
        yield from self._tell_leaderships(delta)

    def _about_brokers(self, delta: Delta) -> Iterator[str]:
        before, after = delta.before.brokers, delta.after.brokers
        for broker_id in delta.brokers_changed:
            if broker_id == self._broker_id:
                continue
            was, now = before.get(broker_id), after.get(broker_id)
            if now is None:
                yield f"broker {broker_id} is gone: it has ended, or its session has"
            elif was is None:
                yield f"broker {broker_id} has registered"
            elif was.epoch != now.epoch:
                yield f"broker {broker_id} has registered again"
            elif now.failed and not was.failed:
                yield f"broker {broker_id} says that its data directory is offline"
            elif now.leaving and not was.leaving:
                yield f"broker {broker_id} is about to stop"

    def _tell_leaderships(self, delta: Delta) -> Steps[None]:
        """What is led by another broker than before; a topic that is new says nothing."""
        taken: dict[int, list[str]] = {}
        given: dict[int, list[str]] = {}
        changed = (delta.after.topics[name] for name in delta.topics_changed)
        for index, some in enumerate(topic_slices(changed)):
            if index:
                yield
            for topic in some:
                for name, was, leader in _moved(delta.before.topic(topic.name), topic):
                    if leader == self._broker_id:
                        taken.setdefault(was, []).append(name)
                    elif was == self._broker_id:
                        given.setdefault(leader, []).append(name)
        for was, names in sorted(taken.items()):
            log.info("leads now %s: %s", _of(was), listed(names))
        for leader, names in sorted(given.items()):
            log.info("does not lead any more %s: %s", _with(leader), listed(names))


def _others(image: MetadataImage, broker_id: int) -> bool:
    return any(one != broker_id for one in image.brokers)


def _about_controller(delta: Delta) -> Iterator[str]:
    was, now = delta.before.controller_id, delta.after.controller_id
    if was != now:
        yield f"broker {now} is the controller" if now != NO_LEADER else "there is no controller"


def _moved(before: TopicImage | None, after: TopicImage) -> Iterator[tuple[str, int, int]]:
    """Partitions that another broker leads now: the name, who led, who leads."""
    if before is None or before.topic_id != after.topic_id:
        return
    known = zip(before.own_partitions, after.own_partitions, strict=False)
    for index, (was, now) in enumerate(known):
        if was.leader != now.leader:
            yield f"{after.name}-{index}", was.leader, now.leader


def _of(was: int) -> str:
    return "what had no leader" if was == NO_LEADER else f"what broker {was} led"


def _with(leader: int) -> str:
    return "what has no leader" if leader == NO_LEADER else f"what broker {leader} leads"
