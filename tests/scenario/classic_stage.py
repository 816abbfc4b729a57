"""The stage for stories of classic groups. Its commands:

config KEY=VALUE ...     the broker's keys, before anything else
client NAME KEY=VALUE .. its instance, topics, protocols, session and rebalance (seconds)
join NAME [vN]           one JoinGroup, of version 9 unless said otherwise
sync NAME [NAME=PLAN ..] one SyncGroup, the leader's with a plan; `-` assigns nothing
heartbeat NAME           and `commit NAME [GENERATION]`, `leave NAME ..`, `remove INSTANCE`
restart NAME             the client's process starts again; it has lost its member id
wait SECONDS             time passes
reload                   another broker takes the group over and loads the log
describe                 the group as DescribeGroups shows it
"""

from __future__ import annotations

from typing import Any

from tests.support.classic_desk import Client, Desk, config
from tidemill.coordinators.runtime.shard import CoordinatorRecord, Result
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.wire.generated.join_group import JoinGroupResponse
from tidemill.wire.generated.sync_group import SyncGroupResponse


class ClassicStage:
    """Writes one line for each event."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._desk = ToldDesk(self._tell)
        self._clients: dict[str, ToldClient] = {}

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

    def _client(self, name: str) -> ToldClient:
        return self._clients.setdefault(name, ToldClient(name, self._tell))

    # --- commands --------------------------------------------------------------------------------

    def _play_config(self, *keys: str) -> None:
        values = {key: int(value) for key, value in (pair.split("=") for pair in keys)}
        self._desk = ToldDesk(self._tell, config(**values))

    def _play_client(self, name: str, *keys: str) -> None:
        client = self._client(name)
        for key, value in (pair.split("=") for pair in keys):
            if key == "instance":
                client.instance_id = value
            elif key in ("topics", "protocols"):
                setattr(client, key, tuple(value.split(",")))
            else:
                setattr(client, f"{key}_ms", int(value) * 1000)

    def _play_join(self, name: str, version: str = "v9") -> None:
        if self._desk.send_join(self._client(name), version=int(version[1:])).waits:
            self._tell(f"{name} waits")

    def _play_sync(self, name: str, *plan: str) -> None:
        shares = dict(pair.split("=") for pair in plan)
        assignments = {
            self._client(member).member_id: share.strip("-").encode()
            for member, share in shares.items()
        }
        if self._desk.sync(self._client(name), assignments).waits:
            self._tell(f"{name} waits")

    def _play_heartbeat(self, name: str) -> None:
        self._desk.heartbeat(self._client(name))
        self._tell(f"{name} is alive")

    def _play_commit(self, name: str, generation: str = "") -> None:
        self._desk.commit(self._client(name), int(generation) if generation else None)
        self._tell(f"{name} may commit")

    def _play_leave(self, *names: str) -> None:
        self._told_leave(*((self._client(name).member_id, None) for name in names))

    def _play_remove(self, instance_id: str) -> None:
        self._told_leave(("", instance_id))

    def _told_leave(self, *who: tuple[str, str | None]) -> None:
        for member in self._desk.leave_as(*who).response.members:
            left = "left" if member.error_code == 0 else ErrorCode(member.error_code).name
            self._tell(f"{member.member_id or member.group_instance_id}: {left}")

    def _play_restart(self, name: str) -> None:
        self._client(name).member_id = ""

    def _play_wait(self, seconds: str) -> None:
        self._desk.advance(int(seconds) * 1000)

    def _play_reload(self) -> None:
        self._desk.reload()

    def _play_describe(self) -> None:
        group = self._desk.group.describe()
        protocol = f", {group.protocol_data}" if group.protocol_data else ""
        self._tell(f"{group.group_state}, generation {self._desk.group.generation}{protocol}")
        for member in group.members:
            static = f" ({member.group_instance_id})" if member.group_instance_id else ""
            share = f": {member.member_assignment.decode() or '-'}" if protocol else ""
            self._tell(f"  {member.member_id}{static}{share}")


class ToldDesk(Desk):
    """Writes a line for each record and for each deadline that passes."""

    def __init__(self, tell: Any, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._tell = tell

    def apply(self, result: Result[Any], client: Client | None = None) -> Any:
        for record in result.records:
            self._tell(f"log: {self._told(record)}")
        return super().apply(result, client)

    def _told(self, record: CoordinatorRecord) -> str:
        value = self.decoded(record)
        shares = (f"{member.member_id}={member.assignment.decode()}" for member in value.members)
        return f"generation {value.generation}, {' '.join(shares) or 'empty'}"

    def expire(self) -> None:
        due = self.context.deadlines.next_ms()
        assert due is not None
        self._tell(f"({due / 1000:g} s)")
        super().expire()


class ToldClient(Client):
    """Writes a line for each answer that it gets."""

    def __init__(self, name: str, tell: Any) -> None:
        super().__init__(name)
        self._tell = tell

    def learn(self, response: Any) -> None:
        super().learn(response)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._tell(f"{self.name} must join again as {response.member_id}")
        elif response.error_code:
            self._tell(f"{self.name} gets {ErrorCode(response.error_code).name}")
        elif isinstance(response, SyncGroupResponse):
            self._tell(f"{self.name} is given {response.assignment.decode() or 'nothing'}")
        else:
            self._tell(f"{self.name} is {self._told_role(response)}")

    def _told_role(self, response: JoinGroupResponse) -> str:
        role = f"{response.member_id} in generation {response.generation_id}"
        if not response.members:
            return role
        leads = " ".join(member.member_id for member in response.members)
        skips = ", but must not make a plan" if response.skip_assignment else ""
        return f"{role}, {response.protocol_name}, and leads {leads}{skips}"
