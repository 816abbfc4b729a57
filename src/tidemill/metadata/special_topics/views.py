"""What the controller checks of views: their base, their keys, their filter. Pure.

A view has its own name, id and access rules, and the partitions of its base. It is made by
CreateTopics with `tidemill.view.of`; only its filter can be altered. A view of what is held has
`tidemill.view.held` too, and no filter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import VIEWS_PER_TOPIC_MAX
from tidemill.delivery.filter.lexer import SelectorError
from tidemill.delivery.filter.program import compile_selector
from tidemill.metadata.image.metadata_image import MetadataImage, TopicImage

__all__ = [
    "VIEW_FILTER",
    "VIEW_HELD",
    "VIEW_OF",
    "check_altered",
    "check_deletion",
    "check_no_view",
    "check_view_keys",
    "replaced_overrides",
    "view_base",
]

VIEW_OF = "tidemill.view.of"
VIEW_FILTER = "tidemill.view.filter"
VIEW_HELD = "tidemill.view.held"
_VIEW_KEYS = {VIEW_OF, VIEW_FILTER, VIEW_HELD}
_DEFAULT = -1
"""As a partition count or replication factor: that of the base."""


def view_base(
    image: MetadataImage,
    made: Mapping[str, TopicImage],
    overrides: Mapping[str, str],
    *,
    partitions: int,
    replication_factor: int,
    has_assignments: bool,
    planned: int,
) -> TopicImage:
    """The base of a new view; KafkaError if there can be none.

    The same request has `made` these topics, and `planned` views of the base.
    """
    name = overrides[VIEW_OF]
    base = image.topic(name) or made.get(name)
    if base is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!a} to view")
    if base.is_view:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{name} is a view of {base.view_of}: make a view of that"
        )
    if base.internal:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} is internal and has no views")
    if len(image.views.get(name, ())) + planned >= VIEWS_PER_TOPIC_MAX:
        detail = f"{name} has {VIEWS_PER_TOPIC_MAX} views, which is the most"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, detail)
    if has_assignments or replication_factor not in (_DEFAULT, base.replication_factor):
        detail = f"a view has the replicas of its base {name}; leave them to it"
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, detail)
    if partitions not in (_DEFAULT, len(base.partitions)):
        detail = f"a view has the partitions of its base: {name} has {len(base.partitions)}"
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, detail)
    check_view_keys(overrides)
    return base


def replaced_overrides(topic: TopicImage, overrides: Mapping[str, str]) -> dict[str, str]:
    """The overrides that replace all of a topic's; a view stays one, and its filter is named.

    A tool that sets something else must not show all records by the way.
    """
    if not topic.is_view:
        return dict(overrides)
    if topic.config.tidemill_view_held:
        return {VIEW_OF: topic.view_of, VIEW_HELD: "true", **overrides}
    if VIEW_FILTER not in overrides:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"name {VIEW_FILTER} too, empty for no filter")
    return {VIEW_OF: topic.view_of, **overrides}


def check_altered(topic: TopicImage, overrides: Mapping[str, str]) -> None:
    """KafkaError unless the topic may have these overrides from now on."""
    if overrides.get(VIEW_OF, "") != topic.view_of:
        detail = f"{VIEW_OF} is decided when a topic is created"
        raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
    if _shows_held(overrides) != topic.config.tidemill_view_held:
        detail = f"{VIEW_HELD} is decided when a view is created"
        raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
    check_view_keys(overrides)


def check_view_keys(overrides: Mapping[str, str]) -> None:
    """KafkaError unless a view has only its own keys and a filter, and another topic neither."""
    if not overrides.get(VIEW_OF):
        _check_no_view_key(overrides)
        return
    others = sorted(overrides.keys() - _VIEW_KEYS)
    if others:
        detail = f"a view has {VIEW_OF} and {VIEW_FILTER} only; {others[0]} is a key of its base"
        raise KafkaError(ErrorCode.INVALID_CONFIG, detail)
    if _shows_held(overrides) and overrides.get(VIEW_FILTER):
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"{VIEW_HELD} and {VIEW_FILTER} exclude each other"
        )
    try:
        compile_selector(overrides.get(VIEW_FILTER, ""))
    except SelectorError as error:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{VIEW_FILTER}: {error}") from None


def _check_no_view_key(overrides: Mapping[str, str]) -> None:
    if overrides.get(VIEW_FILTER):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{VIEW_FILTER} needs {VIEW_OF}")
    if _shows_held(overrides):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"{VIEW_HELD} needs {VIEW_OF}")


def _shows_held(overrides: Mapping[str, str]) -> bool:
    return overrides.get(VIEW_HELD, "").lower() == "true"


def check_no_view(topic: TopicImage) -> None:
    """KafkaError if partitions are added to a view."""
    if topic.is_view:
        detail = f"{topic.name} is a view: add partitions to its base {topic.view_of}"
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, detail)


def check_deletion(image: MetadataImage, topic: TopicImage, deleted: Collection[str]) -> None:
    """KafkaError if a topic would leave views behind that the request does not delete too."""
    left = [name for name in image.views.get(topic.name, ()) if name not in deleted]
    if left:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{topic.name} has views, which must be deleted first: {', '.join(left[:3])}"
            + (f" and {len(left) - 3} more" if len(left) > 3 else ""),
        )
