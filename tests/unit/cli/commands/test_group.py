from __future__ import annotations

import json

import pytest

from tests.support.fake_cluster import FakeCluster
from tests.support.fake_groups import FakeGroup, FakeGroups, FakeMember
from tests.unit.cli.invoke import tidemill
from tidemill.cli.commands import group as group_command
from tidemill.cli.lag_table import GroupSnapshot, print_group
from tidemill.client.admin.group_admin import PartitionProgress
from tidemill.client.admin.group_description import GroupDescription, GroupMember
from tidemill.core.errors import ErrorCode
from tidemill.core.ids import TopicPartition
from tidemill.wire.api_keys import ApiKey
from tidemill.wire.records import Record, build_batch

FIRST, SECOND, THIRD = (TopicPartition("orders", index) for index in range(3))


class World:
    """The topic `orders` with ten records in each of three partitions, two of them deleted."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.groups = FakeGroups(self.cluster)
        for partition in self.cluster.add_topic("orders", 3).partitions:
            records = [Record(b"r", timestamp=1000 * n) for n in range(10)]
            partition.append(bytes(build_batch(records)))
            partition.log_start_offset = 2

    def tidemill(self, *args: str):
        return tidemill("group", *args, cluster=self.cluster)

    def reset(self, *args: str):
        return self.tidemill("reset", "shop", *args)

    def shop(self, **fields: object) -> FakeGroup:
        return self.groups.add("shop", **fields)


@pytest.fixture
def world() -> World:
    return World()


# --- list and describe ---------------------------------------------------------------------------


def test_list_shows_groups_by_name(world):
    world.groups.add("shop", state="Stable", kind="consumer")
    world.groups.add("audit")

    assert world.tidemill("list").stdout.splitlines() == [
        "GROUP  TYPE      STATE   COORDINATOR",
        "audit  classic   Empty             1",
        "shop   consumer  Stable            1",
    ]


def test_list_shows_only_groups_in_a_state(world):
    world.groups.add("shop", state="Stable")
    world.groups.add("audit")

    listed = json.loads(world.tidemill("list", "--state", "stable", "--json").stdout)

    assert [(g["group"], g["type"], g["coordinator"]) for g in listed] == [("shop", "classic", 1)]


def test_describe_shows_members_assignment_and_lag(world):
    world.shop(
        state="Stable",
        members=[FakeMember("m1", [FIRST, SECOND], instance_id="left"), FakeMember("m2", [THIRD])],
        committed={FIRST: 4, SECOND: 10},
    )

    assert world.tidemill("describe", "shop").stdout.splitlines() == [
        "shop  classic, Stable, range, 2 members, lag 6, coordinator 1",
        "MEMBER  INSTANCE  CLIENT  HOST      PARTITIONS",
        "m1      left      app     10.0.0.1  orders:0-1",
        "m2      -         app     10.0.0.1  orders:2",
        "TOPIC   PARTITION  COMMITTED  END  LAG  MEMBER",
        "orders          0          4   10    6  m1",
        "orders          1         10   10    0  m1",
        "orders          2          -   10    -  m2",
    ]


def test_describe_can_answer_in_json(world):
    world.shop(state="Stable", members=[FakeMember("m1", [FIRST, THIRD])], committed={FIRST: 4})

    facts = json.loads(world.tidemill("describe", "shop", "--json").stdout)

    assert (facts["group"], facts["state"], facts["lag"]) == ("shop", "Stable", 6)
    assert facts["members"][0]["assignment"] == [{"topic": "orders", "partitions": [0, 2]}]
    assert facts["partitions"][0] == {
        "topic": "orders",
        "partition": 0,
        "committed_offset": 4,
        "metadata": "",
        "high_watermark": 10,
        "lag": 6,
        "member_id": "m1",
    }


def test_a_watched_group_is_cut_to_the_terminals_height(capsys):
    members = [GroupMember(f"m{n}", None, "app", "h", ()) for n in range(5)]
    description = GroupDescription("shop", "classic", "Stable", "range", 1, members)
    progress = [PartitionProgress(TopicPartition("orders", n), None, 0) for n in range(9)]

    print_group(GroupSnapshot(description, progress), rows_max=8)

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("...")] == ["... 1 more", "... 5 more"]
    assert sum(line.startswith(("m", "orders")) for line in lines) == 8


def test_S52_names_of_members_cannot_control_the_terminal(world):
    world.shop(members=[FakeMember("m\x1b[2J", [FIRST])])

    assert "m\\x1b[2J" in world.tidemill("describe", "shop").stdout


def test_describing_a_group_that_does_not_exist_points_at_the_list(world):
    result = world.tidemill("describe", "absent")

    assert result.exit_code == 1
    assert result.stderr.startswith("error: GROUP_ID_NOT_FOUND: group absent")
    assert "`tidemill group list`" in result.stderr


def test_watch_shows_the_group_again_until_ctrl_c(world, monkeypatch):
    shop = world.shop(committed={FIRST: 4})
    broker = world.cluster.brokers[1]
    fetch = broker.handlers[ApiKey.OFFSET_FETCH]
    pictures = []

    def commit_then_interrupt(request, version):
        if len(pictures) == 3:
            raise KeyboardInterrupt
        pictures.append(shop.committed[FIRST])
        answer = fetch(request, version)
        shop.committed[FIRST] += 1
        return answer

    broker.handlers[ApiKey.OFFSET_FETCH] = commit_then_interrupt
    monkeypatch.setattr(group_command, "_WATCH_S", 0)

    result = world.tidemill("describe", "shop", "--watch", "--json")

    lags = [json.loads(line)["lag"] for line in result.stdout.splitlines()]
    assert (lags, result.exit_code, result.stderr) == ([6, 5, 4], 130, "")


def test_watch_continues_after_a_refusal(world, monkeypatch):
    world.shop(committed={FIRST: 4})
    codes = iter([ErrorCode.NONE, ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.NONE])
    broker = world.cluster.brokers[1]
    describe = broker.handlers[ApiKey.DESCRIBE_GROUPS]

    def refuse_once(request, version):
        code = next(codes, None)
        if code is None:
            raise KeyboardInterrupt
        answer = describe(request, version)
        answer.groups[0].error_code = code
        return answer

    broker.handlers[ApiKey.DESCRIBE_GROUPS] = refuse_once
    monkeypatch.setattr(group_command, "_WATCH_S", 0)

    result = world.tidemill("describe", "shop", "--watch")

    assert result.stdout.count("lag 6") == 2
    assert result.stderr == "error: GROUP_AUTHORIZATION_FAILED: group shop\n"


# --- reset ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        (("--to-earliest",), 2),
        (("--to-latest",), 10),
        (("--to-offset", "5"), 5),
        (("--to-offset", "0"), 2),
        (("--to-offset", "99"), 10),
        (("--to-time", "1970-01-01T00:00:07Z"), 7),
        (("--to-time", "-10m"), 10),
        (("--shift-by", "3"), 7),
        (("--shift-by", "-1"), 3),
        (("--shift-by", "-100"), 2),
    ],
)
def test_reset_moves_to_the_given_position_within_the_log(world, target, offset):
    shop = world.shop(committed={FIRST: 4})

    result = world.reset("--all-topics", *target)

    assert (result.exit_code, result.stderr) == (0, "")
    assert shop.committed == {FIRST: offset}


def test_a_dry_run_shows_the_plan_and_changes_nothing(world):
    shop = world.shop(committed={FIRST: 4})

    result = world.reset("--topic", "orders:0,2", "--to-latest", "--dry-run")

    assert result.stdout.splitlines() == [
        "TOPIC   PARTITION  BEFORE  AFTER",
        "orders          0       4     10",
        "orders          2       -     10",
        "would move 2 partitions of shop",
    ]
    assert shop.committed == {FIRST: 4}
    assert world.cluster.asked(ApiKey.OFFSET_COMMIT) == []


def test_reset_reports_its_moves_in_json(world):
    world.shop(committed={FIRST: 4})

    result = world.reset("--topic", "orders:0", "--to-offset", "6", "--json")

    assert json.loads(result.stdout) == {
        "group": "shop",
        "done": True,
        "moves": [{"topic": "orders", "partition": 0, "before": 4, "after": 6}],
    }


def test_a_topic_without_partitions_named_means_all_of_them(world):
    shop = world.shop()

    world.reset("--topic", "orders", "--to-earliest")

    assert shop.committed == {FIRST: 2, SECOND: 2, THIRD: 2}


def test_a_new_group_begins_where_it_was_reset_to(world):
    result = tidemill(
        *("group", "reset", "new", "--topic", "orders:1", "--to-offset", "7"), cluster=world.cluster
    )

    assert result.exit_code == 0
    assert world.groups.groups["new"].committed == {SECOND: 7}


def test_saved_offsets_are_restored(world, tmp_path):
    shop = world.shop(committed={FIRST: 4, SECOND: 9})
    saved = tmp_path / "shop.json"
    saved.write_text(world.tidemill("describe", "shop", "--json").stdout)
    shop.committed = {FIRST: 10, SECOND: 10, THIRD: 10}

    result = world.reset("--from-file", str(saved))

    assert result.exit_code == 0
    assert shop.committed == {FIRST: 4, SECOND: 9, THIRD: 10}


def test_saved_offsets_can_be_restored_in_part(world, tmp_path):
    shop = world.shop(committed={FIRST: 4, SECOND: 9})
    saved = tmp_path / "shop.json"
    saved.write_text(world.tidemill("describe", "shop", "--json").stdout)
    shop.committed = {FIRST: 10, SECOND: 10}

    world.reset("--from-file", str(saved), "--topic", "orders:1,2")

    assert shop.committed == {FIRST: 10, SECOND: 9}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "orders,0,4",
        "[]",
        "{}",
        '{"partitions": 7}',
        '{"partitions": [{"topic": "orders", "partition": 0}]}',
        '{"partitions": [{"topic": "orders", "partition": 0, "committed_offset": "4"}]}',
        '{"partitions": [{"topic": "orders", "partition": 0, "committed_offset": -4}]}',
        '{"partitions": [{"topic": null, "partition": 0, "committed_offset": 4}]}',
        "[" * 100_000,
    ],
    ids=range(10),
)
def test_a_file_of_another_kind_is_refused_with_the_expected_form(world, tmp_path, content):
    saved = tmp_path / "shop.json"
    saved.write_text(content)

    result = world.reset("--from-file", str(saved))

    assert result.exit_code == 2
    assert "tidemill group describe GROUP --json" in result.stderr


def test_the_offsets_of_an_active_group_are_not_touched(world):
    shop = world.shop(state="Stable", members=[FakeMember("m", [FIRST])], committed={FIRST: 4})

    result = world.reset("--all-topics", "--to-latest")

    assert result.exit_code == 1
    assert result.stderr == (
        "error: NON_EMPTY_GROUP: shop is Stable with 1 members; "
        "stop its members first; `tidemill group describe` names them\n"
    )
    assert shop.committed == {FIRST: 4}


def test_nothing_committed_is_nothing_to_move(world):
    world.shop()

    result = world.reset("--all-topics", "--to-latest")

    assert (result.exit_code, result.stdout) == (0, "shop has nothing to move\n")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "give one of --to-earliest"),
        (("--to-earliest", "--to-latest", "--all-topics"), "give one of --to-earliest"),
        (("--to-earliest",), "give either --topic"),
        (("--to-earliest", "--all-topics", "--topic", "orders"), "give either --topic"),
        (("--to-time", "noon", "--all-topics"), "-10m"),
        (("--to-earliest", "--topic", "orders:x"), "TOPIC:0,1"),
        (("--to-earliest", "--topic", "orders:"), "TOPIC:0,1"),
        (("--shift-by", "1", "--topic", "orders"), "nothing is committed for orders-0"),
    ],
)
def test_wrong_use_of_reset_is_reported_in_one_line(world, args, words):
    result = world.reset(*args)

    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_partition_that_does_not_exist_is_refused(world):
    result = world.reset("--to-earliest", "--topic", "orders:9")

    assert result.exit_code == 1
    assert "UNKNOWN_TOPIC_OR_PARTITION: orders-9" in result.stderr


# --- delete and evict ----------------------------------------------------------------------------


def test_delete_takes_several_and_reports_each(world):
    world.groups.add("a")
    world.groups.add("busy", members=[FakeMember("m")])

    result = world.tidemill("delete", "a", "busy")

    assert (result.exit_code, result.stdout) == (1, "deleted a\n")
    assert "NON_EMPTY_GROUP: not deleted: busy; stop its members first" in result.stderr
    assert list(world.groups.groups) == ["busy"]


@pytest.mark.parametrize(
    ("flags", "staying"), [((), ["m2"]), (("--instance", "left"), ["m2", "m3"])]
)
def test_evict_removes_static_members(world, flags, staying):
    members = [
        FakeMember("m1", instance_id="left"),
        FakeMember("m2"),
        FakeMember("m3", instance_id="right"),
    ]
    shop = world.shop(members=members)

    result = world.tidemill("evict", "shop", *flags)

    assert result.exit_code == 0
    assert result.stdout.startswith("evicted left\n")
    assert [m.member_id for m in shop.members] == staying


def test_evicting_an_instance_that_is_not_there_is_refused(world):
    world.shop(members=[FakeMember("m1", instance_id="left")])

    result = world.tidemill("evict", "shop", "--instance", "right")

    assert result.exit_code == 1
    assert "UNKNOWN_MEMBER_ID: shop has no instance right" in result.stderr
