"""Asks the controller for other in-sync sets: without those that lag, with those that caught up.

All led partitions are looked at twice a second, and soon after a follower has caught up. What they
want goes to the controller in one request, one at a time (H13); what is too much for one request
waits for the next, which begins with it. A request without an answer leaves every proposal in it
unsettled: `in_sync.py` counts it as made until its outcome is known.

The controller is also asked without a proposal now and then: brokers that reach the store and not
the controller must find that out (`controller_contact.py`).

Here also marks go on that stood still while this broker had no lease and no vouches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol, final

from tidemill.core.clock import Clock
from tidemill.core.errors import ErrorCode, KafkaError, StoreUnavailable
from tidemill.core.limits import ISR_PROPOSALS_MAX
from tidemill.core.logs import listed
from tidemill.core.loop.pacing import Pacer
from tidemill.core.owner_lease import ALWAYS, OwnerLease
from tidemill.metadata.image.isr_proposal import IsrAnswer, IsrProposal
from tidemill.replication.partition import Partition
from tidemill.replication.replica_manager import ReplicaManager

__all__ = ["AlterIsr", "IsrProposals"]

log = logging.getLogger(__name__)

AlterIsr = Callable[[Sequence[IsrProposal]], Awaitable[Sequence[IsrAnswer]]]
"""Sends proposals to the controller; one answer each, in order. KafkaError or StoreUnavailable:
nobody knows what became of any of them."""


class ControllerLine(Protocol):
    """`IsrSender`, as far as it says whether the controller answers."""

    @property
    def is_contact_due(self) -> bool:
        """Whether to ask the controller now, also without a proposal."""
        ...

    async def attend(self, *, stands_still: bool) -> None:
        """React to a controller that has been silent for long."""
        ...


@final
class _AlwaysHeard:
    """For parts that are used without a controller."""

    is_contact_due = False

    async def attend(self, *, stands_still: bool) -> None:
        pass


LOOK_INTERVAL_S = 0.5
PARTITIONS_PER_SLICE = 250
"""Partitions that are looked at in one turn of the loop: about a millisecond."""
REQUEST_INTERVAL_S = 0.01
"""At most a hundred requests per second, however many followers catch up."""
_UNCHANGED = ""


class _Sent(NamedTuple):
    """A proposal that waits for its answer."""

    partition: Partition
    proposal: IsrProposal
    before: tuple[int, ...]
    """The in-sync set when it was made: the image may bring the new one before the answer does."""


@final
class IsrProposals:
    """The loop that keeps the in-sync sets of all led partitions in line with their followers."""

    def __init__(
        self,
        replicas: ReplicaManager,
        alter_isr: AlterIsr,
        *,
        clock: Clock,
        lease: OwnerLease = ALWAYS,
        line: ControllerLine | None = None,
    ) -> None:
        self._replicas = replicas
        self._alter_isr = alter_isr
        self._clock = clock
        self._lease = lease
        self._line = line or _AlwaysHeard()
        self._below_minimum = False
        """Whether a partition here has fewer replicas in sync than it must have."""
        self._wakeup = asyncio.Event()
        self._first = 0
        """Which partition is looked at first: the one that the last request had no room for."""
        replicas.candidate_came = self._wakeup.set

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await self._wakeup.wait()
            except TimeoutError:
                pass
            self._wakeup.clear()
            await self.look()
            await asyncio.sleep(REQUEST_INTERVAL_S)

    async def look(self) -> None:
        """Propose what all partitions want now, and take in the answers."""
        if not self._lease.may_act:
            await self._review()  # followers may vouch again, and then fetch nothing new
            return
        sent = await self._collect()
        if not sent and not self._line.is_contact_due:
            return
        await self._propose(sent)
        await self._line.attend(stands_still=bool(sent) or self._below_minimum)

    async def _propose(self, sent: Sequence[_Sent]) -> None:
        try:
            answers = await self._ask([one.proposal for one in sent])
        except (KafkaError, StoreUnavailable) as error:
            if sent:
                log.warning("%d changes of in-sync sets are in doubt: %s", len(sent), error)
            answers = ()
        pacer, outcomes = Pacer(PARTITIONS_PER_SLICE), dict[str, list[str]]()
        for index, one in enumerate(sent):
            await pacer.step()
            if index < len(answers):
                outcome = _take_answer(one, answers[index])
                outcomes.setdefault(outcome, []).append(str(one.partition.name))
            else:
                one.partition.isr_unanswered(one.proposal)
        for outcome, names in outcomes.items():
            if outcome != _UNCHANGED:
                log.info("%s: %s", listed(names), outcome)
        if answers and self._first:
            self._wakeup.set()

    async def _ask(self, proposals: Sequence[IsrProposal]) -> Sequence[IsrAnswer]:
        """A controller may take long to answer, or to be found; marks must not wait for that."""
        has_ended = asyncio.Event()

        async def ask() -> Sequence[IsrAnswer]:
            try:
                return await self._alter_isr(proposals)
            finally:
                has_ended.set()

        answers, _ = await asyncio.gather(ask(), self._review_until(has_ended))
        return answers

    async def _review_until(self, has_ended: asyncio.Event) -> None:
        while not has_ended.is_set():
            try:
                async with asyncio.timeout(LOOK_INTERVAL_S):
                    await has_ended.wait()
            except TimeoutError:
                await self._review()

    async def _review(self) -> None:
        """Let the marks go on that nothing holds any more."""
        pacer = Pacer(PARTITIONS_PER_SLICE)
        for partition in list(self._replicas):
            await pacer.step()
            partition.review_marks(now=self._clock.monotonic())

    async def _collect(self) -> list[_Sent]:
        """At most one proposal for each partition."""
        sent: list[_Sent] = []
        pacer = Pacer(PARTITIONS_PER_SLICE)
        partitions = list(self._replicas)
        first, self._first = self._first, 0
        self._below_minimum = False
        for index in (*range(first, len(partitions)), *range(min(first, len(partitions)))):
            await pacer.step()
            partition, now = partitions[index], self._clock.monotonic()
            partition.review_marks(now=now)
            if not partition.has_followers:
                continue
            if len(partition.isr) < partition.effective_in_sync_min:
                self._below_minimum = True
            if len(sent) == ISR_PROPOSALS_MAX:
                self._first = self._first or index
                continue
            proposal = partition.try_propose_isr(now=now)
            if proposal is not None:
                sent.append(_Sent(partition, proposal, partition.isr))
        return sent


def _take_answer(sent: _Sent, answer: IsrAnswer) -> str:
    """Take it in; what came of it, in the same words for all partitions that fared alike."""
    partition = sent.partition
    partition.isr_answered(sent.proposal, answer.code, answer.state)
    if answer.code is not ErrorCode.NONE:
        return f"in-sync set not changed: {answer.code.name}"
    before, after = sorted(sent.before), sorted(partition.isr)
    return _UNCHANGED if before == after else f"in sync {_shown(before)} -> {_shown(after)}"


def _shown(broker_ids: Sequence[int]) -> str:
    return f"({', '.join(map(str, broker_ids))})"
