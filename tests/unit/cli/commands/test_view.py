from __future__ import annotations

import json

from tests.support.fake_cluster import FakeCluster
from tests.unit.cli.invoke import tidemill

WHERE = "region = 'eu'"


def with_view():
    cluster = FakeCluster()
    cluster.add_topic("orders", 2)
    made = tidemill(
        "view", "create", "orders.eu", "--of", "orders", "--where", WHERE, cluster=cluster
    )
    assert made.stdout == "created orders.eu: a view of orders\n"
    return cluster


def test_create_makes_a_topic_with_the_keys_of_a_view():
    assert with_view().topics["orders.eu"].configs == {
        "tidemill.view.of": "orders",
        "tidemill.view.filter": WHERE,
    }


def test_a_view_of_everything_has_no_filter():
    cluster = FakeCluster()
    result = tidemill("view", "create", "all", "--of", "orders", "--json", cluster=cluster)
    facts = json.loads(result.stdout)
    assert (facts["name"], facts["of"], facts["where"]) == ("all", "orders", "")
    assert cluster.topics["all"].configs == {"tidemill.view.of": "orders"}


def test_a_view_of_what_is_held_is_made_listed_and_described():
    cluster = FakeCluster()
    cluster.add_topic("calls", 1)
    tidemill("view", "create", "calls.held", "--of", "calls", "--held", cluster=cluster)
    assert cluster.topics["calls.held"].configs == {
        "tidemill.view.of": "calls",
        "tidemill.view.held": "true",
    }
    assert tidemill("view", "list", cluster=cluster).stdout.split()[-1] == "(held)"
    assert "  what is held\n" in tidemill("view", "describe", "calls.held", cluster=cluster).stdout


def test_create_needs_a_base():
    result = tidemill("view", "create", "v", cluster=FakeCluster())
    assert result.exit_code == 2
    assert "--of" in result.stderr


def test_list_shows_views_and_no_other_topics():
    result = tidemill("view", "list", cluster=with_view())
    assert [line.split(maxsplit=2) for line in result.stdout.splitlines()] == [
        ["VIEW", "OF", "WHERE"],
        ["orders.eu", "orders", WHERE],
    ]
    result = tidemill("view", "list", "--json", cluster=with_view())
    assert json.loads(result.stdout) == [
        {"name": "orders.eu", "of": "orders", "where": WHERE, "held": False}
    ]


def test_describe_shows_base_selector_and_offsets():
    result = tidemill("view", "describe", "orders.eu", cluster=with_view())
    assert result.stdout.splitlines()[:2] == ["orders.eu  of orders", f"  where {WHERE}"]
    assert "PARTITION" in result.stdout


def test_delete_deletes_views_only():
    cluster = with_view()
    result = tidemill("view", "delete", "orders.eu", "orders", cluster=cluster)
    assert result.exit_code == 1
    assert "orders is not a view" in result.stderr
    assert set(cluster.topics) == {"orders", "orders.eu"}
    result = tidemill("view", "delete", "orders.eu", cluster=cluster)
    assert result.stdout == "deleted orders.eu\n"
    assert set(cluster.topics) == {"orders"}
