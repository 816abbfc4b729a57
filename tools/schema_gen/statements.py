"""The statements of one struct's `read` and `write`, each for one version."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import final

from tools.schema_gen.branches import Lines, Step, ladder_lines
from tools.schema_gen.layout import FIXED, default_text, element_bytes_min, objects
from tools.schema_gen.model import Field, Message, Struct, Versions, snake_case

__all__ = ["Scope", "layout_name"]


def layout_name(codes: str) -> str:
    """The module constant for a run of fixed-size fields; `?` cannot be part of a name."""
    return f"_{codes.replace('?', 't')}"


@final
@dataclass(slots=True)
class Scope:
    """One struct, its message, and the fixed layouts that its code uses."""

    struct: Struct
    message: Message
    names: dict[str, str]
    """Class names by Kafka's struct names."""
    layouts: set[str]

    # --- read ------------------------------------------------------------------------------------

    def read_lines(self) -> list[str]:
        tagged = self.struct.tagged
        lines = [f"self.{field.name} = {default_text(field, self.names)}" for field in tagged]
        steps = [step for field in _runs(self.struct.untagged) for step in self._read_steps(field)]
        return lines + ladder_lines([*steps, self._if_flexible(self._read_tags())], self._versions)

    def _read_steps(self, run: list[Field]) -> list[Step]:
        if _is_fixed(run[0]):
            return [partial(self._read_run, run)]
        field = run[0]
        if self._is_split(field):
            return [
                lambda version: self._read_array(field, version)[:1],
                lambda version: self._read_array(field, version)[1:],
            ]
        return [partial(self._read_field, field)]

    def _read_run(self, run: list[Field], version: int) -> Lines:
        present = [field for field in run if version in field.versions]
        absent = [field for field in run if version not in field.versions]
        lines = [f"self.{field.name} = {default_text(field, self.names)}" for field in absent]
        if present:
            targets = "".join(f"self.{field.name}, " for field in present)
            lines.insert(0, f"({targets}) = r.fixed({self._layout(present)})")
        return tuple(lines)

    def _read_field(self, field: Field, version: int) -> Lines:
        if version not in field.versions:
            return (f"self.{field.name} = {default_text(field, self.names)}",)
        return self._read_value(field, version)

    def _read_value(self, field: Field, version: int) -> Lines:
        kind = _prefix(field, version)
        if field.is_array:
            return self._read_array(field, version)
        if field.is_struct:
            value = f"{self.names[field.type]}.read(r, version)"
            if version in field.nullable:
                value += " if r.present() else None"
        elif field.type in FIXED:
            return (f"(self.{field.name},) = r.fixed({self._layout([field])})",)
        elif field.type == "uuid":
            value = "r.uuid()"
        else:
            value = f"r.{_method(field, kind)}()"
        return (f"self.{field.name} = {value}",)

    def _read_array(self, field: Field, version: int) -> Lines:
        kind = _prefix(field, version)
        bytes_min = element_bytes_min(field, self.message, flexible=version in field.flexible)
        cost = objects(field, self.message)
        arguments = f"{bytes_min}" if cost == 1 else f"{bytes_min}, {cost}"
        count = f"r.{kind}count({arguments})"
        if field.is_struct:
            elements = f"[{self.names[field.type]}.read(r, version) for _ in range(count)]"
        elif field.type == "string":
            reader = "compact_string" if version in field.flexible else "string"
            elements = f"[r.{reader}() for _ in range(count)]"
        else:
            elements = f'r.ints("{FIXED[field.type][0]}", count)'
        if version in field.nullable:
            elements = f"None if count < 0 else {elements}"
        return (f"count = {count}", f"self.{field.name} = {elements}")

    def _read_tags(self) -> list[str]:
        tagged = self.struct.tagged
        if not tagged:
            return ["r.skip_tags()"]
        lines = ["tag = -1", "for _ in range(r.tag_count()):", "    tag, end = r.tag(tag)"]
        for index, field in enumerate(tagged):
            branch = "elif" if index else "if"
            lines.append(f"    {branch} {self._in_version(field)}tag == {field.tag}:")
            lines += [f"        {line}" for line in self._read_value(field, field.versions.high)]
        return [*lines, "    else:", "        r.pos = end", "    r.end_tag(end)"]

    # --- write -----------------------------------------------------------------------------------

    def write_lines(self) -> list[str]:
        refusals = [line for field in self.struct.fields for line in self._refusal(field)]
        steps = [step for field in _runs(self.struct.untagged) for step in self._write_steps(field)]
        tags = self._if_flexible(self._write_tags())
        return refusals + ladder_lines([*steps, tags], self._versions)

    def _refusal(self, field: Field) -> list[str]:
        outside = []
        if field.versions.low > self._versions.low:
            outside.append(f"version < {field.versions.low}")
        if field.versions.high < self._versions.high:
            outside.append(f"version > {field.versions.high}")
        if field.is_ignorable or not outside:
            return []
        when = outside[0] if len(outside) == 1 else f"({' or '.join(outside)})"
        return [
            f"if {when} and {_differs(field, self.names)}:",
            f'    raise unwritable("{field.name}", version)',
        ]

    def _write_steps(self, run: list[Field]) -> list[Step]:
        if _is_fixed(run[0]):
            return [partial(self._write_run, run)]
        field = run[0]
        if self._is_split(field):
            return [
                lambda version: self._write_array(field, version, "w")[:1],
                lambda version: self._write_array(field, version, "w")[1:],
            ]
        return [partial(self._write_field, field)]

    def _write_run(self, run: list[Field], version: int) -> Lines:
        present = [field for field in run if version in field.versions]
        if not present:
            return ()
        values = ", ".join(f"self.{field.name}" for field in present)
        return (f"buf += {self._layout(present)}.pack({values})",)

    def _write_field(self, field: Field, version: int) -> Lines:
        if version not in field.versions:
            return ()
        return self._write_value(field, version, "w")

    def _write_value(self, field: Field, version: int, writer: str) -> Lines:
        buffer = "buf" if writer == "w" else f"{writer}.buf"
        value = f"self.{field.name}"
        if field.is_array:
            return self._write_array(field, version, writer)
        if field.is_struct:
            if version in field.nullable and field.tag is not None:
                # Null is written as an absent tag: here the struct is present.
                return (f"{buffer}.append(1)", f"{value}.write({writer}, version)")
            if version in field.nullable:
                return (
                    f"if {value} is None:",
                    f"    {buffer}.append(255)",
                    "else:",
                    f"    {buffer}.append(1)",
                    f"    {value}.write({writer}, version)",
                )
            return (f"{value}.write({writer}, version)",)
        if field.type == "uuid":
            return (f"{buffer} += {value}.bytes",)
        method = _method(field, _prefix(field, version))
        return (f"{writer}.{method}({_given(field, version)})",)

    def _write_array(self, field: Field, version: int, writer: str) -> Lines:
        value = _given(field, version)
        compact = "compact_" if version in field.flexible else ""
        is_nullable = version in field.nullable
        count = f"-1 if {value} is None else len({value})" if is_nullable else f"len({value})"
        elements = f"{value} or []" if is_nullable else value
        head = f"{writer}.{compact}count({count})"
        if field.is_struct:
            item = snake_case(self.names[field.type])
            return (head, f"for {item} in {elements}:", f"    {item}.write({writer}, version)")
        if field.type == "string":
            return (head, f"for text in {elements}:", f"    {writer}.{compact}string(text)")
        return (head, f'{writer}.ints("{FIXED[field.type][0]}", {elements})')

    def _write_tags(self) -> list[str]:
        tagged = self.struct.tagged
        if not tagged:
            return ["buf.append(0)"]
        lines = [
            f"has_{field.name} = {self._in_version(field)}{_differs(field, self.names, flag=True)}"
            for field in tagged
        ]
        lines.append(f"buf.append({' + '.join(f'has_{field.name}' for field in tagged)})")
        for field in tagged:
            is_struct = field.is_struct and not field.is_array
            # The flag implies that the struct is set, but the type checker needs this condition.
            narrowed = f" and self.{field.name} is not None" if is_struct else ""
            lines.append(f"if has_{field.name}{narrowed}:")
            lines += [f"    {line}" for line in self._write_tagged(field)]
        return lines

    def _write_tagged(self, field: Field) -> Lines:
        if field.type in FIXED and not field.is_array:
            prefix = _uvarint(field.tag or 0) + _uvarint(FIXED[field.type][1])
            pack = f"{self._layout([field])}.pack(self.{field.name})"
            return (f"buf += {prefix!r} + {pack}",)
        if field.type == "uuid" and not field.is_array:
            prefix = _uvarint(field.tag or 0) + _uvarint(16)
            return (f"buf += {prefix!r} + self.{field.name}.bytes",)
        value = self._write_value(field, field.versions.high, "value")
        return ("value = Writer()", *value, f"w.tagged({field.tag}, value)")

    # --- shared ----------------------------------------------------------------------------------

    def _layout(self, fields: list[Field]) -> str:
        codes = "".join(FIXED[field.type][0] for field in fields)
        self.layouts.add(codes)
        return layout_name(codes)

    def _in_version(self, field: Field) -> str:
        """A condition for a tag that was added after the struct's first tag section."""
        if field.versions.low <= self.struct.flexible.low:
            return ""
        return f"version >= {field.versions.low} and "

    def _if_flexible(self, lines: list[str]) -> Step:
        body = tuple(lines)
        return lambda version: body if version in self.struct.flexible else ()

    def _is_split(self, field: Field) -> bool:
        """Whether only the count differs by version: then the elements need no branches."""
        everywhere = field.versions & self._versions == self._versions
        nullable = field.nullable & self._versions
        return (
            field.is_array
            and field.is_struct
            and everywhere
            and (not nullable or nullable == self._versions)
            and field.flexible & self._versions != self._versions
        )

    @property
    def _versions(self) -> Versions:
        return self.struct.versions


