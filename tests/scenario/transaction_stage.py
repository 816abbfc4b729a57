"""The stage for stories of transactions; all producers use the id `pay`. Its commands:

config KEY=VALUE ...     the broker's keys, before anything else
client NAME KEY=VALUE .. its timeout (seconds) and tv (2: its epochs belong to transactions)
init NAME                InitProducerId of a new instance; `resume NAME` of one that goes on
wear_out NAME            so many instances before this one that its epoch is the last of its id
add NAME PARTITION ..    AddPartitionsToTxn
produce NAME PARTITION VALUE [EPOCH]   a produce request, which may come late
commit NAME              EndTxn, and `abort NAME`
again commit NAME        the request comes once more, as it was
markers [but PARTITION]  the markers that are due are written; with `but` one broker is away
twice                    the markers of the last decision come a second time
wait SECONDS             time passes
reload                   another broker takes the coordinator's partition over and loads the log
read PARTITION ..        what readers of committed records see
describe                 the transaction as DescribeTransactions shows it
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.transaction_desk import ID, TransactionDesk, at
from tidemill.coordinators.runtime.shard import ProducerName, Result
from tidemill.coordinators.transaction.records import try_read_transaction
from tidemill.coordinators.transaction.shard import MarkersWanted
from tidemill.coordinators.transaction.transaction import LAST_GIVEN_EPOCH, Transaction
from tidemill.core.config.transaction_config import TransactionConfig
from tidemill.core.errors import KafkaError

NOBODY = ProducerName(-1, -1)


@dataclass
class Producer:
    """One instance, and what it knows."""

    timeout_s: int = 60
    tv: int = 0
    name: ProducerName = NOBODY
    before: ProducerName = NOBODY
    """Its name in its last request that may come again."""


class TransactionStage:
    """Writes one line for each event."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._desk = ToldTransactionDesk(self._tell)
        self._producers: dict[str, Producer] = {}
        self._last: MarkersWanted | None = None

    def play(self, command: str) -> list[str]:
        self._lines.clear()
        verb, *arguments = command.split()
        try:
            getattr(self, f"_play_{verb}")(*arguments)
        except KafkaError as refusal:
            self._tell(f"{arguments[0]} is refused: {refusal.code.name}")
        return list(self._lines)

    def close(self) -> None:
        """Nothing runs between commands."""

    def _tell(self, line: str) -> None:
        self._lines.append(line)

    def _producer(self, name: str) -> Producer:
        return self._producers.setdefault(name, Producer())

    # --- commands --------------------------------------------------------------------------------

    def _play_config(self, *keys: str) -> None:
        values = {key: int(value) for key, value in (pair.split("=") for pair in keys)}
        self._desk = ToldTransactionDesk(self._tell, TransactionConfig(**values))

    def _play_client(self, name: str, *keys: str) -> None:
        for key, value in (pair.split("=") for pair in keys):
            setattr(self._producer(name), {"timeout": "timeout_s"}.get(key, key), int(value))

    def _play_init(self, name: str) -> None:
        self._begin(name, None)

    def _play_resume(self, name: str) -> None:
        self._begin(name, self._producer(name).name)

    def _begin(self, name: str, resumed: ProducerName | None) -> None:
        producer = self._producer(name)
        producer.before = producer.name
        producer.name = self._desk.init(timeout_ms=producer.timeout_s * 1000, resumed=resumed)
        self._tell(f"{name} is {_told(producer.name)}")

    def _play_wear_out(self, name: str) -> None:
        producer = self._producer(name)
        self._desk.is_silent = True
        while producer.name.epoch < LAST_GIVEN_EPOCH:
            producer.name = self._desk.init(timeout_ms=producer.timeout_s * 1000)
        self._desk.is_silent = False
        self._tell(f"{name} is {_told(producer.name)}")

    def _play_add(self, name: str, *partitions: str) -> None:
        self._desk.add(self._producer(name).name, *partitions)
        self._tell(f"{name} may write to {' '.join(partitions)}")

    def _play_produce(self, name: str, partition: str, value: str, epoch: str = "") -> None:
        producer = self._producer(name)
        sender = producer.name._replace(epoch=int(epoch)) if epoch else producer.name
        self._desk.produce(sender, partition, value, version=producer.tv)
        self._tell(f"{partition} holds {value} for now")

    def _play_commit(self, name: str) -> None:
        self._end(name, is_commit=True)

    def _play_abort(self, name: str) -> None:
        self._end(name, is_commit=False)

    def _play_again(self, outcome: str, name: str) -> None:
        producer = self._producer(name)
        if producer.tv:
            producer.name = producer.before
        try:
            self._end(name, is_commit=outcome == "commit")
        except KafkaError as refusal:
            self._tell(f"{name} is refused: {refusal.code.name}")

    def _end(self, name: str, *, is_commit: bool) -> None:
        producer = self._producer(name)
        producer.before = producer.name
        producer.name = self._desk.end(producer.name, is_commit=is_commit, version=producer.tv)
        outcome = "commit" if is_commit else "abort"
        changed = producer.name != producer.before
        self._tell(
            f"{name}'s {outcome} is decided" + (f", {_told(producer.name)} next" if changed else "")
        )

    def _play_markers(self, word: str = "", partition: str = "") -> None:
        wanted, self._desk.wanted = self._desk.wanted, []
        for one in wanted:
            self._last = one
            complete = self._desk.write_markers(one, but=partition)
            self._tell_markers(one, but=partition)
            if complete:
                self._desk.complete(one)
            else:
                self._desk.wanted.append(one)
        if not wanted:
            self._tell("none is due")

    def _play_twice(self) -> None:
        assert self._last is not None
        self._desk.write_markers(self._last)
        self._tell_markers(self._last)

    def _tell_markers(self, wanted: MarkersWanted, *, but: str = "") -> None:
        outcome = "commit" if wanted.is_commit else "abort"
        marked = [str(name) for name in sorted(wanted.partitions) if str(name) != but]
        self._tell(f"marked: {outcome} of {_told(wanted.producer)} in {' '.join(marked)}")

    def _play_wait(self, seconds: str) -> None:
        self._desk.advance(
            int(seconds) * 1000, on_expiry=lambda ms: self._tell(f"({ms / 1000:g} s)")
        )

    def _play_reload(self) -> None:
        self._desk.reload()
        for one in self._desk.wanted:
            self._tell(f"to be marked again: {' '.join(map(str, sorted(one.partitions)))}")

    def _play_read(self, *partitions: str) -> None:
        for name in partitions:
            log = self._desk.log_of(at(name))
            held = ", and holds more back" if log.open else ""
            self._tell(f"{name}: {' '.join(log.committed) or 'nothing'}{held}")

    def _play_describe(self) -> None:
        self._tell(_shown(self._desk.shard.describe(ID)))


class ToldTransactionDesk(TransactionDesk):
    """Writes a line for each record."""

    def __init__(self, tell: Any, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tell = tell
        self.is_silent = False

    def apply(self, result: Result[Any]) -> Any:
        for _, value in () if self.is_silent else result.records:
            written = None if value is None else try_read_transaction(ID, value)
            self._tell(f"log: {'the id is deleted' if written is None else _shown(written)}")
        return super().apply(result)


def _shown(transaction: Transaction) -> str:
    names = " ".join(map(str, sorted(transaction.partitions)))
    shown = f"{transaction.status.shown}, {_told(transaction.producer)}"
    return f"{shown}: {names}" if names else shown


def _told(producer: ProducerName) -> str:
    return f"{producer.producer_id} epoch {producer.epoch}"
