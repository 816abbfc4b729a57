"""How everything is configured: a frozen dataclass whose fields say what they accept. Pure.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ExampleConfig:
        num_partitions: int = option(4, key="num.partitions", doc="...", minimum=1)

A field's `Option` has the key as users write it, the type (taken from the default), the range, the
unit, the scope and the text of the reference page, which is generated from it. A field that
defaults to another such class, `field(default_factory=OtherConfig)`, is a section: its keys are
keys of the whole. Values come in layers of key -> value (file, flags, code). `build` checks all of
them, and the later layer wins. A mistake raises a `UserError` that names the key, the value and
what is allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from enum import Enum, IntEnum
from typing import Any, TypeVar, final

from tidemill.core.errors import UserError

__all__ = [
    "INT32_MAX",
    "INT64_MAX",
    "Option",
    "OptionType",
    "Scope",
    "Value",
    "build",
    "nearest_key_hint",
    "option",
    "options_of",
    "overridden",
    "parse_assignments",
    "parse_lines",
]

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1

_VALUE_CHARS_SHOWN_MAX = 80

Value = bool | int | float | str | tuple[str, ...]
_Config = TypeVar("_Config")


class OptionType(IntEnum):
    """The type of a value; the numbers are those of DescribeConfigs v3."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class Scope(Enum):
    """Where a value applies."""

    CLUSTER = "cluster"
    """Every broker must have the same value."""
    BROKER = "broker"
    """Each broker may have its own value."""
    TOPIC = "topic"
    """The value may differ per topic and change at run time."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One key: what it means and what it accepts."""

    key: str
    type: OptionType
    default: Value
    doc: str
    unit: str = ""
    minimum: int | float = 0
    maximum: int | float = INT32_MAX
    choices: tuple[str, ...] = ()
    scope: Scope = Scope.BROKER
    sensitive: bool = False
    dynamic: bool = False
    """A broker key that can change while the broker runs: every reader asks `LiveConfig` for it."""

    def parse(self, raw: object) -> Value:
        """The typed value of `raw`, text or a Python value; ValueError says what is allowed."""
        text = self.render(raw) if isinstance(raw, (bool, int, float, tuple)) else raw
        if not isinstance(text, str):
            raise ValueError(f"a {type(raw).__name__} is not a value; allowed is {self.allowed}")
        text = text.strip()
        match self.type:
            case OptionType.BOOLEAN:
                return self._parse_bool(text)
            case OptionType.INT | OptionType.LONG | OptionType.DOUBLE:
                return self._parse_number(text)
            case OptionType.LIST:
                return tuple(self._chosen(item.strip()) for item in text.split(",") if item.strip())
            case OptionType.STRING | OptionType.PASSWORD:
                return self._chosen(text)

    def render(self, value: object) -> str:
        """A value as users write it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    @property
    def allowed(self) -> str:
        """The allowed values, for error messages and the reference."""
        match self.type:
            case OptionType.BOOLEAN:
                return "true or false"
            case OptionType.INT | OptionType.LONG | OptionType.DOUBLE:
                return self._allowed_number()
            case OptionType.LIST:
                of = f" of {', '.join(self.choices)}" if self.choices else ""
                return f"a list, separated by commas,{of}".rstrip(",")
            case OptionType.STRING | OptionType.PASSWORD:
                return f"one of {', '.join(self.choices)}" if self.choices else "text"

    def _allowed_number(self) -> str:
        noun = "a number" if self.type is OptionType.DOUBLE else "a whole number"
        if self.maximum in {INT32_MAX, INT64_MAX}:
            return f"{noun} from {self.minimum}"
        return f"{noun} from {self.minimum} to {self.maximum}"

    def _parse_bool(self, text: str) -> bool:
        match text.lower():
            case "true":
                return True
            case "false":
                return False
            case _:
                raise ValueError(self.allowed)

    def _parse_number(self, text: str) -> int | float:
        digits_max = 32
        try:
            if len(text) > digits_max or "_" in text:
                raise ValueError
            number = float(text) if self.type is OptionType.DOUBLE else int(text)
        except ValueError:
            raise ValueError(self.allowed) from None
        # Written so that NaN, which compares false with everything, is refused as well.
        if not self.minimum <= number <= self.maximum:
            raise ValueError(self.allowed)
        return number

    def _chosen(self, text: str) -> str:
        if self.choices and text not in self.choices:
            raise ValueError(self.allowed)
        return text


def option(
    default: Value,
    *,
    key: str,
    doc: str,
    unit: str = "",
    minimum: int | float = 0,
    maximum: int | float = INT32_MAX,
    choices: tuple[str, ...] = (),
    scope: Scope = Scope.BROKER,
    sensitive: bool = False,
    dynamic: bool = False,
) -> Any:  # noqa: ANN401 - typed by its field, as dataclasses.field is
    """A dataclass field that can be set by `key`."""
    made = Option(
        key=key,
        type=_type_of(default, maximum, sensitive=sensitive),
        default=default,
        doc=doc,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        scope=scope,
        sensitive=sensitive,
        dynamic=dynamic,
    )
    return field(default=made.parse(default), metadata={"option": made})


def _type_of(default: Value, maximum: float, *, sensitive: bool) -> OptionType:
    match default:
        case bool():
            return OptionType.BOOLEAN
        case int():
            return OptionType.INT if maximum <= INT32_MAX else OptionType.LONG
        case float():
            return OptionType.DOUBLE
        case tuple():
            return OptionType.LIST
        case str():
            return OptionType.PASSWORD if sensitive else OptionType.STRING


def options_of(config_class: type) -> dict[str, Option]:
    """The options of a configuration class by field (`section.field`), in order of definition."""
    found: dict[str, Option] = {}
    for item in fields(config_class):
        if "option" in item.metadata:
            found[item.name] = item.metadata["option"]
        elif section := _try_section(item):
            inner = options_of(section)
            found |= {f"{item.name}.{name}": made for name, made in inner.items()}
    return found


def _try_section(item: Field[Any]) -> type | None:
    made_by: object = item.default_factory
    return made_by if isinstance(made_by, type) and is_dataclass(made_by) else None


def parse_lines(text: str, *, source: str = "configuration") -> dict[str, str]:
    """Read `key=value` lines; `#` starts a comment line, a later line wins over an earlier one."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        key, value = _split(stripped, where=f"{source}, line {number}")
        values[key] = value
    return values


