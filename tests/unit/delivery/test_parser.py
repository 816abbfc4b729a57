"""What is not a selector is refused, with the column, in bounded time and memory (S37)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.core.limits import (
    SELECTOR_BYTES_MAX,
    SELECTOR_DEPTH_MAX,
    SELECTOR_PATTERN_PARTS_MAX,
    SELECTOR_TERMS_MAX,
)
from tidemill.delivery.filter.lexer import SelectorError
from tidemill.delivery.filter.parser import parse_selector
from tidemill.delivery.filter.tree import And, Comparison, Not, Or


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, "found the end"),
        ("a =", 4, "found the end"),
        ("a = 'x", 5, "closing '"),
        ('"a = 1', 1, 'closing "'),
        ("a = 1 b = 2", 7, "expected an operator, found 'b'"),
        ("a == 1", 4, "expected a condition or a value"),
        ("a = 1 AND", 10, "found the end"),
        ("(a = 1", 7, "expected )"),
        ("a = 1)", 6, "expected an operator"),
        ("a ? 1", 3, "'?' is not part"),
        ("a = 1x", 5, "not a number"),
        ("a = 1.2.3", 5, "not a number"),
        ("a = 1e999", 5, "too large"),
        ("a + 1", 1, "expected a condition"),
        ("'x'", 1, "expected a condition"),
        ("_key", 1, "expected a condition"),
        ("a = 1 = 2", 7, "needs values"),
        ("_timestamp = 'x'", 12, "a number and text cannot be compared"),
        ("_key > 5", 6, "text and a number cannot be compared"),
        ("'a' + 1 = 2", 5, "needs numbers"),
        ("a > TRUE", 3, "= and <> only"),
        ("tag > 'a'", 5, "several tags"),
        ("tag = a", 5, "several tags"),
        ("tag + 1 = 2", 5, "needs numbers"),
        ("a IN ()", 7, "expected a condition or a value"),
        ("a IN (b)", 7, "expected a text or a number"),
        ("a LIKE b", 8, "expected a text"),
        ("_timestamp LIKE 'x'", 12, "LIKE needs"),
        ("a LIKE '!x' ESCAPE '!'", 8, "after '!'"),
        ("a LIKE 'x' ESCAPE 'ab'", 19, "one character"),
        ("a NOT 1", 7, "expected BETWEEN"),
        ("a IS 1", 6, "expected NULL"),
        ("1 IS NULL", 3, "IS NULL needs"),
        ("length(a) = 1", 1, "no such function"),
        ("routes(a)", 8, "expected a text"),
        ("a BETWEEN 1 OR 2", 13, "expected AND"),
    ],
)
def test_an_error_names_its_column(text, column, words):
    with pytest.raises(SelectorError) as caught:
        parse_selector(text)
    assert caught.value.column == column
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = '" + "x" * SELECTOR_BYTES_MAX + "'", "bytes at most"),
        ("(" * 2_000 + "a = 1" + ")" * 2_000, "deep"),
        ("NOT " * 1_000 + "a", "deep"),
        ("-" * 2_000 + "a = 1", "deep"),
        (" OR ".join(["a=1"] * 500), "terms"),
        (" OR ".join(["TRUE"] * 500), "terms"),
        ("+".join(["a"] * 2_000) + " = 1", "terms"),
        (f"a IN ({','.join(['1'] * 2_000)})", "terms"),
        (f"a LIKE '{'_' * (SELECTOR_PATTERN_PARTS_MAX + 1)}'", "a pattern has"),
        (f"routes('{'.'.join(['a'] * (SELECTOR_PATTERN_PARTS_MAX + 1))}')", "a pattern has"),
    ],
)
def test_S37_what_would_cost_too_much_is_refused(text, words):
    with pytest.raises(SelectorError, match=words):
        parse_selector(text)


def test_what_is_just_within_the_limits_is_parsed():
    parse_selector("(" * SELECTOR_DEPTH_MAX + "a = 1" + ")" * SELECTOR_DEPTH_MAX)
    parse_selector(" OR ".join(["a=1"] * SELECTOR_TERMS_MAX))
    parse_selector(f"a LIKE '{'%'.join(['é'] * 31)}%'")


def test_and_binds_stronger_than_or_and_not_stronger_than_and():
    match parse_selector("NOT a = 1 AND b = 2 OR c = 3"):
        case Or(And(Not(Comparison()), Comparison()), Comparison()):
            return
    pytest.fail("another order")


@given(st.text("ab_ '\"()=<>+-*/,.0123456789eE%NOTANDORLIKEINBETWEENISNULL", max_size=60))
def test_any_text_is_parsed_or_refused_with_a_column(text):
    column = 1
    try:
        parse_selector(text)
    except SelectorError as error:
        column = error.column
    assert 1 <= column <= len(text) + 1
