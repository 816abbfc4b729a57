"""Planted bugs of the transaction and group coordinators."""

from __future__ import annotations

from tidemill.coordinators.transaction.decisions import Ending
from tidemill.coordinators.transaction.transaction import Transaction
from tidemill.core.errors import ErrorCode
from tidemill.replication.partition import Partition
from tidemill.testing.mutants.planting import Function, mutant

__all__: list[str] = []

# --- transactions: in the coordinators ------------------------------------------------------------

_COORDINATOR = "tidemill.coordinators.transaction"
FIRST_WITHOUT_ADDING = 12
"""The version of Produce from which on verifying a partition adds it."""


@mutant("markers lost on reload", f"{_COORDINATOR}.shard:TransactionShard._hand_over_unmarked")
def _markers_lost(_original: Function) -> Function:
    return lambda shard, _work: shard._unmarked.clear()


@mutant("complete before the markers", f"{_COORDINATOR}.marker_sender:MarkerSender._settled")
def _complete_early(original: Function) -> Function:
    return lambda sender, decision, name, _code: original(sender, decision, name, ErrorCode.NONE)


@mutant("end of an old epoch", f"{_COORDINATOR}.decisions:end")
def _any_epoch_ends(original: Function) -> Function:
    def end(current: Transaction | None, ending: Ending, **options: Function) -> Transaction:
        if current is not None:
            ending = ending._replace(producer=current.producer)
        after: Transaction = original(current, ending, **options)
        return after

    return end


@mutant(
    "transaction not verified",
    "tidemill.server.handlers.producing.transaction_verification:TransactionVerification.check",
)
def _not_verified(original: Function) -> Function:
    def check(verification: Function, partition: Partition, records: memoryview) -> None:
        if verification._context.version >= FIRST_WITHOUT_ADDING:
            original(verification, partition, records)

    return check


@mutant("offsets before the commit", "tidemill.coordinators.group.shard:GroupShard.replay_pending")
def _offsets_early(_original: Function) -> Function:
    return lambda shard, key, value, _producer: shard.replay(key, value)
