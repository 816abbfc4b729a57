"""The page on compatibility names every API of Kafka that is not served, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tidemill.server.handlers import HANDLERS
from tidemill.wire.api_keys import API_SPECS
from tools.schema_gen.extensions import FIRST_OWN_KEY
from tools.schema_gen.jar import load_api_names

PAGE = Path(__file__).parents[4] / "docs" / "reference" / "compatibility.md"
SECTION = "## APIs that are not served"


def listed():
    section = PAGE.read_text().split(SECTION)[1].split("\n## ")[0]
    return [(int(key), name) for name, key in re.findall(r"(\w+) \((\d+)\)", section)]


def test_every_api_of_kafka_is_served_or_listed_as_missing():
    served = {int(handler.api_key) for handler in HANDLERS}
    missing = {(key, name) for key, name in load_api_names().items() if key not in served}
    assert set(listed()) == missing


def test_no_api_is_listed_twice():
    assert len(listed()) == len(set(listed()))


def test_the_stored_schemas_are_of_the_same_kafka_as_the_list_of_its_apis():
    names = load_api_names()
    kafkas = {key: spec.name for key, spec in API_SPECS.items() if key < FIRST_OWN_KEY}
    assert {key: names.get(key) for key in kafkas} == kafkas
