"""Regular expressions over topic names: RE2's syntax, its limits, and what is remembered."""

from __future__ import annotations

import builtins
import subprocess
import sys

import pytest

from tidemill.coordinators.group import re2_matcher
from tidemill.coordinators.group.re2_matcher import SLICE_NAMES_MAX, Re2Matcher
from tidemill.core.errors import ErrorCode, KafkaError
from tidemill.core.limits import PATTERN_CHARS_MAX, PATTERNS_KEPT_MAX

NOBODY = object()


def topics(*names):
    return dict.fromkeys(names, NOBODY)


def reason(pattern):
    with pytest.raises(KafkaError) as refusal:
        Re2Matcher().check(pattern)
    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    return refusal.value.detail


@pytest.mark.parametrize(
    ("pattern", "matching"),
    [
        ("^orders-.*", ["orders-1", "orders-2"]),
        ("orders-[12]$", ["orders-1", "orders-2"]),
        ("orders", []),
        ("(?i)ORDERS-\\d", ["orders-1", "orders-2"]),
        ("[[:alpha:]]+", ["payments"]),
        ("\\Qorders-1\\E|pay.*", ["orders-1", "payments"]),
        ("", []),
        (".*", ["orders-1", "orders-2", "payments"]),
    ],
)
def test_T48_an_expression_in_the_syntax_of_re2_matches_whole_names(pattern, matching):
    found = Re2Matcher().try_match(pattern, topics("payments", "orders-2", "orders-1"))
    assert found == tuple(matching)


def test_internal_topics_never_match():
    assert Re2Matcher().try_match(".*", topics("__consumer_offsets", "__mine")) == ("__mine",)


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("(", "missing )"),
        ("a)", "unexpected )"),
        ("(?=a)", "invalid perl operator"),
        ("(a)\\1", "invalid escape sequence"),
        ("[z-a]", "invalid character class range"),
        ("a{1001}", "invalid repetition size"),
    ],
)
def test_S37_an_expression_that_re2_does_not_know_is_refused_with_its_reason(pattern, part):
    assert part in reason(pattern)


def test_S37_a_long_expression_is_refused():
    assert str(PATTERN_CHARS_MAX) in reason("a" * (PATTERN_CHARS_MAX + 1))
    Re2Matcher().check("a" * (PATTERN_CHARS_MAX - 100))


@pytest.mark.parametrize("pattern", ["\\pL{1,500}", "(.{1,30}){1,9}x", "(a{1,30}){1,30}b?"])
def test_S37_a_short_expression_with_a_large_program_is_refused(pattern):
    assert "too large" in reason(pattern)


def test_S37_an_expression_that_stops_a_backtracking_engine_is_evaluated():
    hostile = topics(*("a" * 200 + str(number) for number in range(100)))
    assert Re2Matcher().try_match("(a+)+(b|c)", hostile) == ()


def test_S11_one_call_evaluates_one_slice():
    many = topics(*map(str, range(3 * SLICE_NAMES_MAX + 1)))
    matcher = Re2Matcher()
    answers = [matcher.try_match(".*", many) for _ in range(4)]
    assert answers[:3] == [None, None, None]
    assert len(answers[3]) == len(many)


def test_S37_a_slice_has_fewer_names_the_larger_the_program_is():
    """The product is bounded, so that no expression holds up the event loop."""
    names = topics(*map(str, range(200)))
    matcher = Re2Matcher()
    assert matcher.try_match(".*", names) is not None
    assert matcher.try_match("(\\d{1,20}|x){1,20}", names) is None


def test_a_new_map_costs_only_the_names_that_are_new(monkeypatch):
    matcher = Re2Matcher()
    before = topics(*map(str, range(SLICE_NAMES_MAX)))
    assert len(matcher.try_match("\\d+", before)) == SLICE_NAMES_MAX
    after = {**before, "1000000": NOBODY, "other": NOBODY}
    del after["7"]
    found = matcher.try_match("\\d+", after)  # one slice is enough
    assert "1000000" in found
    assert "7" not in found


def test_topics_that_change_during_an_evaluation_do_not_start_it_again():
    matcher = Re2Matcher()
    names = topics(*map(str, range(3 * SLICE_NAMES_MAX)))
    calls = 0
    while matcher.try_match("\\d+", names) is None:
        calls += 1
        names = {**names, str(-calls): NOBODY}
        assert calls < 10, "it never ends"


def test_S38_few_expressions_are_remembered():
    matcher = Re2Matcher()
    for number in range(PATTERNS_KEPT_MAX + 10):
        matcher.check(f"orders-{number}")
    assert len(matcher._searches) == PATTERNS_KEPT_MAX


def test_without_the_engine_an_expression_is_refused_and_says_so(monkeypatch):
    real_import = builtins.__import__

    def fail(name, *args, **options):
        if name == "re2":
            raise ImportError(name)
        return real_import(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", fail)
    assert "google-re2 is not installed" in reason("orders-.*")


@pytest.mark.slow
def test_the_engine_is_not_loaded_before_the_first_expression():
    script = f"import sys, {re2_matcher.__name__}, tidemill.broker; assert 're2' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