def _is_fixed(field: Field) -> bool:
    return field.type in FIXED and not field.is_array


def _runs(fields: list[Field]) -> list[list[Field]]:
    """Adjacent fields of fixed size together, every other field alone."""
    groups = [(is_fixed, list(group)) for is_fixed, group in groupby(fields, _is_fixed)]
    runs = [[group] if is_fixed else [[field] for field in group] for is_fixed, group in groups]
    return [run for neighbours in runs for run in neighbours]


def _prefix(field: Field, version: int) -> str:
    compact = "compact_" if version in field.flexible else ""
    return compact + ("nullable_" if version in field.nullable else "")


def _method(field: Field, prefix: str) -> str:
    if field.type == "bytes" and not prefix:
        return "plain_bytes"
    return prefix + field.type


def _given(field: Field, version: int) -> str:
    """The field's value; checked for null if only other versions can carry null."""
    value = f"self.{field.name}"
    if field.nullable and version not in field.nullable:
        return f'not_null("{field.name}", {value})'
    return value


def _differs(field: Field, names: dict[str, str], *, flag: bool = False) -> str:
    """A condition: the field is not at its default. As a `flag` it is a real bool."""
    value = f"self.{field.name}"
    if field.default is None:
        return f"{value} is not None"
    if field.default is True:
        return f"not {value}"
    is_falsy = field.type != "uuid" and not field.is_struct and not field.default
    if (is_falsy or field.is_array) and not field.nullable:
        return f"bool({value})" if flag else value
    return f"{value} != {default_text(field, names)}"


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
