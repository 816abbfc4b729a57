"""The stage for stories of consumer groups (KIP-848). Topic t has four partitions. Commands:

client NAME KEY=VALUE ..  topics and instance of a client; its id is its name and a number
beat NAME ..              one heartbeat each; a changed assignment is printed
comply NAME ..            they read exactly the partitions of their last assignment
lose NAME                 a heartbeat whose answer is lost
leave NAME, pause NAME    leave for good, or temporarily (static members)
restart NAME              the client's process starts again and has another member id
commit NAME [EPOCH]       whether it may commit
topic NAME COUNT          a topic is created or grows; `delete NAME`
wait SECONDS              time passes; sessions last 10 s, revocations 20 s
reload                    another broker takes the group over and loads the log
describe                  the group as ConsumerGroupDescribe shows it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.consumer_desk import Client, ConsumerDesk
from tidemill.coordinators.group.base.records import decode_value, try_decode_key
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Result
from tidemill.core.errors import ErrorCode, KafkaError


class ConsumerStage:
    """Writes one line for each event."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._desk = ToldDesk(self._lines.append)
        self._clients: dict[str, Client] = {}

    def play(self, command: str) -> list[str]:
        self._lines.clear()
        verb, *arguments = command.split()
        try:
            getattr(self, f"_play_{verb}")(*arguments)
        except KafkaError as refusal:
            self._lines.append(f"{arguments[0]} is refused: {refusal.code.name}")
        return list(self._lines)

    def close(self) -> None:
        """Nothing runs between commands."""

    def _client(self, name: str) -> Client:
        if name not in self._clients:
            self._clients[name] = Client(self._desk, f"{name}-1", ["t"])
        return self._clients[name]

    # --- commands --------------------------------------------------------------------------------

    def _play_client(self, name: str, *keys: str) -> None:
        client = self._client(name)
        for key, value in (pair.split("=") for pair in keys):
            if key == "instance":
                client.instance_id = value
            else:
                client.subscribe(value.split(","))

    def _play_beat(self, *names: str) -> None:
        for name in names:
            client = self._client(name)
            before = set(client.told)
            if client.beat() is not ErrorCode.NONE:
                self._lines.append(f"{name} is refused: {client.last_error.name}")
            elif client.told == before:
                self._lines.append(f"{name}: epoch {client.epoch}")
            else:
                told = self._desk.told_partitions(client.told)
                self._lines.append(f"{name}: epoch {client.epoch}, you have {told}")

    def _play_comply(self, *names: str) -> None:
        for name in names:
            self._client(name).comply()

    def _play_lose(self, name: str) -> None:
        self._client(name).beat(is_lost=True)

    def _play_leave(self, name: str) -> None:
        self._client(name).leave()

    def _play_pause(self, name: str) -> None:
        self._client(name).leave(-2)

    def _play_restart(self, name: str) -> None:
        client = self._client(name)
        number = int(client.member_id.rpartition("-")[2])
        client.member_id = f"{name}-{number + 1}"
        client.epoch = 0
        client.reading, client.told = set(), set()

    def _play_commit(self, name: str, epoch: str = "") -> None:
        client = self._client(name)
        code = self._desk.commit_refusal(client.member_id, int(epoch) if epoch else client.epoch)
        may = "may commit" if code is ErrorCode.NONE else f"may not commit: {code.name}"
        self._lines.append(f"{name} {may}")

    def _play_topic(self, name: str, count: str) -> None:
        self._desk.put_topic(name, int(count))

    def _play_delete(self, name: str) -> None:
        self._desk.delete_topic(name)

    def _play_wait(self, seconds: str) -> None:
        self._desk.pass_ms(int(seconds) * 1000)

    def _play_reload(self) -> None:
        self._desk.load()

    def _play_describe(self) -> None:
        group = self._desk.describe()
        epochs = f"group epoch {group.group_epoch}, target epoch {group.assignment_epoch}"
        self._lines.append(f"{group.group_state}, {epochs}")
        for member in group.members:
            static = f" ({member.instance_id})" if member.instance_id else ""
            has, gets = map(told_assignment, (member.assignment, member.target_assignment))
            goal = "" if gets == has else f", target {gets}"
            epoch = f"epoch {member.member_epoch}"
            self._lines.append(f"  {member.member_id}{static}, {epoch}: {has}{goal}")


class ToldDesk(ConsumerDesk):
    """Writes a line for each record."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        super().__init__({"t": 4})

    def apply(self, result: Result[Any]) -> None:
        for record in result.records:
            self._tell(f"log: {self._told(record)}")
        super().apply(result)

    def _told(self, record: CoordinatorRecord) -> str:
        key: Any = try_decode_key(record.key)
        kind = type(key).__name__.removeprefix("ConsumerGroup").removesuffix("Key")
        who = f"{getattr(key, 'member_id', 'group')} "
        if record.value is None:
            return f"{who}{GONE[kind]}"
        value: Any = decode_value(key, record.value)
        return f"{who}{WORDS[kind]} {TOLD[kind](self, value)}"

    def told_partitions(self, partitions: Any) -> str:
        names = sorted(f"{self.image.names.get(one, 'gone')}-{n}" for one, n in partitions)
        return " ".join(names) or "nothing"

    def told_topics(self, topics: Any) -> str:
        return self.told_partitions((one.topic_id, n) for one in topics for n in one.partitions)

    def told_current(self, value: Any) -> str:
        text = f"{self.told_topics(value.assigned_partitions)}, epoch {value.member_epoch}"
        if value.partitions_pending_revocation:
            text += f", gives up {self.told_topics(value.partitions_pending_revocation)}"
        return text + (", waits" if value.state == 2 else "")


WORDS = {
    "Metadata": "epoch",
    "MemberMetadata": "subscribes to",
    "TargetAssignmentMetadata": "target epoch",
    "TargetAssignmentMember": "has target",
    "CurrentMemberAssignment": "has",
}
GONE = {
    "Metadata": "is gone",
    "MemberMetadata": "is gone",
    "TargetAssignmentMetadata": "has no target",
    "TargetAssignmentMember": "has no target",
    "CurrentMemberAssignment": "has no assignment",
}
TOLD: dict[str, Callable[[ToldDesk, Any], str]] = {
    "Metadata": lambda _desk, value: str(value.epoch),
    "MemberMetadata": lambda _desk, value: " ".join(value.subscribed_topic_names),
    "TargetAssignmentMetadata": lambda _desk, value: str(value.assignment_epoch),
    "TargetAssignmentMember": lambda desk, value: desk.told_topics(value.topic_partitions),
    "CurrentMemberAssignment": ToldDesk.told_current,
}


def told_assignment(assignment: Any) -> str:
    names = sorted(
        f"{one.topic_name}-{n}" for one in assignment.topic_partitions for n in one.partitions
    )
    return " ".join(names) or "nothing"
