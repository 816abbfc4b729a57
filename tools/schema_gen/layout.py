"""A field in Python and on the wire: its type, its default, its smallest size."""

from __future__ import annotations

from tools.schema_gen.model import Field, Message, Struct

__all__ = ["FIXED", "bytes_min", "default_text", "element_bytes_min", "objects", "type_hint"]

FIXED = {
    "bool": ("?", 1),
    "int8": ("b", 1),
    "int16": ("h", 2),
    "uint16": ("H", 2),
    "int32": ("i", 4),
    "uint32": ("I", 4),
    "int64": ("q", 8),
    "float64": ("d", 8),
}
"""The struct module's letter, and the size."""

_HINTS = {
    "bool": "bool",
    "float64": "float",
    "uuid": "UUID",
    "string": "str",
    "bytes": "bytes",
    "records": "Buffer",
}
_CLASSIC_LENGTH_BYTES = {"string": 2, "bytes": 4, "records": 4}


def type_hint(field: Field, names: dict[str, str]) -> str:
    element = names[field.type] if field.is_struct else _HINTS.get(field.type, "int")
    hint = f"list[{element}]" if field.is_array else element
    return f"{hint} | None" if field.nullable or field.default is None else hint


def default_text(field: Field, names: dict[str, str]) -> str:
    if field.default is Struct:
        return f"{names[field.type]}()"
    if field.type == "uuid" and not field.is_array:
        return "ZERO_UUID"
    if isinstance(field.default, str):
        return f'"{field.default}"'
    if isinstance(field.default, bytes):
        return 'b""'
    return repr(field.default)


def element_bytes_min(field: Field, message: Message, *, flexible: bool) -> int:
    """The size of the smallest element of an array; a count is checked against it (S3)."""
    if field.is_struct:
        return _struct_bytes_min(message.structs[field.type], message, flexible=flexible)
    return _value_bytes_min(field, flexible=flexible)


def objects(field: Field, message: Message) -> int:
    """An element's cost in objects (S4): itself, and the strings and bytes in it."""
    if not field.is_struct:
        return 1
    fields = message.structs[field.type].untagged
    return 1 + sum(
        objects(nested, message) if nested.is_struct else nested.type in _CLASSIC_LENGTH_BYTES
        for nested in fields
        if not nested.is_array
    )


def _struct_bytes_min(struct: Struct, message: Message, *, flexible: bool) -> int:
    sizes = [
        bytes_min(struct, message, version)
        for version in struct.versions
        if (version in struct.flexible) == flexible
    ]
    return min(sizes)


def bytes_min(struct: Struct, message: Message, version: int) -> int:
    flexible = version in struct.flexible
    size = 1 if flexible else 0
    for field in struct.untagged:
        if version in field.versions:
            size += _field_bytes_min(field, message, version, flexible=flexible)
    return size


def _field_bytes_min(field: Field, message: Message, version: int, *, flexible: bool) -> int:
    if field.is_array:
        return 1 if flexible else 4
    if field.is_struct:
        if field.nullable:
            return 1
        return bytes_min(message.structs[field.type], message, version)
    return _value_bytes_min(field, flexible=flexible)


def _value_bytes_min(field: Field, *, flexible: bool) -> int:
    if field.type in FIXED:
        return FIXED[field.type][1]
    if field.type == "uuid":
        return 16
    return 1 if flexible else _CLASSIC_LENGTH_BYTES[field.type]