def parse_assignments(assignments: Iterable[str], *, source: str = "--set") -> dict[str, str]:
    """Read `key=value` texts, as given to a flag."""
    return dict(_split(text, where=source) for text in assignments)


def _split(text: str, *, where: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"{where}: expected key=value, found {_shown(text)}")
    return key.strip(), value.strip()


def build(config_class: type[_Config], *layers: Mapping[str, object]) -> _Config:
    """Make a configuration from layers of values by key; the later layer wins."""
    by_key = {made.key: made for made in options_of(config_class).values()}
    values: dict[str, Value] = {}
    for layer in layers:
        for key, raw in layer.items():
            if key not in by_key:
                raise UserError(f"unknown key {_shown(key)}{nearest_key_hint(key, by_key)}")
            values[key] = _parsed(by_key[key], raw)
    return _filled(config_class, values)


def _filled(config_class: type[_Config], values: Mapping[str, Value]) -> _Config:
    """An instance with the values whose keys the class or one of its sections has."""
    arguments: dict[str, object] = {}
    for item in fields(config_class):  # type: ignore[arg-type]  # is a dataclass
        if section := _try_section(item):
            arguments[item.name] = _filled(section, values)
        elif "option" in item.metadata and item.metadata["option"].key in values:
            arguments[item.name] = values[item.metadata["option"].key]
    return config_class(**arguments)


def overridden(config: _Config, values: Mapping[str, str]) -> _Config:
    """A copy of `config` with other values for some of its keys; unknown keys are ignored."""
    changes: dict[str, object] = {}
    for item in fields(config):  # type: ignore[arg-type]  # is a dataclass
        if _try_section(item):
            changes[item.name] = overridden(getattr(config, item.name), values)
        elif "option" in item.metadata and item.metadata["option"].key in values:
            made = item.metadata["option"]
            changes[item.name] = _parsed(made, values[made.key])
    return replace(config, **changes)  # type: ignore[type-var]  # is a dataclass


def _parsed(made: Option, raw: object) -> Value:
    try:
        return made.parse(raw)
    except ValueError as err:
        shown = "(hidden)" if made.sensitive else _shown(str(raw))
        raise UserError(f"{made.key}={shown}: expected {err}") from None


def nearest_key_hint(key: str, known: Iterable[str]) -> str:
    """`"; did you mean ...?"` if a known key is similar to `key`, else an empty text."""
    near = difflib.get_close_matches(key[:_VALUE_CHARS_SHOWN_MAX], list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _shown(text: str) -> str:
    cut = text if len(text) <= _VALUE_CHARS_SHOWN_MAX else text[:_VALUE_CHARS_SHOWN_MAX] + "..."
    return ascii(cut)
