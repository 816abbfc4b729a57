"""A planner whose plans are made at once, not in slices of the loop."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.core.config.broker_config import BrokerConfig
from tidemill.core.ids import TopicId
from tidemill.core.loop.steps import finished
from tidemill.metadata.image.metadata_image import MetadataImage, TopicImage
from tidemill.metadata.image.topic_config import TopicConfig
from tidemill.metadata.rules.placement import Load
from tidemill.metadata.rules.topic_planner import (
    ConfigChange,
    PartitionsSpec,
    TopicPlanner,
    TopicSpec,
)


class PlannerAtOnce:
    """`TopicPlanner`, step by step to the end."""

    def __init__(
        self,
        image: MetadataImage,
        load: Mapping[int, Load],
        config: BrokerConfig,
        defaults: TopicConfig,
    ) -> None:
        self.load = dict(load)
        self._planner = TopicPlanner(image, self.load, config, defaults)

    def plan_topic(self, spec: TopicSpec, topic_id: TopicId) -> TopicImage:
        return finished(self._planner.plan_topic(spec, topic_id))

    def plan_partitions(self, spec: PartitionsSpec) -> TopicImage:
        return finished(self._planner.plan_partitions(spec))

    def plan_config(self, change: ConfigChange) -> TopicImage:
        return self._planner.plan_config(change)
