from __future__ import annotations

import pytest

from tidemill.core.errors import UserError
from tidemill.spark.data_source import TidemillSource
from tidemill.spark.options.table_options import (
    own_options,
    with_stored_options,
    with_table_options,
)

GIVEN = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}
ADDED_BY_SPARK = {
    **{f"option.{name}": value for name, value in GIVEN.items()},
    **{"provider": "tidemill", "owner": "root", "comment": "mine"},
}


def test_a_table_is_created_from_the_options_that_the_user_gave():
    assert own_options(GIVEN | ADDED_BY_SPARK) == GIVEN
    TidemillSource(GIVEN | ADDED_BY_SPARK).schema()


def test_what_spark_adds_to_a_table_is_unknown_elsewhere():
    with pytest.raises(UserError, match="unknown option owner"):
        TidemillSource(GIVEN | {"owner": "root"})


def test_a_table_is_read_with_the_options_that_it_was_created_with():
    schema = TidemillSource(GIVEN | ADDED_BY_SPARK).schema()
    reader = TidemillSource({"startingOffsets": "-5"}).reader(schema)
    assert reader._options.subscription.topics == ("t",)
    assert reader._options.starting.for_all.number == 5


@pytest.mark.parametrize(
    ("stored", "given"),
    [
        ({"subscribe": "t"}, {"subscribe": "u"}),
        ({"subscribe": "t"}, {"subscribepattern": "u.*"}),
        ({"startingtimestamp": "5"}, {"startingoffsets": "earliest"}),
        ({"endingoffsets": "latest"}, {"endingtimestamp": "7"}),
    ],
)
def test_options_of_the_query_replace_those_of_the_table(stored, given):
    schema = with_stored_options(TidemillSource(dict(GIVEN)).schema(), stored)
    assert with_table_options(given, schema) == given


def test_the_schema_of_a_query_without_a_table_carries_no_options():
    assert with_table_options({}, TidemillSource(dict(GIVEN)).schema()) == {}


def test_secrets_are_not_stored_with_a_table():
    options = GIVEN | {"kafka.sasl.jaas.config": "secret", "kafka.ssl.key.password": "secret"}
    schema = with_stored_options(TidemillSource(dict(GIVEN)).schema(), options)
    assert with_table_options({}, schema) == GIVEN
