"""Changes of what is configured at run time for brokers and groups, made by the controller.

A broker's overrides are checked by that broker before they are sent to the controller, because only
it knows what it was started with. The values for all brokers are checked by the controller; another
broker that cannot use a value ignores it, with an alarm (`LiveConfig`).

All methods are called with the cluster's lock held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import final

from tidemill.core.config.live_config import LiveConfig
from tidemill.core.errors import ErrorCode, KafkaError, UserError
from tidemill.core.limits import GROUP_NAME_BYTES_MAX, OVERRIDDEN_GROUPS_MAX
from tidemill.core.loop.pacing import Pacer
from tidemill.metadata.controller.topic_changes import WriteDraft
from tidemill.metadata.image.group_keys import check_group_overrides
from tidemill.metadata.image.image_draft import ImageDraft
from tidemill.metadata.image.image_keeper import ImageKeeper
from tidemill.metadata.image.overrides import (
    ALL_BROKERS,
    ConfigOwner,
    OwnerKind,
    StoredOverrides,
    broker_owner,
    changed_overrides,
)
from tidemill.metadata.image.topic_config import AlterOp
from tidemill.metadata.rules.topic_planner import TopicResult

__all__ = ["OverrideChange", "OverrideWriter"]

OWNERS_PER_SLICE = 250
"""Changes checked in one slice of the loop (S11)."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OverrideChange:
    """Changes of one owner's keys; `replace_all` drops every override first (AlterConfigs)."""

    owner: ConfigOwner
    changes: Sequence[tuple[str, AlterOp, str | None]]
    replace_all: bool = False


@final
class OverrideWriter:
    """Checks changes of overrides, writes them to the store and publishes them in the image."""

    def __init__(self, keeper: ImageKeeper, write: WriteDraft, live: LiveConfig) -> None:
        self._keeper = keeper
        self._write = write
        self._live = live

    async def alter(
        self, changes: Sequence[OverrideChange], *, validate_only: bool, term: int
    ) -> list[TopicResult]:
        """One result each, in order; a refused change does not stop the others."""
        draft = ImageDraft(self._keeper.image)
        results = await self._planned(changes, draft)
        if not validate_only:
            await self._write(draft, term=term, bounded=True)
        return results

    async def check(self, changes: Sequence[OverrideChange]) -> list[TopicResult]:
        """What this broker says of the changes; nothing is changed."""
        return await self._planned(changes, ImageDraft(self._keeper.image))

    async def _planned(
        self, changes: Sequence[OverrideChange], draft: ImageDraft
    ) -> list[TopicResult]:
        pacer = Pacer(OWNERS_PER_SLICE)
        results: list[TopicResult] = []
        for change in changes:
            await pacer.step()
            results.append(self._plan(change, draft))
        return results

    def _plan(self, change: OverrideChange, draft: ImageDraft) -> TopicResult:
        """Put the owner's next overrides into the draft, unless they are refused."""
        result = TopicResult(change.owner.name)
        stored = draft.overrides.get(change.owner)
        before = {} if stored is None or change.replace_all else stored.values
        try:
            after = changed_overrides(change.owner, before, change.changes)
            self._check(change.owner, after, draft.overrides)
        except KafkaError as error:
            result.refuse(error)
            return result
        named = {name for name, _, _ in change.changes}
        left = {} if stored is None or change.replace_all else stored.unread
        unread = {name: text for name, text in left.items() if name not in named}
        if not after and not unread:
            draft.drop_overrides(change.owner)
        elif stored is None or (stored.values, stored.unread) != (after, unread):
            draft.put_overrides(change.owner, StoredOverrides(after, unread))
        return result

    def _check(
        self,
        owner: ConfigOwner,
        after: Mapping[str, str],
        others: Mapping[ConfigOwner, StoredOverrides],
    ) -> None:
        """KafkaError unless the overrides fit together and to everything else."""
        if owner.kind is OwnerKind.GROUP:
            check_group_overrides(after, self._live.current.groups)
            if after and owner not in others:
                _check_room(owner, others)
            return
        layers = {one: stored.values for one, stored in others.items()} | {owner: after}
        own = broker_owner(self._live.static.node_id)
        try:
            self._live.check(cluster=layers.get(ALL_BROKERS, {}), own=layers.get(own, {}))
        except UserError as error:
            raise KafkaError(ErrorCode.INVALID_CONFIG, str(error)) from None


def _check_room(owner: ConfigOwner, others: Sized) -> None:
    if len(owner.name.encode()) > GROUP_NAME_BYTES_MAX:
        detail = f"a group with keys of its own has a name of {GROUP_NAME_BYTES_MAX} bytes or fewer"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, detail)
    if len(others) >= OVERRIDDEN_GROUPS_MAX:
        detail = f"{OVERRIDDEN_GROUPS_MAX} groups have keys of their own already"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, detail)
