from __future__ import annotations

import json

import pytest

from tidemill.cli.text import escape, escape_bytes, print_json, print_table


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\r\nb", "a\\r\\nb"),
        ("bell\x07", "bell\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("left\u202eright", "left\\u202eright"),
        ("line\u2028break", "line\\u2028break"),
        ("\udc80", "\\x80"),
    ],
)
def test_S52_terminal_control_characters_are_shown_as_text(hostile, shown):
    assert escape(hostile) == shown


@pytest.mark.parametrize("text", ["plain", "tab\tbed", "größe 大", "no\u00a0break", "back\\slash"])
def test_ordinary_text_stays_as_it_is(text):
    assert escape(text) == text


def test_bytes_that_are_not_text_are_shown_by_their_numbers():
    assert escape_bytes(b"ok \xff\x00") == "ok \\xff\\x00"


def test_null_is_printed_as_configured():
    assert escape_bytes(None, null="NULL") == "NULL"


def test_a_plain_table_is_aligned_with_numbers_at_the_right(capsys):
    print_table(("NAME", "COUNT"), [("short", 5), ("much longer", 12_345)])

    assert capsys.readouterr().out == (
        "NAME         COUNT\nshort            5\nmuch longer  12345\n"
    )


def test_an_unknown_value_is_a_dash_among_numbers(capsys):
    print_table(("NAME", "LAG"), [("a", 100), (None, None)])

    assert capsys.readouterr().out.splitlines() == ["NAME  LAG", "a     100", "-       -"]


def test_an_empty_table_is_its_heading(capsys):
    print_table(("A", "B"), [])

    assert capsys.readouterr().out == "A  B\n"


def test_S52_cells_of_a_table_are_escaped(capsys):
    print_table(("A",), [("\x1b[31mred",)])

    assert "\x1b" not in capsys.readouterr().out


def test_json_is_one_ascii_line(capsys):
    print_json({"name": "größe\n\x1b"})

    out = capsys.readouterr().out
    assert out.isascii()
    assert out.count("\n") == 1
    assert json.loads(out) == {"name": "größe\n\x1b"}
