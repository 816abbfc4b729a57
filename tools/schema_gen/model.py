"""Messages, structs and fields, as the schemas describe them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self, final

from tools.schema_gen.extensions import EXTENSIONS
from tools.schema_gen.jar import Schema

__all__ = ["Field", "Message", "Struct", "Versions", "parse", "snake_case"]

_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_OPEN_END = 1 << 15


def snake_case(name: str) -> str:
    return _WORD_STARTS.sub("_", name).lower()


@final
@dataclass(frozen=True, slots=True)
class Versions:
    """A closed range; empty if `high < low`."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str | None) -> Self:
        if text is None or text == "none":
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), _OPEN_END)
        low, _, high = text.partition("-")
        return cls(int(low), int(high or low))

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __and__(self, other: Versions) -> Versions:
        return Versions(max(self.low, other.low), min(self.high, other.high))

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))

    def __bool__(self) -> bool:
        return self.low <= self.high


@final
@dataclass(frozen=True, slots=True)
class Field:
    name: str
    type: str
    """A primitive's name, or a struct's (capitalised); for an array, the type of its elements."""
    is_array: bool
    versions: Versions
    nullable: Versions
    flexible: Versions
    tag: int | None
    default: Any
    """The value of an absent field; `Struct` means a struct of defaults."""
    is_ignorable: bool

    @property
    def is_struct(self) -> bool:
        return self.type[0].isupper()


@final
@dataclass(slots=True)
class Struct:
    name: str
    versions: Versions
    """Versions of the message in which the struct can occur."""
    flexible: Versions
    fields: list[Field] = field(default_factory=list)

    @property
    def untagged(self) -> list[Field]:
        return [field for field in self.fields if field.tag is None]

    @property
    def tagged(self) -> list[Field]:
        """In the order of their tags, which is their order on the wire."""
        tagged = [field for field in self.fields if field.tag is not None]
        return sorted(tagged, key=lambda field: field.tag or 0)


@final
@dataclass(slots=True)
class Message:
    name: str
    kind: str
    """request, response, header, data, coordinator-key or coordinator-value."""
    api_key: int | None
    versions: Versions
    flexible: Versions
    structs: dict[str, Struct] = field(default_factory=dict)
    """All structs by Kafka's name, nested ones before their users, the message last."""

    @property
    def root(self) -> Struct:
        return self.structs[self.name]


def parse(schema: Schema) -> Message:
    versions = Versions.parse(schema["validVersions"])
    if schema.get("latestVersionUnstable"):
        versions = Versions(versions.low, versions.high - 1)
    message = Message(
        name=schema["name"],
        kind=schema["type"],
        api_key=schema.get("apiKey"),
        versions=versions,
        flexible=Versions.parse(schema["flexibleVersions"]) & versions,
    )
    common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", ())}
    _add_struct(message, schema["name"], schema["fields"], versions, common)
    return message


def _add_struct(
    message: Message,
    name: str,
    rows: list[Schema],
    versions: Versions,
    common: dict[str, list[Schema]],
) -> None:
    """Depth first; a struct that occurs in two places gets the versions of both."""
    known = message.structs.pop(name, None)
    if known is not None:
        low = min(known.versions.low, versions.low)
        versions = Versions(low, max(known.versions.high, versions.high))
    struct = Struct(name, versions, message.flexible & versions)
    for row in rows + EXTENSIONS.get((message.name, name), []):
        field = _field(row, message)
        occurs = field.versions & versions
        if not occurs:
            continue
        if field.is_struct:
            nested = row.get("fields") or common[field.type]
            _add_struct(message, field.type, nested, occurs, common)
        struct.fields.append(field)
    message.structs[name] = struct


def _field(row: Schema, message: Message) -> Field:
    is_tagged = "tag" in row
    # Some records give tagged fields no versions but the tagged ones.
    named = row["versions"] if "versions" in row else row["taggedVersions"]
    versions = Versions.parse(named) & message.versions
    if is_tagged and Versions.parse(row["taggedVersions"]) & message.versions != versions:
        raise NotImplementedError(f"{message.name}.{row['name']} is tagged in some versions only")
    flexible = message.flexible
    if "flexibleVersions" in row:
        flexible = flexible & Versions.parse(row["flexibleVersions"])
    field_type: str = row["type"].removeprefix("[]")
    return Field(
        name=snake_case(row["name"]),
        type=field_type,
        is_array=row["type"].startswith("[]"),
        versions=versions,
        nullable=Versions.parse(row.get("nullableVersions")) & versions,
        flexible=flexible & versions,
        tag=row.get("tag"),
        default=_default(row, is_tagged=is_tagged),
        is_ignorable=row.get("ignorable", False),
    )


def _default(row: Schema, *, is_tagged: bool) -> Any:  # noqa: ANN401  # a value of any field type
    given = row.get("default")
    if given == "null" or ("default" in row and given is None):
        return None
    kind: str = row["type"]
    if kind.startswith("[]"):
        return []
    if kind[0].isupper():
        # An absent tagged struct is None, not a struct of defaults: nearly every response leaves
        # these tags out, and no object is created for them.
        return None if is_tagged else Struct
    match kind:
        case "string":
            return given or ""
        case "bytes" | "records":
            return b""
        case "bool":
            return given in (True, "true")
        case "uuid":
            return 0
        case "float64":
            return float(given or 0)
        case _:
            return int(str(given or 0), 0)
