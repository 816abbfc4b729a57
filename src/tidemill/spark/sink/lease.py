"""The right to write one batch exactly once, and the file in which a driver keeps it.

A lease is taken by opening a transaction, so at most one is valid: an older one is fenced. Spark
aborts a batch on a new object that knows nothing, and opening another transaction there would fence
whoever writes now. So the driver keeps its lease under the checkpoint. Only the driver that wrote
the file uses it: one that was frozen and replaced finds the lease of its successor there, and must
not end the transaction of that one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from tidemill.client.producing.producer_identity import ProducerIdentity
from tidemill.core.errors import TidemillError, UserError
from tidemill.spark.sink.batch_place import BatchPlace, TaskPlace

__all__ = ["BatchMustRestart", "LeaseFile", "SinkLease", "latest_batches"]

_FILE: Final = "tidemill-sink-lease.json"


@final
class BatchMustRestart(TidemillError):
    """A task cannot be repeated alone: the query has to be started again from its checkpoint."""


@final
@dataclass(frozen=True, slots=True)
class SinkLease:
    """What all tasks of one batch share."""

    identity: ProducerIdentity
    committed: Mapping[str, BatchPlace]
    """The last batch that was committed, by query."""

    def is_written(self, task: TaskPlace) -> bool:
        """Whether the task's batch was committed before, by a run that could not record it.

        Raises BatchMustRestart for a second attempt: the first may have left rows in the
        transaction. UserError if the same run writes a batch twice under one transactional id.
        """
        if task.attempt > 0:
            raise BatchMustRestart(
                f"attempt {task.attempt} of a task cannot be told from the first one, whose rows "
                "may be in the transaction: the batch is aborted, and a restart of the query "
                "writes it again; spark.speculation must be off"
            )
        if task.batch is None:
            return False
        last = self.committed.get(task.batch.query_id)
        if last is None or last.batch_id < task.batch.batch_id:
            return False
        if last == task.batch:
            raise UserError(
                f"batch {last.batch_id} was already written under transactional id "
                f"{self.identity.transactional_id}: if a batch is written several times, give each "
                "write a name of its own"
            )
        return True


def latest_batches(notes: Iterable[tuple[int, str]]) -> dict[str, BatchPlace]:
    """The last batch of each query, from committed offsets and the notes with them."""
    found: dict[str, BatchPlace] = {}
    for offset, note in notes:
        place = BatchPlace.try_from_note(note, offset - 1)
        if place is not None:
            known = found.get(place.query_id)
            if known is None or known.batch_id < place.batch_id:
                found[place.query_id] = place
    return found


@final
class LeaseFile:
    """The lease of one driver, in the folder of a checkpoint."""

    def __init__(self, folder: Path, driver: str) -> None:
        self._path = folder / _FILE
        self._driver = driver

    def keep(self, identity: ProducerIdentity) -> None:
        """A lost file costs an early abort, nothing else: it is not synced."""
        facts = {
            "driver": self._driver,
            "epoch": identity.epoch,
            "producer_id": identity.producer_id,
            "transactional_id": identity.transactional_id,
        }
        fresh = self._path.with_name(f".{self._path.name}.{identity.epoch}")
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(facts), encoding="utf-8")
            fresh.replace(self._path)

    def try_read(self) -> ProducerIdentity | None:
        """This driver's lease; None if another driver has taken one since, or there is none."""
        try:
            facts = json.loads(self._path.read_text(encoding="utf-8"))
            if facts["driver"] != self._driver:
                return None
            return ProducerIdentity(
                int(facts["producer_id"]), int(facts["epoch"]), str(facts["transactional_id"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
