"""Messages of every API and version, built from the schemas, by hypothesis or from a seed."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from tidemill.wire.message import Message
from tidemill.wire.primitives import Buffer, Reader, Writer
from tools.schema_gen import model
from tools.schema_gen.extensions import EXTENSIONS, all_schemas
from tools.schema_gen.layout import FIXED
from tools.schema_gen.model import snake_case
from tools.schema_gen.modules import class_names, module_name

OWN_FIELDS = frozenset(
    (message, struct_name, snake_case(row["name"]))
    for (message, struct_name), rows in EXTENSIONS.items()
    for row in rows
)


@dataclass(frozen=True)
class Case:
    """One message in one version."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name}-v{self.version}"

    @property
    def schema(self) -> model.Message:
        return schemas()[self.name]

    @property
    def message_class(self) -> type[Message]:
        return struct_class(self.name, self.name)

    @property
    def is_flexible(self) -> bool:
        return self.version in self.schema.flexible


@cache
def schemas() -> dict[str, model.Message]:
    return {message.name: message for message in map(model.parse, all_schemas())}


def all_cases() -> list[Case]:
    return [
        Case(name, version) for name, schema in schemas().items() for version in schema.versions
    ]


def newest_cases() -> list[Case]:
    return [Case(name, schema.versions.high) for name, schema in schemas().items()]


def oldest_cases() -> list[Case]:
    return [Case(name, schema.versions.low) for name, schema in schemas().items()]


@cache
def struct_class(message_name: str, struct_name: str) -> type[Message]:
    message = schemas()[message_name]
    module = import_module(f"tidemill.wire.generated.{module_name(message)}")
    siblings = [m for m in schemas().values() if module_name(m) == module_name(message)]
    found: type[Message] = getattr(module, class_names(message, siblings)[struct_name])
    return found


def encode(message: Message, version: int) -> bytes:
    w = Writer()
    message.write(w, version)
    encoded = b"".join(w.chunks())
    assert len(encoded) == w.size
    return encoded


def decode(message_class: type[Message], encoded: Buffer, version: int) -> Message:
    r = Reader(encoded)
    message = message_class.read(r, version)
    r.finish()
    return message


# --- hypothesis ----------------------------------------------------------------------------------

_TEXT = st.text(max_size=6) | st.just("x" * 200)
_BYTES = st.binary(max_size=6) | st.just(bytes(200))


def _int_strategy(code: str) -> st.SearchStrategy[int]:
    bits = 8 * struct.calcsize(f">{code}")
    if code.isupper():
        return st.integers(0, 2**bits - 1)
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.uuids() | st.just(UUID(int=0)),
    "string": _TEXT,
    "bytes": _BYTES,
    "records": _BYTES,
    **{name: _int_strategy(code) for name, (code, _) in FIXED.items() if code not in "?d"},
}


def messages(case: Case) -> st.SearchStrategy[Message]:
    return _structs(case, case.name)


def _structs(case: Case, name: str) -> st.SearchStrategy[Message]:
    fields = case.schema.structs[name].fields
    values = {f.name: _values(case, f) for f in fields if case.version in f.versions}
    return st.builds(struct_class(case.name, name), **values)


def _values(case: Case, field: model.Field) -> st.SearchStrategy[Any]:
    values = _structs(case, field.type) if field.is_struct else _PRIMITIVES[field.type]
    if field.is_array:
        values = st.lists(values, max_size=2)
    if case.version in field.nullable or field.default is None:
        return st.none() | values
    return values


# --- seeded --------------------------------------------------------------------------------------


def sample(case: Case, rng: random.Random, *, is_full: bool = True, own: bool = True) -> Message:
    """A message with every field, tag and array filled, or with all of them left out.

    Integers are large enough to be distinguished and small enough for any use: a time, an error
    code. `own` includes the tagged fields that only Tidemill has.
    """
    return _sample_struct(case, case.name, rng, is_full=is_full, own=own)


def _sample_struct(
    case: Case, name: str, rng: random.Random, *, is_full: bool, own: bool
) -> Message:
    values: dict[str, Any] = {}
    for field in case.schema.structs[name].fields:
        is_foreign = not own and (case.name, name, field.name) in OWN_FIELDS
        is_left_out = not is_full and field.tag is not None
        if case.version not in field.versions or is_foreign or is_left_out:
            continue

        def one(field: model.Field = field) -> Any:
            if field.is_struct:
                return _sample_struct(case, field.type, rng, is_full=is_full, own=own)
            return _SAMPLES[field.type](rng)

        values[field.name] = _sample_value(field, case.version, one, is_full=is_full)
    return struct_class(case.name, name)(**values)


def _sample_value(
    field: model.Field, version: int, one: Callable[[], Any], *, is_full: bool
) -> Any:
    if not is_full and version in field.nullable:
        return None
    if field.name.endswith("error_code"):
        return one() % 100
    if field.is_array:
        return [one(), one()] if is_full else []
    return one()


_SAMPLES: dict[str, Callable[[random.Random], Any]] = {
    "bool": lambda rng: rng.random() < 0.5,
    "int8": lambda rng: rng.randrange(1, 100),
    "int16": lambda rng: rng.randrange(1, 1 << 14),
    "uint16": lambda rng: rng.randrange(1, 1 << 16),
    "int32": lambda rng: rng.randrange(1, 1 << 30),
    "uint32": lambda rng: rng.randrange(1, 1 << 32),
    "int64": lambda rng: rng.randrange(1, 1 << 40),
    "float64": lambda rng: rng.randrange(1, 1 << 20) / 8,
    "uuid": lambda rng: UUID(int=rng.getrandbits(128)),
    "string": lambda rng: f"text-{rng.randrange(1 << 20)}",
    "bytes": lambda rng: rng.randbytes(rng.randrange(1, 20)),
    "records": lambda rng: rng.randbytes(rng.randrange(1, 200)),
}
