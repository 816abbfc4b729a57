"""Planted bugs of the controller and its store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidemill.core.ids import NO_LEADER
from tidemill.metadata.image.metadata_image import PartitionImage, Return
from tidemill.metadata.rules.decisions import is_unheard, unhearing_brokers
from tidemill.metadata.rules.log_ends import LogEnds
from tidemill.testing.mutants.planting import Function, mutant

__all__: list[str] = []

_ELECTION = "tidemill.metadata.rules.election"
_LOG_ENDS = "tidemill.metadata.rules.log_ends"
_DECISIONS = "tidemill.metadata.rules.decisions"
_REASSIGNMENT = "tidemill.metadata.rules.reassignment"
_CONTROLLERSHIP = "tidemill.metadata.controller.controllership"
_OFFICE = "tidemill.metadata.controller.office"
_FORMER_LEADERS = "tidemill.metadata.rules.former_leaders:FormerLeaders"


@mutant("elect outside the isr", f"{_ELECTION}:_elect")
def _outside_isr(original: Function) -> Function:
    return lambda partition, live, rules, told: original(
        replace(partition, isr=tuple(one for one in partition.replicas if one in live), elr=()),
        live,
        rules,
        told,
    )


@mutant("first suspect instead of the longest log", f"{_ELECTION}:_longest")
def _first_suspect(_original: Function) -> Function:
    return lambda _partition, candidates, _told: candidates[0] if candidates else NO_LEADER


@mutant("shortest log leads", f"{_ELECTION}:_longest")
def _shortest(original: Function) -> Function:
    def shortest(partition: PartitionImage, candidates: Sequence[int], told: LogEnds) -> int:
        found: int = original(partition, candidates, told)
        if found == NO_LEADER or len(candidates) == 1:
            return found
        return min(candidates, key=lambda one: told.ends[one])

    return shortest


@mutant("absent suspect not waited for", f"{_ELECTION}:_are_there")
def _absent_suspect(_original: Function) -> Function:
    return lambda _suspects, _candidates: True


@mutant("answer of a former life counts", f"{_LOG_ENDS}:ToldEnds.of")
def _former_life(original: Function) -> Function:
    def of(told: Function, topic_id: Function, index: int, *rest: Function) -> LogEnds:
        partition, brokers, now = rest
        survey = told._surveys.get((topic_id, index))
        asked = {} if survey is None else survey.asked
        lives = {
            one: replace(broker, epoch=asked[one].broker_epoch if one in asked else broker.epoch)
            for one, broker in brokers.items()
        }
        found: LogEnds = original(told, topic_id, index, partition, lives, now)
        return found

    return of


@mutant("no epoch bump", f"{_ELECTION}:_led_by")
def _no_bump(original: Function) -> Function:
    return lambda partition, leader, **sets: replace(
        original(partition, leader, **sets), leader_epoch=partition.leader_epoch
    )


@mutant("unclean restart stays in sync", f"{_DECISIONS}:after_return")
def _stays_in_sync(original: Function) -> Function:
    return lambda partition, broker_id, how: original(
        partition, broker_id, Return.CLEAN if how is Return.UNCLEAN else how
    )


@mutant("new disk stays in elr", f"{_DECISIONS}:after_return")
def _new_disk_stays(original: Function) -> Function:
    return lambda partition, broker_id, how: original(
        partition, broker_id, Return.CLEAN if how is Return.NEW_DISK else how
    )


@mutant("one life keeps its epoch", f"{_DECISIONS}:after_return")
def _next_life_same_epoch(original: Function) -> Function:
    return lambda partition, broker_id, how: (
        partition if how is Return.CLEAN else original(partition, broker_id, how)
    )


@mutant("no epoch bump on removal", f"{_DECISIONS}:after_return")
def _no_bump_on_removal(original: Function) -> Function:
    return lambda partition, broker_id, how: replace(
        original(partition, broker_id, how), leader_epoch=partition.leader_epoch
    )


def _without_old_leader(original: Function) -> Function:
    def handed_over(
        partition: PartitionImage, wanted: Function, candidates: Function
    ) -> PartitionImage | None:
        after: PartitionImage | None = original(partition, wanted, candidates)
        if after is None or after.leader == partition.leader:
            return after
        return replace(after, isr=tuple(one for one in after.isr if one != partition.leader))

    return handed_over


mutant("moved leader dropped from the isr", f"{_ELECTION}:handed_over")(_without_old_leader)
mutant("reassigned leader dropped from the isr", f"{_REASSIGNMENT}:handed_over")(
    _without_old_leader
)


@mutant("former leader forgotten at once", f"{_FORMER_LEADERS}.of")
def _forgotten_at_once(_original: Function) -> Function:
    return lambda _leaders, _topic_id, _index, _partition, _now: ()


@mutant("no epoch bump when a replica leaves", f"{_REASSIGNMENT}:_without_replicas")
def _no_bump_when_one_leaves(original: Function) -> Function:
    return lambda partition, gone: replace(
        original(partition, gone), leader_epoch=partition.leader_epoch
    )


@mutant("move ends before the copy does", f"{_DECISIONS}:advanced")
def _ends_early(original: Function) -> Function:
    def advanced(partition: PartitionImage, *rest: Function) -> PartitionImage:
        if not partition.is_moving:
            return partition
        after: PartitionImage = original(replace(partition, isr=partition.replicas), *rest)
        return after

    return advanced


@mutant("storm counted dead", f"{_CONTROLLERSHIP}:Controllership._awaited")
def _storm_counted_dead(_original: Function) -> Function:
    return lambda _controllership, _image: frozenset()


@mutant("any life may join", f"{_DECISIONS}:_eligible")
def _any_life(_original: Function) -> Function:
    return lambda _image, isr: {broker_id for broker_id, _ in isr}


@mutant("controller unguarded by its epoch", "tidemill.metadata.controller.page_writer:_Write.ops")
def _unguarded(original: Function) -> Function:
    return lambda write: original(write)[1:]


@mutant("strays purged with a bad page", "tidemill.metadata.cluster:Cluster.own_logs")
def _bad_page_ignored(_original: Function) -> Function:
    return lambda cluster: {
        (topic.topic_id, index)
        for topic in cluster.image.topics.values()
        for index, partition in enumerate(topic.own_partitions)
        if cluster.broker_id in partition.replicas
    }


@mutant("unheard controller stays", f"{_OFFICE}:is_unheard")
def _unheard_stays(_original: Function) -> Function:
    return lambda _image: False


@mutant("one broker ends an office", f"{_OFFICE}:is_unheard")
def _one_ends_an_office(_original: Function) -> Function:
    return lambda image: bool(unhearing_brokers(image))


@mutant("office given up at once", f"{_OFFICE}:Office.maybe_give_up")
def _given_up_at_once(_original: Function) -> Function:
    async def give_up(office: Function) -> None:
        if is_unheard(office._keeper.image):
            await office.give_up(office.term)

    return give_up


@mutant("office kept aside", "tidemill.metadata.registration:Registration._own_office")
def _office_kept(_original: Function) -> Function:
    async def own_office(_registration: Function) -> list[Function]:
        return []

    return own_office


@mutant(
    "nobody steps aside",
    "tidemill.replication.proposing.controller_contact:ControllerContact.try_step_aside",
)
def _nobody_steps_aside(_original: Function) -> Function:
    return lambda _contact, _now, _lag_s: False
