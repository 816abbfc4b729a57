from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tidemill.core.config.keys import (
    INT64_MAX,
    OptionType,
    build,
    option,
    options_of,
    parse_assignments,
    parse_lines,
)
from tidemill.core.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Kiln:
    """A configuration with one key of each type."""

    doors: int = option(2, key="kiln.doors", doc="Doors.", minimum=1, maximum=9)
    heat_ms: int = option(5, key="kiln.heat.ms", doc="Time.", minimum=-1, maximum=INT64_MAX)
    ratio: float = option(0.5, key="kiln.ratio", doc="Share.", maximum=1)
    lit: bool = option(False, key="kiln.lit", doc="Lit.")
    glaze: str = option("clear", key="kiln.glaze", doc="Glaze.", choices=("clear", "blue"))
    shelves: tuple[str, ...] = option(("a",), key="kiln.shelves", doc="Shelves.")
    secret: str = option("", key="kiln.secret", doc="Password.", sensitive=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pottery:
    """A configuration with a section."""

    wheels: int = option(1, key="wheels", doc="Wheels.")
    kiln: Kiln = field(default_factory=Kiln)
    clay: str = option("red", key="clay", doc="Clay.")


def test_without_values_every_key_has_its_default():
    assert build(Kiln) == Kiln()
    assert Kiln().doors == 2


def test_texts_become_typed_values():
    layer = {
        "kiln.doors": " 3 ",
        "kiln.heat.ms": "-1",
        "kiln.ratio": "0.25",
        "kiln.lit": "TRUE",
        "kiln.glaze": "blue",
        "kiln.shelves": "a, b,,c",
        "kiln.secret": "hush",
    }
    assert build(Kiln, layer) == Kiln(
        doors=3,
        heat_ms=-1,
        ratio=0.25,
        lit=True,
        glaze="blue",
        shelves=("a", "b", "c"),
        secret="hush",
    )


def test_code_may_give_python_values():
    made = build(Kiln, {"kiln.doors": 3, "kiln.lit": True, "kiln.shelves": ("x", "y")})
    assert (made.doors, made.lit, made.shelves) == (3, True, ("x", "y"))


def test_F125_a_later_layer_wins():
    made = build(Kiln, {"kiln.doors": "3", "kiln.lit": "true"}, {"kiln.doors": "4"})
    assert (made.doors, made.lit) == (4, True)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("kiln.doors", "0", "a whole number from 1 to 9"),
        ("kiln.doors", "10", "a whole number from 1 to 9"),
        ("kiln.doors", "2.0", "a whole number from 1 to 9"),
        ("kiln.doors", "1_0", "a whole number from 1 to 9"),
        ("kiln.doors", "9" * 5000, "a whole number from 1 to 9"),
        ("kiln.doors", True, "a whole number from 1 to 9"),
        ("kiln.heat.ms", "-2", "a whole number from -1"),
        ("kiln.ratio", "nan", "a number from 0 to 1"),
        ("kiln.lit", "yes", "true or false"),
        ("kiln.glaze", "red", "one of clear, blue"),
        ("kiln.doors", None, "a NoneType is not a value"),
    ],
)
def test_a_wrong_value_is_refused_with_key_and_what_is_allowed(key, value, expected):
    with pytest.raises(UserError) as refused:
        build(Kiln, {key: value})
    message = str(refused.value)
    assert message.startswith(f"{key}=")
    assert expected in message
    assert len(message) < 300


def test_a_secret_is_not_shown_in_the_refusal():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Safe:
        pin: int = option(1, key="pin", doc="Pin.", maximum=9, sensitive=True)

    with pytest.raises(UserError) as refused:
        build(Safe, {"pin": "1234"})
    assert "1234" not in str(refused.value)


def test_an_unknown_key_is_refused_with_the_nearest_known_one():
    with pytest.raises(UserError, match=r"'kiln\.door'; did you mean kiln\.doors\?"):
        build(Kiln, {"kiln.door": "1"})


def test_an_unknown_key_far_from_all_others_gets_no_hint():
    with pytest.raises(UserError) as refused:
        build(Kiln, {"zzz\x1b[31m" * 100: "1"})
    message = str(refused.value)
    assert "did you mean" not in message
    assert "\x1b" not in message
    assert len(message) < 500


def test_lines_are_read_with_comments_blanks_and_equal_signs_in_values():
    text = "# kiln\n\n kiln.doors = 3 \nkiln.secret=a=b\n#kiln.lit=true\nkiln.doors=4\n"
    assert parse_lines(text) == {"kiln.doors": "4", "kiln.secret": "a=b"}


@pytest.mark.parametrize("line", ["kiln.doors", "=3", "  =  "])
def test_a_line_without_key_and_value_is_refused_with_its_number(line):
    with pytest.raises(UserError, match=r"kiln\.properties, line 2: expected key=value"):
        parse_lines(f"# first\n{line}", source="kiln.properties")


def test_the_keys_of_a_section_are_keys_of_the_whole():
    made = build(Pottery, {"kiln.doors": 3, "wheels": 2}, {"kiln.doors": 4})
    assert made == Pottery(wheels=2, kiln=Kiln(doors=4))
    assert build(Pottery) == Pottery()


def test_the_options_of_a_section_are_listed_in_its_place():
    names = list(options_of(Pottery))
    assert names == ["wheels", *(f"kiln.{name}" for name in options_of(Kiln)), "clay"]


def test_flags_are_read_as_assignments():
    assert parse_assignments(["a=1", "b=2", "a=3"]) == {"a": "3", "b": "2"}
    with pytest.raises(UserError, match="--set: expected key=value"):
        parse_assignments(["a"])


def test_types_are_those_of_the_protocol():
    types = {made.key: made.type for made in options_of(Kiln).values()}
    assert types == {
        "kiln.doors": OptionType.INT,
        "kiln.heat.ms": OptionType.LONG,
        "kiln.ratio": OptionType.DOUBLE,
        "kiln.lit": OptionType.BOOLEAN,
        "kiln.glaze": OptionType.STRING,
        "kiln.shelves": OptionType.LIST,
        "kiln.secret": OptionType.PASSWORD,
    }


def test_a_rendered_value_parses_back_to_itself():
    for name, made in options_of(Kiln).items():
        value = getattr(Kiln(), name)
        assert made.parse(made.render(value)) == value
