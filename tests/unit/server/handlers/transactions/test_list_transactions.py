"""ListTransactions: the filters of a request, however long they are."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.transaction_desk import TransactionDesk
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.server.handlers.transactions import list_transactions
from tidemill.server.request.authorizer import Operation
from tidemill.wire.generated.list_transactions import ListTransactionsRequest


class Filters(list):
    """A list that would take too long to be searched once for each transaction."""

    def __contains__(self, one):
        raise AssertionError("searched from its beginning")


@pytest.fixture
def desk():
    made = TransactionDesk()
    for name in "abc":
        made.init(transactional_id=name)
    return made


def listed(run, desk, *, by_broker=False, denied=(), **filters):
    services = SimpleNamespace(
        transactions=SimpleNamespace(is_loading=False, shards=lambda: [desk.shard]),
        clock=SimpleNamespace(wall_ms=lambda: desk.now.wall_ms),
    )
    context = SimpleNamespace(
        services=services,
        peer=SimpleNamespace(is_internal=by_broker),
        allows=lambda operation, _resource: operation not in denied,
    )

    async def ask():
        return await list_transactions.handle(context, ListTransactionsRequest(**filters))

    return [one.transactional_id for one in run(ask()).transaction_states]


def test_a_request_may_name_very_many_producers(run, desk):
    wanted = Filters([desk.shard.describe("b").producer_id, *range(10**6, 10**6 + 1000)])
    assert listed(run, desk, producer_id_filters=wanted) == ["b"]


def test_a_request_may_name_states(run, desk):
    desk.add(desk.init(transactional_id="c"), "t-0", transactional_id="c")
    assert listed(run, desk, state_filters=Filters(["Ongoing", "Dead"])) == ["c"]
    assert listed(run, desk) == ["a", "b", "c"]


def test_a_client_sees_the_ids_that_it_may_describe_and_a_broker_all(run, desk):
    hidden = [Operation.DESCRIBE]
    assert listed(run, desk, denied=hidden) == []
    assert listed(run, desk, denied=hidden, by_broker=True) == ["a", "b", "c"]
    assert listed(run, desk, denied=[*hidden, Operation.CLUSTER_ACTION], by_broker=True) == []


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (None, ["a", "b", "c"]),
        ("", ["a", "b", "c"]),
        ("[ab]", ["a", "b"]),
        ("a|c", ["a", "c"]),
        ("x*", []),
        ("é", []),
    ],
)
def test_a_request_may_give_an_expression_that_matches_whole_ids(run, desk, pattern, found):
    desk.init(transactional_id="abc")
    assert listed(run, desk, transactional_id_pattern=pattern) in (found, [*found, "abc"])
    assert ("abc" in listed(run, desk, transactional_id_pattern=pattern)) is (not pattern)


def test_all_filters_must_hold(run, desk):
    desk.add(desk.init(transactional_id="c"), "t-0", transactional_id="c")
    both = {"state_filters": ["Ongoing"], "transactional_id_pattern": "[bc]"}
    assert listed(run, desk, **both) == ["c"]
    assert listed(run, desk, **both, duration_filter=1) == []


@pytest.mark.parametrize("pattern", ["(", "x" * 10_000, "(a{1000}){1000}"])
def test_S37_an_expression_that_is_invalid_or_too_large_is_refused(run, desk, pattern):
    with pytest.raises(KafkaError) as refused:
        listed(run, desk, transactional_id_pattern=pattern)
    assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
