"""kio, an independent implementation of the same schemas, as an oracle.

For every message and version that kio has: it reads our bytes, finds under each name the value we
put there, and writes the same bytes again. kio only ever sees our own bytes: its reader does not
survive a lying count.
"""

from __future__ import annotations

import io
import random
from dataclasses import Field, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_entity_schema
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from tests.wire.messages import Case, all_cases, encode, sample
from tidemill.core.ids import ZERO_UUID
from tidemill.wire.message import Message
from tools.schema_gen.jar import RECORD_KINDS
from tools.schema_gen.modules import module_name

KINDS = {kind.name: kind for kind in EntityType}


# A coordinator's records never cross the wire: kio does not have them.
ON_THE_WIRE = [case for case in all_cases() if case.schema.kind not in RECORD_KINDS]


def is_known_to_kio(case: Case) -> bool:
    versions = schema_name_map.get(module_name(case.schema), {})
    return KINDS[case.schema.kind] in versions.get(case.version, {})


SHARED = [case for case in ON_THE_WIRE if is_known_to_kio(case)]


def kio_class(case: Case) -> Any:
    return load_entity_schema(module_name(case.schema), case.version, KINDS[case.schema.kind])


def plain(value: Any) -> Any:
    """kio's richer values as the values on the wire (T6)."""
    match value:
        case timedelta():
            return round(value / timedelta(milliseconds=1))
        case datetime():
            return round(value.timestamp() * 1000)
        case tuple():
            return [plain(element) for element in value]
        case memoryview():
            return bytes(value)
        case bool() | str() | bytes() | float() | UUID() | None:
            return value
        case int():
            return int(value)
        case Enum():
            return int(value.value)  # an error code
        case _:
            values = ((field, getattr(value, field.name)) for field in fields(value))
            return {f.name: plain(v) for f, v in values if not is_absent_tag(f, v)}


def is_absent_tag(field: Field[Any], value: Any) -> bool:
    """kio puts a struct of defaults where we have None."""
    return "tag" in field.metadata and is_dataclass(value) and value == field.default


def assert_same(ours: Any, theirs: Any, path: str) -> None:
    if isinstance(ours, Message):
        for name, value in theirs.items():
            # kio drops the unit of a value that it turns into a timedelta or a datetime.
            own_name = name if hasattr(ours, name) else f"{name}_ms"
            assert_same(getattr(ours, own_name), value, f"{path}.{name}")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), path
        for index, (element, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(element, other, f"{path}[{index}]")
    elif theirs is None and ours == ZERO_UUID:
        pass  # kio has no zero UUID
    else:
        assert ours == theirs, path


def test_kio_has_nearly_everything_we_have():
    missing = {case.name for case in ON_THE_WIRE} - {case.name for case in SHARED}
    ours = ("ReplicaProgress", "ReplicaLogEnds", "ReplicaBatches")
    assert missing == {f"{name}{part}" for name in ours for part in ("Request", "Response")}
    assert len(SHARED) >= 0.95 * len(ON_THE_WIRE)


@pytest.mark.parametrize("is_full", [True, False], ids=["full", "empty"])
@pytest.mark.parametrize("case", SHARED, ids=str)
def test_kio_reads_our_values_and_writes_our_bytes(case, is_full):
    message = sample(case, random.Random(11), is_full=is_full, own=False)
    encoded = encode(message, case.version)

    entity, consumed = entity_reader(kio_class(case))(encoded, 0)
    assert consumed == len(encoded)
    assert_same(message, plain(entity), case.name)

    out = io.BytesIO()
    entity_writer(kio_class(case))(out, entity)
    assert out.getvalue() == encoded
