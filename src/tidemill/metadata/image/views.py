"""Views in the image: topics without logs, which have the partitions of their base. Pure.

A view is stored without partitions; its image has those of its base, so that everyone who looks a
topic up finds leaders and epochs there. `ImageDraft` keeps both equal with the functions below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.metadata.image.metadata_image import TopicImage

__all__ = ["ViewNames", "mirrored", "views_after"]

ViewNames = Mapping[str, tuple[str, ...]]
"""The names of views by that of their base, sorted."""


def views_after(
    views: ViewNames, changes: Iterable[tuple[TopicImage | None, TopicImage | None]]
) -> ViewNames:
    """`views` after topics have changed from one image to another; None: there is no such topic."""
    changed: dict[str, set[str]] = {}

    def names_of(base: str) -> set[str]:
        return changed.setdefault(base, set(views.get(base, ())))

    for before, after in changes:
        if before is not None and before.is_view:
            names_of(before.view_of).discard(before.name)
        if after is not None and after.is_view:
            names_of(after.view_of).add(after.name)
    if not changed:
        return views
    merged = {**views, **{base: tuple(sorted(names)) for base, names in changed.items()}}
    return {base: names for base, names in merged.items() if names}


def mirrored(view: TopicImage, base: TopicImage | None) -> TopicImage:
    """The view with the partitions of its base; none while the base is not known."""
    partitions = () if base is None or base.is_view else base.partitions
    return view if view.partitions == partitions else replace(view, partitions=partitions)
